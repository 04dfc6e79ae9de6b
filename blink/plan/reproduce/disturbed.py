"""Facts about runs beside other jobs: over Blink's pre-saturation range, plateaus, mitigations."""

from __future__ import annotations

from itertools import product

from blink.perf.host.conditions import HostCounters
from blink.perf.host.scenario import host_conditions
from blink.plan.reproduce.evidence import BLINK, Evidence, geometric_mean
from blink.plan.reproduce.loaded import SHORT, energy_mj
from blink.plan.reproduce.predict import Prediction, Registry, gathered, one, register
from blink.plan.reproduce.testbed import INTERFERED, ISOLATED
from blink.sim.engines.run import LAYOUTS

DISTURBED: Registry = {}
BOTH = (ISOLATED, INTERFERED)
MEANS = {"TTFT": "mean_ttft_ms", "TPOT": "mean_tpot_e2e_ms"}


def retained(evidence: Evidence, model: str, system: str) -> float:
    """Throughput beside the jobs over that alone: geometric mean over Blink's pre-saturation rates."""
    rates = evidence.before_saturation(model, INTERFERED)
    return geometric_mean(_retained_at(evidence, model, system, rate) for rate in rates)


def _retained_at(evidence: Evidence, model: str, system: str, rate: float) -> float:
    alone, beside = (evidence.throughput(evidence.at(model, system, condition, rate)) for condition in BOTH)
    return beside / alone


def _plateau_retained(evidence: Evidence, model: str, system: str) -> float:
    alone, beside = (evidence.plateau(model, system, condition) for condition in BOTH)
    return beside / alone


@register(DISTURBED, "interfered.blink", "load")
def _blink(evidence: Evidence) -> dict[str, Prediction]:
    def change(label: str) -> float:
        model, name = label.split(", ")
        if name == "throughput":
            return abs(retained(evidence, model, BLINK) - 1)
        return abs(evidence.inflation(model, BLINK, name, BOTH) - 1)

    def energy(model: str) -> float:
        alone, beside = (energy_mj(evidence, model, BLINK, condition) for condition in BOTH)
        return beside / alone - 1

    def mean(label: str) -> float:
        model, name = label.split(", ")
        return evidence.inflation(model, BLINK, name, BOTH)

    models = evidence.bed.models
    changes = [", ".join(pair) for pair in product(models, ("p99_ttft_ms", "p99_tpot_e2e_ms", "throughput"))]
    means = [", ".join(pair) for pair in product(models, ("mean_ttft_ms", "mean_tpot_e2e_ms"))]
    return {
        "ttft_tpot_throughput_change_max": gathered(changes, change),
        "energy_change_max": gathered(models, energy, "at the plateau"),
        "mean_latency_inflation": gathered(means, mean, "mean TTFT, mean TPOT"),
    }


@register(DISTURBED, "interfered.llama3_8b.baselines", "load")
def _engines(evidence: Evidence) -> dict[str, Prediction]:
    model, engines = SHORT["llama3_8b"], evidence.bed.engines

    def lost(engine: str) -> float:
        alone, beside = (evidence.serviceable(model, engine, condition) for condition in BOTH)
        return 1 - beside / alone if alone else 0.0

    return {
        "ttft": gathered(engines, lambda engine: evidence.inflation(model, engine, "p99_ttft_ms", BOTH)),
        "tpot": gathered(engines, lambda engine: evidence.inflation(model, engine, "p99_tpot_e2e_ms", BOTH)),
        "throughput_retained": gathered(engines, lambda engine: retained(evidence, model, engine)),
        "serviceable_load_lost": gathered(engines, lost, "of the rates that were run"),
    }


@register(DISTURBED, "interfered.all.plateau_retained", "load")
def _plateaus(evidence: Evidence) -> dict[str, Prediction]:
    def kept(label: str) -> float:
        return _plateau_retained(evidence, *label.split())

    def ahead(label: str) -> float:
        model, engine = label.split()
        return evidence.plateau(model, BLINK, INTERFERED) / evidence.plateau(model, engine, INTERFERED)

    labels = _pairs(evidence)
    return {"value": gathered(labels, kept), "blink_plateau_over_theirs": gathered(labels, ahead)}


@register(DISTURBED, "interfered.all.mean_latency_inflation_baselines", "load")
def _means(evidence: Evidence) -> dict[str, Prediction]:
    def inflation(label: str) -> float:
        model, engine, name = label.split()
        return evidence.inflation(model, engine, MEANS[name], BOTH)

    labels = [f"{pair} {name}" for pair in _pairs(evidence) for name in MEANS]
    return {"value": gathered(labels, inflation, "mean TTFT, mean TPOT")}


