"""The answer of a question, as plain data: the cheapest fleet, the runner-up, the frontier, what binds, how sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink.plan.capacity.binding import RESOURCES, Relief, binding, relieve
from blink.plan.capacity.day import over_day, over_growth
from blink.plan.capacity.isolation import isolation
from blink.plan.capacity.measure import Objective
from blink.plan.capacity.order import order_words
from blink.plan.capacity.search import CapacitySearch, Trial, label, shown
from blink.plan.capacity.settle import ranked, settle, within_caps
from blink.plan.capacity.simulated import simulated
from blink.plan.comparison import estimate, rounded
from blink.plan.interval import CONFIDENCE, mean_interval

Data = dict[str, Any]
VERSION = 1
FIGURES = ("median_ttft_ms", "median_tpot_ms", "output_tokens_per_s", "gpu_busy", "gpu_memory", "gpu_compute")


def answered(search: CapacitySearch) -> Data:
    """Everything that is printed, reported and kept in plan.json; runs what the answer still needs."""
    question, caps = search.question, search.question.limits
    settled = settle(search)
    best, order = settled.best, ranked(search)
    others = [trial for trial in order if trial is not best and within_caps(search, trial)]
    other = next((trial for trial in others if best and _hardware(trial) != _hardware(best)), None)
    data: Data = {
        "version": VERSION,
        "name": question.name,
        "description": question.description,
        "question": question.model_dump(mode="json", exclude_none=True),
        "peak_rate": question.traffic.peak_rate,
        "growth": rounded(question.traffic.growth),
        "simulated": simulated(question) + ".",
        "seeds": list(search.seeds),
        "confidence": CONFIDENCE,
        "objectives": [_objective(one) for one in search.objectives],
        "best": _fleet(search, best) if best else None,
        "runner_up": _runner_up(search, best, other) if best and other else None,
        "binds": _binds(search, best) if best else None,
        "isolation": isolation(search) if best else None,
        "day": over_day(search, best, settled.day) if best and settled.day else None,
        "months": over_growth(search, best, settled.growth) if best and settled.growth else None,
    }
    if best:
        most = question.search.cost_ratio_max * search.usd_per_month(best)
        search.run_more([(trial, trial.replicas + 1) for trial in order if trial.replicas and _room(trial, most)])
    fleets = _fleets(search, order)
    data["frontier"] = frontier(fleets)
    data["frontier_under_cap"] = (
        None
        if caps.power_kw_max is None
        else frontier([fleet for fleet in fleets if fleet["wall_kw"] <= caps.power_kw_max])
    )
    data["fleets"] = fleets
    data["candidates"] = [_candidate(search, trial) for trial in search.trials]
    data["run_count"] = search.run_count
    data["notes"] = _notes(search)
    data["answer"] = _sentence(search, best, data["day"], data["months"])
    return data


def _hardware(trial: Trial) -> tuple[Any, ...]:
    """What a runner-up must differ in: what runs on what, whatever else is on the hosts."""
    key = dict(trial.candidate.key)
    return tuple(value for name, value in key.items() if name != "interference")


def _room(trial: Trial, usd_max: float) -> bool:
    """Whether one replica more is worth a look."""
    more = (trial.replicas or 0) + 1
    return more <= trial.candidate.replicas_max and trial.candidate.usd_per_month(more, 0.0) <= usd_max


def _objective(objective: Objective) -> Data:
    return {
        "name": objective.name,
        "says": objective.says,
        "bound": objective.bound,
        "unit": objective.unit,
        "at_least": objective.at_least,
    }


# --- a fleet ---


def _fleet(search: CapacitySearch, trial: Trial, replicas: int | None = None) -> Data:
    count = replicas or trial.replicas or 1
    candidate, runs = trial.candidate, trial.runs[count]
    kw = search.wall_kw(trial, count)
    met = sum(search.meets(figures) for figures in runs.values())
    objectives = [_kept(objective, [runs[seed][objective.name] for seed in runs]) for objective in search.objectives]
    return {
        "key": dict(candidate.key),
        "label": label(candidate),
        "replicas": count,
        "gpus": count * candidate.gpus,
        "hosts": candidate.hosts(count),
        "reserved_threads": candidate.reserved_threads(count),
        "free_threads": candidate.free_threads(count),
        "usd_per_month": rounded(candidate.usd_per_month(count, kw)),
        "wall_kw": rounded(kw),
        "objectives": objectives,
        "runs": len(runs),
        "runs_met": met,
        "sure": met == len(runs) and all(one["sure"] for one in objectives),
        "figures": {
            name: estimate(mean_interval([one[name] for one in runs.values()]), [one[name] for one in runs.values()])
            for name in FIGURES
        },
    }


def _kept(objective: Objective, values: Sequence[float | None]) -> Data:
    """By how much an objective is kept, over the seeds; `sure` if its confidence interval leaves the bound out."""
    found = mean_interval(values)
    if found is None:
        return {"name": objective.name, "value": None, "margin": None, "sure": False}
    edge = found.low if objective.at_least else found.high
    return {
        "name": objective.name,
        "value": estimate(found, values),
        "margin": rounded(objective.margin(found.estimate)),
        "sure": edge is not None and objective.met(edge),
    }


def _runner_up(search: CapacitySearch, best: Trial, other: Trial) -> Data:
    fleet = _fleet(search, other)
    more = search.usd_per_month(other) - search.usd_per_month(best)
    kw = search.wall_kw(other) - search.wall_kw(best)
    gpus = fleet["gpus"] - (best.replicas or 1) * best.candidate.gpus
    why = f"{_fleet_words(fleet)} costs {more:,.0f} USD a month more ({more / search.usd_per_month(best):+.1%})"
    if gpus:
        why += f", with {abs(gpus)} GPU{'s' if abs(gpus) != 1 else ''} {'more' if gpus > 0 else 'fewer'}"
    else:
        threads = fleet["reserved_threads"] - best.candidate.reserved_threads(best.replicas or 1)
        why += ", with as many GPUs"
        if threads:
            why += f" and {abs(threads)} hardware threads {'more' if threads > 0 else 'fewer'} kept for it"
    why += f", and draws {abs(kw):.2f} kW {'more' if kw > 0 else 'less'}"
    less = (other.replicas or 1) - 1
    worst = search.worst(other, less) if less else None
    if worst is not None:
        why += f"; one replica less of it misses: {worst[0].says} is {shown(*worst)}"
    return {**fleet, "sentence": why + "."}


# --- what binds ---


def _binds(search: CapacitySearch, best: Trial) -> Data:
    less = (best.replicas or 1) - 1
    if not less:
        return {
            "resource": None,
            "replicas": 0,
            "sentence": "One replica is the least there is: nothing binds.",
            "reliefs": [],
        }
    search.run_more([(best, less)])
    if search.stands(best, less):
        return {
            "resource": None,
            "replicas": less,
            "sentence": f"One replica less keeps every objective at the busiest time: {best.raised[-1]}."
            if best.raised
            else "One replica less keeps every objective, too.",
            "reliefs": [],
        }
    worst = search.worst(best, less)
    reliefs = relieve(search, best, less)
    found = binding(reliefs)
    assert worst is not None
    figure = reliefs[0].value if reliefs else worst[1]
    sentence = f"With {less} replica{'s' if less > 1 else ''} {worst[0].says} is {shown(worst[0], figure)}"
    sentence += _relief_words(found, reliefs, worst[0])
    return {
        "resource": found.resource if found else None,
        "replicas": less,
        "runs": len(best.runs[less]),
        "runs_met": sum(search.meets(figures) for figures in best.runs[less].values()),
        "objective": worst[0].name,
        "worst": rounded(figure),
        "sentence": sentence,
        "reliefs": [
            {
                "resource": one.resource,
                "factor": rounded(one.factor),
                "value": rounded(one.value),
                "ratio": rounded(one.ratio),
                "meets": one.meets,
            }
            for one in reliefs
        ],
    }


def _relief_words(found: Relief | None, reliefs: Sequence[Relief], objective: Objective) -> str:
    if found is None:
        much = f"{reliefs[-1].factor:.1f} times as much of any one" if reliefs else "more of any one"
        return f". No resource binds alone: {much} changes little."
    if found.resource == "slots":
        return ". All slots of the ring are in use: they bind."
    also = [RESOURCES[one.resource] for one in reliefs if one.meets and one is not found]
    then = "would do" if found.meets else "helps most, and would not do"
    more = f"{found.factor:.1f} times as much of it {then} ({shown(objective, found.value)})"
    beside = f"; so would as much of {' or of '.join(also)}" if also else ""
    return f". What binds is {RESOURCES[found.resource]}: {more}{beside}."


# --- the frontier ---


def _fleets(search: CapacitySearch, order: Sequence[Trial]) -> list[Data]:
    """Every fleet that met the objectives with every seed: of each candidate the smallest, and one replica more."""
    found = []
    for trial in order:
        assert trial.replicas is not None
        counts = (trial.replicas, trial.replicas + 1)
        allowed = [count for count in counts if count <= trial.candidate.replicas_max]
        found += [_fleet(search, trial, count) for count in allowed if search.stands(trial, count)]
    return found


def frontier(fleets: Sequence[Data]) -> list[int]:
    """Places of the fleets that no other beats in cost, power and all latencies at once, by cost."""
    points = [_axes(fleet) for fleet in fleets]
    kept = [
        place
        for place, point in enumerate(points)
        if not any(_dominates(other, point) for i, other in enumerate(points) if i != place)
    ]
    return sorted(kept, key=lambda place: points[place])


def _axes(fleet: Data) -> tuple[float, ...]:
    latencies = [one for one in fleet["objectives"] if one["name"].endswith("_ms")]
    values = [one["value"]["mean"] for one in latencies]
    if not values:  # a goodput alone: the medians stand for the latency
        values = [fleet["figures"][name]["mean"] for name in ("median_ttft_ms", "median_tpot_ms")]
    return (fleet["usd_per_month"], fleet["wall_kw"], *values)


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


# --- words ---


def _candidate(search: CapacitySearch, trial: Trial) -> Data:
    state = trial.out_kind or ("stands" if trial.replicas is not None else "open")
    return {
        "key": dict(trial.candidate.key),
        "label": label(trial.candidate),
        "state": state,
        "replicas": trial.replicas,
        "replicas_bound": trial.bound.replicas if trial.bound else None,
        "bound": trial.bound.sentence if trial.bound else None,
        "ttft_floor_ms": _rounded(trial.bound.ttft_floor_ms) if trial.bound else None,
        "tpot_floor_ms": _rounded(trial.bound.tpot_floor_ms) if trial.bound else None,
        "why": trial.out,
        "usd_per_month": rounded(search.usd_per_month(trial)) if trial.replicas else None,
        "tried": {str(count): _tried(search, runs) for count, runs in sorted(trial.runs.items())},
    }


def _tried(search: CapacitySearch, runs: dict[int, Data]) -> Data:
    return {"runs": len(runs), "met": sum(search.meets(figures) for figures in runs.values())}


def _rounded(value: float | None) -> float | None:
    return None if value is None else rounded(value)


def _fleet_words(fleet: Data) -> str:
    count = fleet["replicas"]
    return f"{count} replica{'s' if count > 1 else ''} of {fleet['label']}"


def _sentence(search: CapacitySearch, best: Trial | None, day: Data | None, months: Data | None) -> str:
    if best is None:
        return _impossible(search)
    fleet = _fleet(search, best)
    kept = ", ".join(
        f"{objective.says} {one['value']['mean']:.1f} {objective.unit} of {objective.bound:g}"
        if objective.unit
        else f"{objective.says} {one['value']['mean']:.1%} (asked {objective.bound:.1%})"
        for objective, one in zip(search.objectives, fleet["objectives"], strict=True)
    )
    hosts = fleet["hosts"]
    text = (
        f"{_fleet_words(fleet)}: {fleet['gpus']} GPU{'s' if fleet['gpus'] > 1 else ''} in {hosts} "
        f"host{'s' if hosts > 1 else ''}, {fleet['usd_per_month']:,.0f} USD a month, "
        f"{fleet['wall_kw']:.2f} kW; {kept}. "
        f"{fleet['runs_met']} of {fleet['runs']} runs meet it"
    )
    less = (best.replicas or 1) - 1
    if less and less in best.runs:
        met = sum(search.meets(figures) for figures in best.runs[less].values())
        text += f", with one replica less {met} of {len(best.runs[less])}"
    text += order_words(search, best)
    if best.raised:
        text += f"; {best.raised[-1]}"
    sure = "no 95 % interval reaches its bound" if fleet["sure"] else "an interval over the seeds reaches its bound"
    over = " and ".join(name for name, time in (("hour of the day", day), ("month of growth", months)) if time)
    return f"{text}; {sure}." + (f" Every {over} keeps it, too." if over else "")


def _impossible(search: CapacitySearch) -> str:
    """Why nothing does it, in a sentence: the reason of the candidate that comes nearest."""
    question = search.question
    near = max(search.trials, key=lambda trial: (_nearness(trial), -trial.excess, -trial.candidate.index))
    count = len(search.trials)
    why = near.out or _over_caps(search, near)
    which = f"none of {count} candidates does it. The nearest, " if count > 1 else ""
    return f"{question.name} cannot be done: {which}{label(near.candidate)}: {why}."


def _over_caps(search: CapacitySearch, trial: Trial) -> str:
    caps = search.question.limits
    kw, usd = search.wall_kw(trial), search.usd_per_month(trial)
    if caps.power_kw_max is not None and kw > caps.power_kw_max:
        return f"needs {trial.replicas} replicas, which draw {kw:.2f} kW: the cap is {caps.power_kw_max:g} kW"
    return f"needs {trial.replicas} replicas, {usd:,.0f} USD a month: the cap is {caps.usd_per_month_max or 0:,.0f}"


def _nearness(trial: Trial) -> int:
    """What is over a cap comes nearer than what needs too many GPUs, this than what no number does or cannot run."""
    if trial.replicas is not None:
        return 5
    if trial.out_kind in ("cost", "power"):
        return 4
    if trial.bound is None:
        return 0
    if not trial.bound.impossible:
        return 3
    return 2 if trial.bound.replicas > trial.candidate.replicas_max else 1


def _notes(search: CapacitySearch) -> list[str]:
    """What a reader must know of the runs, once each."""
    said: dict[str, None] = {}
    for trial in search.standing():
        for figures in trial.runs.get(trial.replicas or 1, {}).values():
            said.update(dict.fromkeys(note for note in figures["notes"] if not note.startswith("stopped")))
    return list(said)
