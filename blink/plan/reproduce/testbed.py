"""The runs behind the published figures: which scenarios, at which rates, with which jobs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from blink.common.config import Scenario, parse_scenario
from blink.common.profile import read_toml
from blink.common.results import RunResult
from blink.common.units import NS_PER_S
from blink.plan import variant
from blink.plan.point import Point
from blink.plan.reproduce.facts import PUBLISHED
from blink.plan.reproduce.window import Figures, figures
from blink.workload.requests import Requests

ISOLATED, INTERFERED = "isolated", "interfered"
LEVELS = {ISOLATED: "none", INTERFERED: "colocated"}
Key = tuple[str, ...]
"""What kind of run it is, and what distinguishes it from others of its kind; the seed is not part of it."""


@dataclass(frozen=True, slots=True)
class Run(Point):
    """One run of a point of the testbed, `at`; `duration_ns` and `warmup_ns` are the load generator's (window.py)."""

    at: Key
    duration_ns: int | None
    warmup_ns: int

    @classmethod
    def of(cls, at: Key, seed: int, scenario: Scenario, duration_ns: int | None = None, warmup_ns: int = 0) -> Run:
        """With the scenario's seed changed to this one."""
        key = (("run", " ".join(at)), ("seed", seed))
        return cls(key, variant.with_seed(scenario, seed), at, duration_ns, warmup_ns)

    def summarize(self, result: RunResult, requests: Requests) -> Figures:
        """The figures that the load generator reports."""
        return figures(result, self.duration_ns, self.warmup_ns, int(requests.output_tokens.sum()))