@register(DISTURBED, "figure1.qwen3_30b_a3b_4rps.retained", "load")
def _at_four(evidence: Evidence) -> dict[str, Prediction]:
    model = SHORT["qwen3_30b_a3b"]
    return {"value": gathered(evidence.bed.engines, lambda engine: _retained_at(evidence, model, engine, 4))}


def _pairs(evidence: Evidence) -> list[str]:
    return [" ".join(pair) for pair in product(evidence.bed.models, evidence.bed.engines)]


@register(DISTURBED, "mitigation.isolated_reference", "mitigation")
def _reference(evidence: Evidence) -> dict[str, Prediction]:
    key, wanted = ("mitigation", ISOLATED), evidence.bed.document["mitigations"]
    tokens = wanted["requests"] * (wanted["prompt_tokens"] + wanted["output_tokens"])
    return {
        "throughput_tok_s": one(tokens / evidence.figure(key, "makespan_s"), "tokens of prompts and outputs"),
        "mean_tpot_ms": one(evidence.figure(key, "mean_tpot_ms")),
        "llc_miss_rate": one(_counters(evidence, ISOLATED).llc_miss_rate),
    }


@register(DISTURBED, "mitigation.victim_2mb_pages", "mitigation")
def _victim_pages(evidence: Evidence) -> dict[str, Prediction]:
    name = "huge_pages_victim"
    misses = [_counters(evidence, case).dtlb_misses_ratio for case in (INTERFERED, name)]
    return {"dtlb_load_misses_change": one(misses[1] / misses[0] - 1), **_effects(evidence, name)}


@register(DISTURBED, "mitigation.interferer_1gb_pages", "mitigation")
def _interferer_pages(evidence: Evidence) -> dict[str, Prediction]:
    name = "huge_pages_interferer"
    rates = [_counters(evidence, case).llc_miss_rate for case in (INTERFERED, name)]
    return {
        "p99_itl_change": _effects(evidence, name)["p99_itl_change"],
        "llc_miss_rate_change": one(rates[1] / rates[0] - 1),
    }


@register(DISTURBED, "mitigation.nice_minus_20", "mitigation")
def _nice(evidence: Evidence) -> dict[str, Prediction]:
    return _effects(evidence, "nice")


@register(DISTURBED, "mitigation.cat", "mitigation")
def _cache_ways(evidence: Evidence) -> dict[str, Prediction]:
    ways = [f"cat={count}" for count in evidence.bed.document["mitigations"]["ways"]]
    plain, seven = _counters(evidence, INTERFERED), _counters(evidence, "cat=7")
    itl = gathered(ways, lambda name: evidence.figure(("mitigation", name), "p99_itl_ms"), "by ways")
    return {
        "llc_miss_rate_7_ways": one(seven.llc_miss_rate),
        "llc_miss_rate_12_ways": one(_counters(evidence, "cat=12").llc_miss_rate),
        "llc_miss_rate_drop_max": one(
            max(plain.llc_miss_rate / _counters(evidence, name).llc_miss_rate for name in ways), "over 1 to 12 ways"
        ),
        "llc_stall_drop": one(plain.llc_stall_ratio / seven.llc_stall_ratio, "7 ways"),
        "p99_itl_ms": itl,
        "p99_itl_spread": _spread(itl),
    }


def _spread(found: Prediction) -> Prediction:
    if not found.values:
        return found
    return one(max(found.values.values()) / min(found.values.values()) - 1, "most over least of these")


def _effects(evidence: Evidence, name: str) -> dict[str, Prediction]:
    """Change of P99 ITL and of throughput against the run without the mitigation."""
    keys = [("mitigation", case) for case in (INTERFERED, name)]
    itl = [evidence.figure(key, "p99_itl_ms") for key in keys]
    makespan = [evidence.figure(key, "makespan_s") for key in keys]
    return {"p99_itl_change": one(itl[1] / itl[0] - 1), "throughput_change": one(makespan[0] / makespan[1] - 1)}


def _counters(evidence: Evidence, case: str) -> HostCounters:
    engine = evidence.bed.document["mitigations"]["system"]
    return host_conditions(evidence.bed.mitigated()[case], LAYOUTS[engine].busy_threads).counters
