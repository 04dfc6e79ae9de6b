"""The scenario as a whole, the rules that span its sections, and its plain-data form."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from blink.common.config.fields import REQUIRED, Int, Table, Text, option, refuse
from blink.common.config.fleet import Fleet
from blink.common.config.hardware import Dpu, Gpu, Links, Model
from blink.common.config.host import Host, InterferenceMix, MitigationSet, Power, Prices
from blink.common.config.options import Serving
from blink.common.config.serving import Frontend, Limits, Run, Slo, Trace
from blink.common.config.system import DEFAULT_SYSTEM, System
from blink.common.config.workload import CapOutput, Workload

FILE_FIELDS = (
    "model.hf_config",
    "model.steps",
    "workload.lengths.file",
    "workload.trace.file",
    "interference.jobs.file",
)
PROFILE_FIELDS = (
    "system.profile",
    "model.profile",
    "model.engine",
    "gpu.profile",
    "dpu.profile",
    "links.profile",
    "host.profile",
    "interference.jobs.profile",
    "power.profile",
    "prices.profile",
    "fleet.profile",
    "gpu.fabric",
)


class Scenario(Table):
    """One run: what, on what, under which load. Every section has its own table."""

    name: Text = option(REQUIRED, "Name of the scenario, as reports print it.")
    description: str | None = option(None, "Which question it answers.")
    seed: Int = option(1, "Seed of every random number of the run.", ge=0, le=(1 << 63) - 1)
    system: System = option(DEFAULT_SYSTEM, "Which serving stack is simulated.")
    model: Model = option(REQUIRED, "The model that is served.")
    gpu: Gpu = option(REQUIRED, "The GPU, and how the model is laid over it.")
    dpu: Dpu = option(Dpu(), "The SmartNIC that runs the frontend.")
    links: Links = option(Links(), "The way between client, DPU and GPU memory.")
    host: Host = option(Host(), "The server that holds the GPU.")
    interference: InterferenceMix = option(InterferenceMix(), "The other jobs on the host's CPU.")
    mitigations: MitigationSet = option(MitigationSet(), "What is done against the other jobs.")
    workload: Workload = option(REQUIRED, "Requests, in number and in kind.")
    limits: Limits = option(Limits(), "What the scheduler may use.")
    frontend: Frontend = option(Frontend(), "The DPU's polling and queueing.")
    trace: Trace = option(Trace(), "The event trace that a run leaves behind.")
    slo: Slo = option(Slo(), "Objectives that goodput counts.")
    power: Power = option(Power(), "What the server draws.")
    prices: Prices = option(Prices(), "What the hardware costs.")
    run: Run = option(Run(), "How the simulation is carried out.")
    serving: Serving | None = option(None, "What-if switches of serving. Unset: none.")
    fleet: Fleet | None = option(None, "Replicas of all this behind one router. Unset: one, without a router.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        asked, room = self.workload.output_tokens_max, self.limits.output_capacity_tokens
        if isinstance(asked, CapOutput) and asked.value > room:
            raise refuse(
                "workload.output_tokens_max.value",
                f"= {asked.value}: must not exceed limits.output_capacity_tokens = {room}",
            )
        if self.mitigations.dedicated_cores and not self.host.reserved_cores:
            raise refuse("mitigations.dedicated_cores", "= true: needs host.reserved_cores above 0")
        self._serves()
        return self

    def _serves(self) -> None:
        """Options of serving that need others."""
        serving = self.serving
        if serving is None:
            return
        if serving.kv_offload_gib and not serving.prefix_caching:
            raise refuse("serving.kv_offload_gib", f"= {serving.kv_offload_gib}: needs serving.prefix_caching = true")
        if serving.prefix_caching and self.workload.trace is None and self.workload.shared_prefix is None:
            raise refuse("serving.prefix_caching", "= true: no prompts begin alike: give workload.shared_prefix")

    def resolved(self) -> dict[str, Any]:
        """Plain data in the order of the sections, every default filled in; options that are unset are left out."""
        return {key: _plain(value) for key, value in self.model_dump(exclude_none=True).items()}


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a scenario, for editors and for validation elsewhere."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Blink scenario"}


def relocated(resolved: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The resolved scenario with every path written relative to `folder`, for a copy that is kept there."""
    moved = copy.deepcopy(resolved)
    for table, key in path_entries(moved):
        table[key] = Path(os.path.relpath(table[key], folder)).as_posix()
    return moved


def path_entries(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each (table, key) of a scenario's plain data that holds a path.

    A profile is a path if it ends in .toml or has a folder in it, as the loader of profiles has it too.
    """
    for dotted in (*FILE_FIELDS, *PROFILE_FIELDS):
        *names, key = dotted.split(".")
        for table in _tables(document, names):
            value = table.get(key)
            if isinstance(value, str) and value and (dotted in FILE_FIELDS or value.endswith(".toml") or "/" in value):
                yield table, key


def _tables(value: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """The tables below the names; a list on the way stands for each of its entries."""
    if isinstance(value, list):
        for entry in value:
            yield from _tables(entry, names)
    elif isinstance(value, dict):
        if names:
            yield from _tables(value.get(names[0]), names[1:])
        else:
            yield value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value
