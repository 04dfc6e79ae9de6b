"""Facts about runs alone on the host: load curves, the motivating run, the scheduler's place."""

from __future__ import annotations

from blink.plan.reproduce.evidence import BLINK, Evidence, geometric_mean
from blink.plan.reproduce.predict import Prediction, Registry, gathered, one, register
from blink.plan.reproduce.testbed import INTERFERED, ISOLATED

LOADED: Registry = {}
SHORT = {"llama3_8b": "llama-3-8b", "qwen3_32b": "qwen3-32b", "qwen3_30b_a3b": "qwen3-30b-a3b", "phi4": "phi-4"}
"""How the facts' names call a model -> its profile."""
PREFILLED = "prompt_tokens"


def over_blink(evidence: Evidence, model: str, name: str) -> Prediction:
    """Each engine's figure over Blink's, alone, over Blink's pre-saturation rates."""
    found = gathered(evidence.bed.engines, lambda engine: evidence.over_blink(model, name)[engine])
    return found if found.absent else Prediction(found.values, found.note or _rates(evidence, model, ISOLATED))


def _rates(evidence: Evidence, model: str, condition: str) -> str:
    rates = evidence.before_saturation(model, condition)
    return f"{len(rates)} rates up to {rates[-1]:g}/s"


@register(LOADED, "scheduling.cpu_resident_makespan", "makespan")
def _makespan(evidence: Evidence) -> dict[str, Prediction]:
    def ratio(output: str) -> float:
        on_cpu, on_gpu = (
            evidence.figure(("makespan", where, output), "makespan_s") for where in ("cpu-resident", BLINK)
        )
        return on_cpu / on_gpu

    outputs = [str(output) for output in evidence.bed.document["makespan"]["output_tokens"]]
    return {"value": gathered(outputs, ratio, "by output tokens of each of 64 requests")}


@register(LOADED, "motivation.throughput_drop", "motivation")
def _drop(evidence: Evidence) -> dict[str, Prediction]:
    alone, beside = (evidence.throughput(("motivation", condition)) for condition in (ISOLATED, INTERFERED))
    wanted = evidence.bed.document["motivation"]
    return {"value": one(alone / beside, f"beside {wanted['threads']} threads of {wanted['job']}")}


@register(LOADED, "motivation.p99_ttft_inflation_max", "motivation")
def _ttft_inflation(evidence: Evidence) -> dict[str, Prediction]:
    def ratio(_: str) -> float:
        alone, beside = (evidence.figure(("motivation", at), "p99_ttft_ms") for at in (ISOLATED, INTERFERED))
        return beside / alone

    note = f"requests that were complete within {evidence.bed.duration_s:g} s; in overload it grows with the run"
    return {"value": gathered([""], ratio, note)}


