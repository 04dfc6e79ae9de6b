"""What binds: one replica less is run again with more of each resource, and the one that helps most is named.

It gets what would make up for the replica if that resource were all there is to it, and a tenth more. Of the host's CPU
it gets more by work that takes less time, and by fewer other jobs. The runs are the fleet's own, first seed, in which
nothing else changes. Ring slots are fixed by the protocol: they bind where all of them were in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blink.common.config import Scenario, parse_scenario
from blink.common.config.system import CpuResidentSystem, HostDrivenSystem
from blink.common.profile import SHIPPED, profile_path
from blink.common.states import SLOT_COUNT
from blink.perf.gpu import GpuProfile
from blink.perf.host_engine import HostEngineProfile
from blink.plan.capacity.measure import CapacityPoint
from blink.plan.capacity.search import CapacitySearch, Trial

MORE_MIN = 1.3
"""How much more of a resource is given at least, as a factor."""
NOTHING = "nothing"
"""The fleet as it is, to the end of its run."""
HELPS = 0.9
"""To which share of itself the worst figure must fall for a resource to be named."""
RESOURCES = {
    "compute": "compute",
    "bandwidth": "memory bandwidth",
    "kv": "KV memory",
    "host": "host CPU",
    "batch": "the batch limit",
    "slots": "ring slots",
}
HOST_TIMES = ("_ns", "_ns_per_sequence", "_ns_per_token")


@dataclass(frozen=True, slots=True)
class Relief:
    """The worst figure of the fleet with `factor` times as much of a resource; `ratio` is over that without.

    `meets`: whether that would do.
    """

    resource: str
    factor: float
    value: float
    ratio: float
    meets: bool


def relieve(search: CapacitySearch, trial: Trial, replicas: int) -> list[Relief]:
    """A fleet of so many replicas, which misses its objectives, as it is and with more of each resource."""
    seed = search.seeds[0]
    found = search.worst(trial, replicas)
    if found is None:
        return []
    objective, factor = found[0], max(MORE_MIN, 1.1 * (replicas + 1) / replicas)
    with _relieved(trial.candidate.fleet(replicas, seed), factor) as changed:
        scenarios = [(NOTHING, trial.candidate.fleet(replicas, seed)), *changed]
        points = [
            CapacityPoint(
                (*trial.candidate.key, ("relief", name), ("seed", seed)), scenario, search.question.slo, whole=True
            )
            for name, scenario in scenarios
        ]
        before, *results = search.run_all(points)
    base = before[objective.name]
    reliefs = [Relief(NOTHING, 1.0, base, 1.0, False)] if base is not None else []
    for (name, _), figures in zip(changed, results, strict=True):
        value = figures[objective.name]
        if value is not None and base is not None and objective.badness(base) > 0:
            ratio = objective.badness(value) / objective.badness(base)
            reliefs.append(Relief(name, factor, value, ratio, search.meets(figures)))
    if before["slots_in_use_max"] >= SLOT_COUNT:
        reliefs.append(Relief("slots", 1.0, float(base or 0.0), 0.0, False))
    return reliefs


def binding(reliefs: list[Relief]) -> Relief | None:
    """The one that helps most; None if none helps."""
    best = min(
        (one for one in reliefs if one.resource != NOTHING),
        key=lambda relief: (not relief.meets, relief.ratio),
        default=None,
    )
    return best if best is not None and (best.meets or best.ratio <= HELPS) else None


@contextmanager
def _relieved(scenario: Scenario, factor: float) -> Iterator[list[tuple[str, Scenario]]]:
    """The scenario with more of each resource. Profiles that say so lie in a folder that goes with the context."""
    with TemporaryDirectory(prefix="blink-plan-") as name:
        folder = Path(name)
        gpu, system = scenario.gpu.profile, scenario.system
        profile = GpuProfile.load(gpu)
        changed: list[tuple[str, Scenario]] = []
        for resource, constant in (
            ("compute", "peak_flops_8bit" if scenario.model.dtype_bytes == 1 else "peak_flops_16bit"),
            ("bandwidth", "memory_bandwidth_bytes_per_s"),
            ("kv", "memory_bytes"),
        ):
            value = getattr(profile, constant) * factor
            value = int(value) if constant == "memory_bytes" else value
            path = _profile(folder, "gpu", gpu, resource, {constant: (value, profile.constants[constant].unit)})
            changed.append((resource, _changed(scenario, gpu={"profile": path})))
        if isinstance(system, HostDrivenSystem | CpuResidentSystem):
            host = HostEngineProfile.load(system.profile)
            times = {
                field.name: (
                    type(getattr(host, field.name))(getattr(host, field.name) / factor),
                    field.metadata["unit"],
                )
                for field in fields(host)
                if "unit" in field.metadata and field.name.endswith(HOST_TIMES)
            }
            path = _profile(folder, "host-engine", system.profile, "host", times)
            changed.append(("host", _changed(scenario, system={"profile": path}, **_fewer_jobs(scenario, factor))))
        if isinstance(system, HostDrivenSystem):
            more = {"max_num_seqs": round(system.max_num_seqs * factor)}
            if system.max_num_batched_tokens < more["max_num_seqs"]:
                more["max_num_batched_tokens"] = more["max_num_seqs"]
            changed.append(("batch", _changed(scenario, system=more)))
        else:
            changed.append(
                ("batch", _changed(scenario, limits={"batch_max": round(scenario.limits.batch_max * factor)}))
            )
        yield changed


def _fewer_jobs(scenario: Scenario, factor: float) -> dict[str, dict[str, Any]]:
    """More of the host's CPU beside other jobs is also fewer of these."""
    mix = scenario.interference
    threads = mix.threads if mix.threads is not None else sum(job.threads for job in mix.jobs)
    measured = any(job.file is not None for job in mix.jobs)  # which cannot be scaled
    return {"interference": {"threads": int(threads / factor)}} if threads and not measured else {}


def _profile(folder: Path, kind: str, base: str, name: str, constants: dict[str, tuple[Any, str]]) -> str:
    """A profile that carries all over from `base` but these constants; its path."""
    source = profile_path(kind, base)
    origin = source.stem if source.parent.parent == SHIPPED else source.resolve().as_posix()
    lines = [f'profile = "{kind}"', f'name = "{name}"', f'description = "More {name}."', f'carry_over = "{origin}"']
    lines.append("[constants]")
    for constant, (value, unit) in constants.items():
        entry = f'value = {value!r}, unit = "{unit}", kind = "assumed", source = "a little more, to see what binds"'
        lines.append(f"{constant} = {{ {entry} }}")
    path = folder / f"{kind}-more-{name}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.as_posix()


def _changed(scenario: Scenario, **tables: dict[str, Any]) -> Scenario:
    document = scenario.resolved()
    for name, values in tables.items():
        document[name] = {**document[name], **values}
    return parse_scenario(document, scenario.name)
