"""The Python interface: `blink.run(scenario)`, `blink.sweep(scenario, ...)` and `blink.plan(question)`, typed.

A scenario is the path of a TOML file, plain data of that form, or a `Scenario`. Wrong input raises InputError, a
ValueError, with one line. Work in several processes starts each with a fresh interpreter, which imports the calling
script: keep the call behind `if __name__ == "__main__":` there, as with every use of `multiprocessing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from blink.common.config import Scenario, load_scenario, parse_scenario
from blink.common.distribution import Distribution
from blink.common.errors import InputError
from blink.common.metrics import Slo
from blink.common.optional import need
from blink.common.results import RunResult
from blink.common.summary import latencies, summarize
from blink.plan.interval import Interval
from blink.plan.sweep.question import ATTAINMENT
from blink.plan.sweep.row import Row

ScenarioLike = Scenario | Mapping[str, Any] | str | Path

__all__ = ["Curve", "Fleet", "InputError", "Plan", "Run", "Scenario", "Sweep", "load", "plan", "run", "sweep"]


class Frame:
    """What can be read as a data frame."""

    def to_arrow(self) -> Any:
        """A pyarrow Table."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """A pandas DataFrame; needs `pip install 'blink-twin[frames]'`."""
        need("pandas", "to_pandas", "frames")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A polars DataFrame; needs `pip install 'blink-twin[frames]'`."""
        return need("polars", "to_polars", "frames").from_arrow(self.to_arrow())


@dataclass(frozen=True, eq=False)
class Run(Frame):
    """One simulated run."""

    scenario: Scenario
    result: RunResult

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `blink run` keeps as summary.json."""
        return summarize(self.result)

    @cached_property
    def latencies(self) -> dict[str, Distribution]:
        """`ttft`, `tpot`, `itl` and `e2el` in ns: their `mean()`, `percentile(990)` and so on."""
        return latencies(self.result)

    def to_arrow(self) -> Any:
        """One row a request: the columns of requests.parquet."""
        from blink.report.rundir import requests_table

        return requests_table(self.result)


@dataclass(frozen=True, slots=True)
class Curve:
    """What one combination of a sweep's axes can serve, over the rates that were run; rates in requests/s.

    `saturation_rate` is where its linear part ends, None if no rate that was run is too much. `headroom` is the share
    by which the scenario's own load may grow, at least that much if `saturation_rate` is None. `state` is `free`,
    `tight`, `saturated`, `kept` or `unknown`.
    """

    label: str
    key: Mapping[str, Any]
    state: str
    sentence: str
    headroom: float | None
    saturation_rate: Interval | None
    serviceable_rate: float | None
    plateau_tokens_per_s: Interval | None
    failed: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Sweep(Frame):
    """A sweep: `data` is what `blink sweep` keeps as sweep.json, `rows` one flat row a run."""

    data: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def answer(self) -> str:
        """Who bears which load, in a sentence."""
        return str(self.data["answer"])

    @cached_property
    def curves(self) -> list[Curve]:
        """One for each combination of the axes without the rate, in their order."""
        return [_curve(found) for found in self.data["curves"]]

    def to_arrow(self) -> Any:
        """One row a run: its axes, seed, figures and whole summary as JSON."""
        from blink.plan.sweep.store import to_table

        return to_table(self.rows, {})


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet that meets the objectives of a question. `sure`: no confidence interval reaches its bound."""

    label: str
    key: Mapping[str, Any]
    replicas: int
    gpus: int
    hosts: int
    reserved_threads: int
    usd_per_month: float
    wall_kw: float
    margins: Mapping[str, float]
    sure: bool


@dataclass(frozen=True, eq=False)
class Plan(Frame):
    """The answer of a question: `data` is what `blink plan` keeps as plan.json."""

    data: Mapping[str, Any]

    @property
    def answer(self) -> str:
        """The answer in a sentence, also where it cannot be done."""
        return str(self.data["answer"])

    @cached_property
    def best(self) -> Fleet | None:
        """The cheapest fleet; None if no candidate does it."""
        return None if self.data["best"] is None else _fleet(self.data["best"])

    @cached_property
    def runner_up(self) -> Fleet | None:
        """The next one, of another kind."""
        return None if self.data["runner_up"] is None else _fleet(self.data["runner_up"])

    @cached_property
    def frontier(self) -> list[Fleet]:
        """The fleets that no other beats in cost, power and latency at once, by cost."""
        return [_fleet(self.data["fleets"][place]) for place in self.data["frontier"]]

    def to_arrow(self) -> Any:
        """One row a candidate: its key, how it ended, the bound, the replicas, the cost, why it is out."""
        import pyarrow as pa

        names = ("state", "replicas_bound", "replicas", "usd_per_month", "ttft_floor_ms", "tpot_floor_ms", "why")
        rows = [{**one["key"], **{name: one[name] for name in names}} for one in self.data["candidates"]]
        return pa.Table.from_pylist(rows)