@register(LOADED, "motivation.isolated_p99_itl_ms", "motivation")
def _itl(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": one(evidence.figure(("motivation", ISOLATED), "p99_itl_ms"))}


@register(LOADED, "motivation.isolated_p99_tpot_ms", "motivation")
def _tpot(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": one(evidence.figure(("motivation", ISOLATED), "p99_tpot_ms"))}


@register(LOADED, "isolated.p99_ttft_ratio.llama3_8b", "load")
def _ttft_llama(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": over_blink(evidence, SHORT["llama3_8b"], "p99_ttft_ms")}


@register(LOADED, "isolated.p99_tpot_ratio.llama3_8b", "load")
def _tpot_llama(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": over_blink(evidence, SHORT["llama3_8b"], "p99_tpot_e2e_ms")}


@register(LOADED, "isolated.p50_ttft_ratio.llama3_8b", "load")
def _median_llama(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": over_blink(evidence, SHORT["llama3_8b"], "p50_ttft_ms")}


@register(LOADED, "isolated.p99_ttft_ratio.qwen3_30b_a3b", "load")
def _ttft_moe(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": over_blink(evidence, SHORT["qwen3_30b_a3b"], "p99_ttft_ms")}


@register(LOADED, "isolated.p99_tpot_ratio.qwen3_30b_a3b", "load")
def _tpot_moe(evidence: Evidence) -> dict[str, Prediction]:
    return {"value": over_blink(evidence, SHORT["qwen3_30b_a3b"], "p99_tpot_e2e_ms")}


@register(LOADED, "isolated.p50_ttft_ms.qwen3_30b_a3b", "load")
def _median_moe(evidence: Evidence) -> dict[str, Prediction]:
    model = SHORT["qwen3_30b_a3b"]

    def median(system: str) -> float:
        keys = [evidence.at(model, system, ISOLATED, rate) for rate in evidence.before_saturation(model, ISOLATED)]
        return geometric_mean(evidence.figure(key, "p50_ttft_ms") for key in keys)

    found = gathered((BLINK, "trtllm"), median)
    return {
        system: Prediction({"": value})
        if (value := found.values.get(system))
        else Prediction(absent=found.absent or found.note)
        for system in (BLINK, "trtllm")
    }


@register(LOADED, "isolated.p999_ratio.qwen3_32b", "load")
def _tail_dense(evidence: Evidence) -> dict[str, Prediction]:
    model = SHORT["qwen3_32b"]
    names = {"ttft": "p999_ttft_ms", "tpot": "p999_tpot_e2e_ms"}
    return {quantity: over_blink(evidence, model, name) for quantity, name in names.items()}


@register(LOADED, "isolated.plateau_over_trtllm", "load")
def _plateaus(evidence: Evidence) -> dict[str, Prediction]:
    def ratio(model: str) -> float:
        return evidence.plateau(model, BLINK, ISOLATED) / evidence.plateau(model, "trtllm", ISOLATED)

    return {name: one(ratio(SHORT[name])) for name in ("llama3_8b", "qwen3_32b", "qwen3_30b_a3b")}


@register(LOADED, "isolated.decode_tok_s_at_saturation", "load")
def _decode(evidence: Evidence) -> dict[str, Prediction]:
    found = {}
    for name in ("llama3_8b", "qwen3_30b_a3b"):
        ours, theirs = (evidence.plateau(SHORT[name], system, ISOLATED) for system in (BLINK, "trtllm"))
        found[f"{name}_blink"] = one(ours, "plateau of the output throughput")
        found[f"{name}_over_trtllm"] = one(ours / theirs)
    return found


@register(LOADED, "isolated.prefill_tok_s_over_nearest", "load")
def _prefill(evidence: Evidence) -> dict[str, Prediction]:
    def ratio(model: str) -> float:
        nearest = max(evidence.plateau(model, engine, ISOLATED, PREFILLED) for engine in evidence.bed.engines)
        return evidence.plateau(model, BLINK, ISOLATED, PREFILLED) / nearest

    return {"value": gathered(evidence.bed.models, ratio)}


@register(LOADED, "isolated.energy_mj_per_token.blink", "load")
def _energy(evidence: Evidence) -> dict[str, Prediction]:
    def below(model: str) -> float:
        best = min(energy_mj(evidence, model, engine, ISOLATED) for engine in evidence.bed.engines)
        return 1 - energy_mj(evidence, model, BLINK, ISOLATED) / best

    models = evidence.bed.models
    return {
        "value": gathered(models, lambda model: energy_mj(evidence, model, BLINK, ISOLATED), "at the plateau"),
        "below_best_engine": gathered(models, below),
    }


@register(LOADED, "energy.wall_power_kw", "load")
def _power(evidence: Evidence) -> dict[str, Prediction]:
    def kilowatts(label: str) -> float:
        model, system = label.split()
        rate = evidence.plateau_rate(model, system, ISOLATED)
        return evidence.figure(evidence.at(model, system, ISOLATED, rate), "wall_w") / 1e3

    labels = [f"{model} {system}" for model in evidence.bed.models for system in evidence.bed.systems]
    return {"value": gathered(labels, kilowatts, "at the plateau")}


def energy_mj(evidence: Evidence, model: str, system: str, condition: str) -> float:
    """mJ an output token: power at the wall over output throughput, at the rate of the plateau."""
    key = evidence.at(model, system, condition, evidence.plateau_rate(model, system, condition))
    return 1e3 * evidence.figure(key, "wall_w") / evidence.throughput(key)