@dataclass(frozen=True, slots=True)
class Testbed:
    """testbed.toml, with what the command line changes: `seeds` runs of each point, each `duration_s` long."""

    document: dict[str, Any]
    rates: tuple[float, ...]
    threads: tuple[int, ...]
    duration_s: float
    seeds: int
    quick: bool

    @classmethod
    def load(cls, *, quick: bool = False, seeds: int | None = None, duration_s: float | None = None) -> Testbed:
        """The published testbed, or with `quick` few rates and short runs, which show only that it works."""
        document = read_toml(PUBLISHED / "testbed.toml", "testbed.toml")
        load, few = document["load"], document["quick"]
        bed = cls(
            document,
            tuple(load["rates"]),
            tuple(document["sweep"]["threads"]),
            load["duration_s"],
            load["seeds"],
            quick,
        )
        if quick:
            bed = replace(
                bed,
                rates=tuple(few["rates"]),
                threads=tuple(few["threads"]),
                duration_s=few["duration_s"],
                seeds=few["seeds"],
            )
        return replace(bed, seeds=seeds or bed.seeds, duration_s=duration_s or bed.duration_s)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the model profiles."""
        return tuple(self.document["load"]["models"])

    @property
    def systems(self) -> tuple[str, ...]:
        """Blink first."""
        return tuple(self.document["load"]["systems"])

    @property
    def engines(self) -> tuple[str, ...]:
        """The host-driven ones."""
        return self.systems[1:]

    def scenario(self, model: str, rate: float) -> Scenario:
        """Blink on the testbed, alone, with the published lengths."""
        workload = {
            "duration_s": float(self.duration_s),
            "arrivals": {"kind": "poisson", "rate": float(rate)},
            "lengths": {"kind": "sharegpt-like"},
        }
        return self._base(model, workload)

    def _base(self, model: str, workload: dict[str, Any], **sections: Any) -> Scenario:
        document = {**self.document["scenario"], "model": {"profile": model}, "workload": workload, **sections}
        return parse_scenario(document, "testbed.toml")

    def runs(self, kinds: frozenset[str]) -> tuple[Run, ...]:
        """Every run of these kinds, in a fixed order."""
        makers = {
            "load": self._load_runs,
            "sweep": self._sweep_runs,
            "motivation": self._motivation_runs,
            "mitigation": self._mitigation_runs,
            "makespan": self._makespan_runs,
        }
        return tuple(run for kind, maker in makers.items() if kind in kinds for run in maker())

    def _timed(self, key: Key, scenario: Scenario, seeds: int | None = None) -> Iterator[Run]:
        duration_ns = round(self.duration_s * NS_PER_S)
        warmup_ns = round(duration_ns * self.document["load"]["warmup_share"])
        for seed in range(1, (seeds or self.seeds) + 1):
            yield Run.of(key, seed, scenario, duration_ns, warmup_ns)

    def _at_least(self, table: dict[str, Any]) -> int:
        """Seeds of a few points that are cheap to repeat."""
        return self.seeds if self.quick else max(self.seeds, table["seeds"])

    def _load_runs(self) -> Iterator[Run]:
        for model in self.models:
            for rate in self.rates:
                plain = self.scenario(model, rate)
                for system in self.systems:
                    served = variant.with_system(plain, system)
                    for condition, level in LEVELS.items():
                        key = ("load", model, system, condition, f"{rate:g}")
                        yield from self._timed(key, variant.with_interference(served, level))

    def _sweep_runs(self) -> Iterator[Run]:
        sweep = self.document["sweep"]
        for system in self.systems:
            served = variant.with_system(self.scenario(sweep["model"], sweep["rate"]), system)
            for threads in self.threads:
                key = ("sweep", system, str(threads))
                yield from self._timed(key, variant.with_threads(served, threads), self._at_least(sweep))

    def _motivation_runs(self) -> Iterator[Run]:
        wanted = self.document["motivation"]
        alone = variant.with_system(self.scenario(wanted["model"], wanted["rate"]), wanted["system"])
        jobs = {"jobs": [{"profile": wanted["job"], "threads": wanted["threads"]}]}
        beside = parse_scenario({**alone.resolved(), "interference": jobs}, "testbed.toml")
        for condition, scenario in ((ISOLATED, alone), (INTERFERED, beside)):
            yield from self._timed(("motivation", condition), scenario, self._at_least(wanted))

    def _mitigation_runs(self) -> Iterator[Run]:
        for name, scenario in self.mitigated().items():
            for seed in range(1, self._at_least(self.document["mitigations"]) + 1):
                yield Run.of(("mitigation", name), seed, scenario)

    def mitigated(self) -> dict[str, Scenario]:
        """`isolated`, `interfered`, and one scenario for each mitigation beside the same jobs."""
        wanted = self.document["mitigations"]
        workload = {
            "requests": wanted["requests"],
            "arrivals": {"kind": "poisson", "rate": float(wanted["rate"])},
            "lengths": {
                "kind": "fixed",
                "prompt_tokens": wanted["prompt_tokens"],
                "output_tokens": wanted["output_tokens"],
            },
        }
        isolated = variant.with_system(self._base(wanted["model"], workload), wanted["system"])
        beside = variant.with_threads(isolated, wanted["threads"])
        mix = {**beside.resolved()["interference"], "placement": wanted["placement"]}
        beside = parse_scenario({**beside.resolved(), "interference": mix}, "testbed.toml")
        names = ("huge_pages_victim", "huge_pages_interferer", "nice", *(f"cat={ways}" for ways in wanted["ways"]))
        mitigated = {name: variant.with_mitigations(beside, [name]) for name in names}
        return {ISOLATED: isolated, INTERFERED: beside, **mitigated}

    def _makespan_runs(self) -> Iterator[Run]:
        wanted = self.document["makespan"]
        for output in wanted["output_tokens"]:
            workload = {
                "requests": wanted["requests"],
                "arrivals": {"kind": "all-at-once"},
                "lengths": {"kind": "fixed", "prompt_tokens": wanted["prompt_tokens"], "output_tokens": output},
            }
            limits = {**self.document["scenario"]["limits"], "batch_max": wanted["batch"]}
            plain = self._base(wanted["model"], workload, limits=limits)
            for system in ("blink", "cpu-resident"):
                yield Run.of(("makespan", system, str(output)), 1, variant.with_system(plain, system))
