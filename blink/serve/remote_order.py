"""What both sides of two hosts serve, each as its own command line says it, and the digest by which they compare it."""

from __future__ import annotations

import msgspec

from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.serve.options import overrides_of
from blink.serve.plan import Order, Plan


def remote_order(
    backend: str, scenario: str, engine: str, model: str | None, seed: str | None, overrides: tuple[str, ...],
    time_scale: float,
) -> Order:  # fmt: skip
    """The order of either side. Raises InputError for an engine without a model."""
    changes = overrides_of(engine, model, seed, overrides)
    named = "" if engine == "stub" else model or load_scenario(scenario, changes).model.profile or ""
    if engine != "stub" and not named:
        raise InputError(f"--engine {engine}: needs a model; name it with --model, or in the scenario's model.profile")
    return Order(
        socket="", backend=backend, scenario=scenario, overrides=changes, time_scale=time_scale, linger_s=0.0, trace="",
        model=named,
    )  # fmt: skip


def remote_digest(order: Order, plan: Plan) -> str:
    """The same for both sides of one ring; which backend runs there is no matter of the frontend's."""
    return plan.digest(msgspec.structs.replace(order, backend="rdma"))
