"""What is served over a ring, as an order says it: the scheduler's settings and the API's bounds.

Server and keeper work it out for themselves from the same order, and compare a digest of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from blink.common.config import Scenario, load_scenario
from blink.common.config.replica import require_replica
from blink.common.errors import InputError
from blink.frontend.openai.bodies import Bounds
from blink.hw.cuda.engine_run import bounds_of as engine_bounds
from blink.hw.cuda.model_run import engine_limits, scenario_settings
from blink.hw.engines.contract import Described
from blink.hw.engines.torch_engine import EngineLimits, load_spec
from blink.hw.native.driver import EVIDENCE
from blink.hw.native.run import settings_of
from blink.hw.native.settings import NativeSettings
from blink.perf.plant import Plant
from blink.serve.bounds import bounds_of


class Order(msgspec.Struct):
    """What a keeper is started with. `trace` "" for none; `model` "" for the stub engine."""

    socket: str
    backend: str
    scenario: str
    overrides: list[tuple[str, str]]
    time_scale: float
    linger_s: float
    trace: str
    model: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`engine`: what a model's engine is built for, None for the stub; `vocabulary_count` likewise 0 for the stub."""

    scenario: Scenario
    settings: NativeSettings
    bounds: Bounds
    engine: EngineLimits | None = None
    vocabulary_count: int = 0

    @property
    def evidence(self) -> tuple[str, ...]:
        """Columns of the trace beyond its usual ones. Tokens of a model cannot be checked, only the stub's."""
        return () if self.engine else EVIDENCE

    def digest(self, order: Order) -> str:
        """The same for orders that can share a ring."""
        settings, durations = self.settings, self.settings.durations
        parts = (
            order.backend, order.model, sorted(settings.fields().items()), settings.shapes(),
            durations.prefill_ns.tolist(), durations.decode_ns.tolist(),
        )  # fmt: skip
        return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def plan_of(order: Order) -> Plan:
    """Raises InputError for what cannot be served."""
    scenario = load_scenario(order.scenario, [(name, text) for name, text in order.overrides])
    require_replica(scenario, f"backend {order.backend}")
    plant = Plant.of(scenario)
    if not order.model:
        return Plan(scenario, settings_of(scenario, plant, order.time_scale), bounds_of(scenario, plant))
    if order.time_scale != 1:
        raise InputError(
            f"--time-scale {order.time_scale:g}: a model takes the time that it takes; allowed: with --engine stub"
        )
    limits, spec = engine_limits(scenario), load_spec(order.model)
    described = Described(limits.tables(), limits.block_tokens, limits.block_count, spec.eos_token)
    settings = scenario_settings(scenario, described, ignore_eos=False)
    settings = replace(settings, time_limit_ns=scenario.limits.time_limit_ns, boot_id=scenario.seed)
    return Plan(scenario, settings, _model_bounds(scenario, settings), limits, spec.shape.vocab_size)


def _model_bounds(scenario: Scenario, settings: NativeSettings) -> Bounds:
    found = engine_bounds(settings)
    context = min(found.context_tokens, found.block_count * found.block_tokens)
    longest = min(found.prompt_tokens_max, context - 1, scenario.limits.prompt_capacity_tokens)
    return Bounds(context, longest, min(context - 1, found.output_tokens_max))
