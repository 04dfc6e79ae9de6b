"""Variants of a scenario: one question with one thing changed. Every function returns a new, validated scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink.common.config import Scenario, parse_scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.errors import InputError
from blink.common.states import SLOT_COUNT
from blink.perf.gpu import GpuProfile
from blink.perf.host.colocation import Colocation
from blink.perf.host.profile import HostProfile
from blink.perf.shape import ModelShape

SYSTEM_KINDS = ("blink", "cpu-resident", "trtllm", "vllm", "sglang")
INTERFERENCE_LEVELS = ("none", "colocated")
COLOCATION = "published"
"""The mix of jobs beside an engine whose scenario names none."""

NO_MITIGATION = "none"
MITIGATIONS: dict[str, tuple[str, Any]] = {
    "huge_pages_victim": ("huge_pages_victim", True),
    "huge_pages_interferer": ("huge_pages_interferer", True),
    "pinning": ("pinning", True),
    "dedicated_cores": ("dedicated_cores", True),
    "cat": ("cat_ways", 7),
    "nice": ("nice", -20),
}
"""Name on the command line -> option of [mitigations] and the value that the bare name stands for.

The two numbers are those whose counters were published (arXiv 2604.07609); `cat=4` and `nice=-5` give others.
"""

_SHARED = ("max_num_seqs", "max_num_batched_tokens", "cuda_graphs", "chunked_prefill", "prefix_caching")
_STEP_TOKENS = 8192


def with_system(scenario: Scenario, kind: str) -> Scenario:
    """The same workload, model, GPU, host, jobs and limits, served by another stack in its shipped version.

    A scenario of that kind already is returned as it is. What else is equal:

    - sequences that run together at most: `limits.batch_max` and `max_num_seqs` stand for one another;
    - from Blink to a host-driven engine: no chunked prefill and no prefix caching, which Blink has not either (the
      published comparison turned both off), and steps that hold any prompt that Blink would take;
    - from one host-driven engine to another: `max_num_seqs`, `max_num_batched_tokens`, `num_gpu_blocks`, CUDA graphs,
      chunked prefill and prefix caching stay. How an engine overlaps its steps and reserves KV blocks is its own.

    Raises InputError for an unknown kind, and if the scenario's own shapes do not allow the change.
    """
    if kind not in SYSTEM_KINDS:
        raise InputError(f"system {kind!r} is not known; allowed: {', '.join(SYSTEM_KINDS)}")
    system = scenario.system
    if system.kind == kind:
        return scenario
    host_driven = kind not in ("blink", "cpu-resident")
    if isinstance(system, HostDrivenSystem):
        if not host_driven:
            limits = {**scenario.resolved()["limits"], "batch_max": min(system.max_num_seqs, SLOT_COUNT)}
            return _changed(scenario, system={"kind": kind}, limits=limits)
        kept = {name: getattr(system, name) for name in _SHARED}
        if system.num_gpu_blocks is not None:
            kept["num_gpu_blocks"] = system.num_gpu_blocks
        return _changed(scenario, system={"kind": kind, **kept})
    if not host_driven:
        return _changed(scenario, system={"kind": kind})
    limits_now = scenario.limits
    settings = {
        "max_num_seqs": limits_now.batch_max,
        "max_num_batched_tokens": max(_STEP_TOKENS, limits_now.prompt_capacity_tokens, limits_now.batch_max),
        "chunked_prefill": False,
        "prefix_caching": False,
    }
    return _changed(scenario, system={"kind": kind, **settings})


def with_interference(scenario: Scenario, level: str) -> Scenario:
    """`none`: no other job. `colocated`: the scenario's own jobs, or the published mix if it has none.

    The published mix takes the hardware threads that `host.reserved_cores` leaves, as far as its 90 threads go: a
    smaller host gets fewer, in the same proportion. Raises InputError for another level, and for a host on which no
    thread is left.
    """
    if level not in INTERFERENCE_LEVELS:
        raise InputError(f"interference {level!r} is not known; allowed: {', '.join(INTERFERENCE_LEVELS)}")
    if level == "none":
        return _changed(scenario, interference={})
    if _has_jobs(scenario):
        return scenario
    mix = Colocation.load(COLOCATION)
    jobs: dict[str, Any] = {"jobs": [{"profile": job, "threads": count} for job, count in mix.threads.items()]}
    room = threads_max(scenario)
    if room < sum(mix.threads.values()):
        if room < 1:
            raise InputError(
                f"host.reserved_cores = {scenario.host.reserved_cores}: no hardware thread of "
                f"{scenario.host.profile} is left for other jobs"
            )
        jobs["threads"] = room
    return _changed(scenario, interference={"placement": scenario.interference.placement, **jobs})


def with_threads(scenario: Scenario, threads: int) -> Scenario:
    """The jobs of `colocated`, with this many threads in all; 0 is `none`.

    Raises InputError for more threads than the host has beside the reserved ones, and for jobs that are a file of
    measurements, which cannot be scaled.
    """
    most = threads_max(scenario)
    if not 0 <= threads <= most:
        raise InputError(
            f"{threads} interferer threads are not allowed; allowed: 0 to {most}, the hardware threads of "
            f"{scenario.host.profile} beside {scenario.host.reserved_cores} reserved"
        )
    colocated = with_interference(scenario, "colocated").resolved()["interference"]
    if not threads and not any("file" in job for job in colocated["jobs"]):
        return with_interference(scenario, "none")
    return _changed(scenario, interference={**colocated, "threads": threads})


def with_rate(scenario: Scenario, rate_per_s: float) -> Scenario:
    """The same arrival process at another mean rate, in requests/s.

    Raises InputError for a load that has no rate: a closed loop, all requests at once, a trace with times of its own.
    """
    workload = scenario.resolved()["workload"]
    arrivals = workload.get("arrivals")
    if not arrivals or "rate" not in arrivals:
        kind = arrivals["kind"] if arrivals else "trace"
        more = "; a trace has workload.trace.rate_scale" if "trace" in workload else ""
        raise InputError(f"rate {rate_per_s:g}: workload.arrivals of kind {kind} has no rate{more}")
    return _changed(scenario, workload={**workload, "arrivals": {**arrivals, "rate": float(rate_per_s)}})


def with_model(scenario: Scenario, name: str) -> Scenario:
    """Another model: a shipped profile, the path of one, or a `config.json`. Raises InputError for one not known."""
    ModelShape.load(name)
    model = {key: value for key, value in scenario.resolved()["model"].items() if key not in ("profile", "hf_config")}
    return _changed(scenario, model={("hf_config" if name.endswith(".json") else "profile"): name, **model})


def with_gpu(scenario: Scenario, name: str) -> Scenario:
    """Another GPU, as many of them: a shipped profile or the path of one. Raises InputError for one not known."""
    GpuProfile.load(name)
    return _changed(scenario, gpu={**scenario.resolved()["gpu"], "profile": name})


def with_option(scenario: Scenario, dotted: str, value: str) -> Scenario:
    """Another value of one option, such as `limits.batch_max`, in TOML or as text, as `--set` takes it."""
    return parse_scenario(scenario.resolved(), scenario.name, [("--over", f"{dotted}={value}")])


def with_duration(scenario: Scenario, duration_s: float) -> Scenario:
    """Requests are sent for so long, however many. Raises InputError for a load that is not drawn over time."""
    workload = {key: value for key, value in scenario.resolved()["workload"].items() if key != "requests"}
    return _changed(scenario, workload={**workload, "duration_s": float(duration_s)})


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """The same with other random numbers. Two systems with the same seed are sent the same requests."""
    return _changed(scenario, seed=seed)


def with_requests(scenario: Scenario, count: int) -> Scenario:
    """The first `count` requests at most, drawn or of a trace."""
    workload = scenario.resolved()["workload"]
    return _changed(scenario, workload={**workload, "requests": min(count, workload.get("requests", count))})


def with_mitigations(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """These mitigations in place of the scenario's own: names of MITIGATIONS, or `cat=WAYS`, `nice=LEVEL`.

    `none` alone, or no name, turns all off. Raises InputError for an unknown name and for a value out of range.
    """
    options: dict[str, Any] = {}
    for text in names:
        name, separator, value = text.partition("=")
        if name == NO_MITIGATION and len(names) == 1 and not separator:
            continue
        if name not in MITIGATIONS:
            allowed = ", ".join((NO_MITIGATION, *MITIGATIONS))
            raise InputError(f"mitigation {text!r} is not known; allowed: {allowed}, several joined by +")
        option, default = MITIGATIONS[name]
        if option in options:
            raise InputError(f"mitigation {text!r}: {name} is given twice")
        options[option] = _number(text, value, default) if separator else default
    return _changed(scenario, mitigations=options)


def threads_max(scenario: Scenario) -> int:
    """Hardware threads of the scenario's host beside the reserved ones."""
    return max(0, HostProfile.load(scenario.host.profile).thread_count - scenario.host.reserved_cores)


def _has_jobs(scenario: Scenario) -> bool:
    mix = scenario.interference
    return bool(mix.jobs) and mix.threads != 0 and any(job.threads for job in mix.jobs)


def _number(text: str, value: str, default: Any) -> int:
    try:
        number = int(value)
    except ValueError:
        number = None
    if number is None or isinstance(default, bool):
        raise InputError(f"mitigation {text!r}: allowed: cat=WAYS and nice=LEVEL, whole numbers")
    return number


def _changed(scenario: Scenario, **sections: Any) -> Scenario:
    """The scenario with these sections in place of its own, checked as if it had been read from a file."""
    return parse_scenario({**scenario.resolved(), **sections}, scenario.name)