def load(scenario: ScenarioLike, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario, checked; each override is `table.key=value`, as `--set` takes it."""
    if isinstance(scenario, Scenario):
        return parse_scenario(scenario.resolved(), scenario.name, overrides)
    if isinstance(scenario, Mapping):
        return parse_scenario(dict(scenario), "scenario", overrides)
    return load_scenario(scenario, overrides)


def run(scenario: ScenarioLike, *, overrides: Sequence[str] = (), trace: str | Path | None = None) -> Run:
    """Simulate a scenario here. `trace` is the file for the trace of its events, .parquet or .ndjson."""
    from blink.sim.run import simulate
    from blink.workload.build import build_load

    checked, requests = build_load(load(scenario, overrides))
    return Run(checked, simulate(checked, requests, trace_path=None if trace is None else Path(trace)))


def sweep(
    scenario: ScenarioLike,
    *,
    rates: Sequence[float] | str = (),
    systems: Sequence[str] = (),
    over: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    duration_s: float | None = None,
    slo: Mapping[str, Slo] | None = None,
    attainment: float = ATTAINMENT,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    cluster: str | None = None,
    out: str | Path | None = None,
    progress: bool = False,
) -> Sweep:
    """Run a scenario at every combination of rates and axes: what `blink sweep` does, under the same names.

    `rates`: numbers, or the text that `--rate` takes. `over`: axis -> values. `slo`: name -> objective. With `out`
    every run is kept there as soon as it is done, and only those that are missing are made.
    """
    from blink.plan.sweep.answer import answered
    from blink.plan.sweep.folder import SweepFolder
    from blink.plan.sweep.grid import Grid, parse_rates
    from blink.plan.sweep.question import Question
    from blink.plan.sweep.run import make
    from blink.plan.sweep.slo import SloClass, classes_of
    from blink.plan.variant import with_duration
    from blink.report.progress import work_bar

    base = load(scenario, overrides)
    if duration_s is not None:
        base = with_duration(base, duration_s)
    axes = {**(over or {}), **({"system": systems} if systems else {})}
    grid = Grid.of(axes, parse_rates(rates) if isinstance(rates, str) else rates, seeds)
    classes = classes_of(base, [SloClass(name, one) for name, one in (slo or {}).items()])
    question = Question(base, grid, classes, attainment)
    points = question.points
    folder = SweepFolder.prepare(out) if out is not None else None
    try:
        with work_bar(base.name, "runs", progress) as bar:
            made = make(question, folder.path if folder else None, workers=workers, cluster=cluster, progress=bar)
    except BaseException:
        if folder:
            folder.discard()
        raise
    assert len(made.rows) == len(points)
    data = answered(question, made)
    if folder:
        folder.write(question, data)
    return Sweep(data, made.rows)


def plan(
    question: Mapping[str, Any] | str | Path,
    *,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = False,
) -> Plan:
    """Answer a question of capacity: what `blink plan` does. The question is the path of a TOML file, or plain data."""
    from blink.plan.capacity.question import load_question, parse_question
    from blink.plan.capacity.run import plan as answer
    from blink.report.plan_folder import write_plan
    from blink.report.progress import note_line
    from blink.report.rundir import RunDir

    asked = parse_question(dict(question), "question") if isinstance(question, Mapping) else load_question(question)
    folder = RunDir.prepare(out) if out is not None else None
    try:
        with note_line(asked.name, "runs", progress) as line:
            data = answer(asked, workers=workers, progress=line)
        if folder:
            write_plan(folder, data)
    finally:
        if folder:
            folder.discard()
    return Plan(data)


def _fleet(found: Mapping[str, Any]) -> Fleet:
    names = ("label", "key", "replicas", "gpus", "hosts", "reserved_threads", "usd_per_month", "wall_kw", "sure")
    margins = {one["name"]: one["margin"] for one in found["objectives"]}
    return Fleet(**{name: found[name] for name in names}, margins=margins)


def _curve(found: Mapping[str, Any]) -> Curve:
    load_found, verdict = found["load"] or {}, found["verdict"]
    return Curve(
        label=found["label"],
        key=found["key"],
        state=verdict["state"],
        sentence=verdict["sentence"],
        headroom=verdict["headroom"]["share"] if verdict.get("headroom") else None,
        saturation_rate=_interval(load_found.get("saturation_rate")),
        serviceable_rate=load_found.get("serviceable_rate"),
        plateau_tokens_per_s=_interval(load_found.get("plateau_tokens_per_s")),
        failed=found["failed"],
    )


def _interval(found: Mapping[str, Any] | None) -> Interval | None:
    return None if found is None else Interval(found["mean"], found["low"], found["high"])
