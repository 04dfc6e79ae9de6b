"""Bounds that need no simulation: what no fleet of a candidate can do, however lucky it is.

*Floors.* A request has its first token no sooner than its own prefill takes alone, and a further token no sooner than
a decode step of one sequence with its own context. A percentile of things that are each at least something is at least
the percentile of those: an objective below it cannot be met by any number of replicas.

*Work.* A GPU runs one graph at a time. A graph's time, shared among the tokens that it computes, is never less a token
than that of the best shape there is, and a token's attention to its own context comes on top. So each request needs a
known least time of some GPU. If the objectives are met, then by a time T all requests are complete whose deadline (of
sending, objective of the first token, objective of each further one) is not after T, but for the few that may miss
it. Their least time fits into what the replicas have from the beginning of the window until T; the tightest T gives
the least number of replicas.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from blink.common.config import Scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.distribution import Distribution
from blink.common.policy import GraphTable
from blink.common.results import I64
from blink.common.units import NS_PER_MS, NS_PER_S, ns_from_s
from blink.perf.plant import Plant
from blink.perf.serving import tokens_a_step
from blink.perf.step import StepModel
from blink.plan.capacity.candidate import Candidate
from blink.plan.capacity.measure import KEEPS_UP, may_miss, objectives_of
from blink.plan.capacity.question import Objectives
from blink.plan.sweep.point import WARMUP_PARTS
from blink.plan.sweep.question import SERVICEABLE_SHARE
from blink.sim.engines.plant import EnginePlant
from blink.workload.build import build_load, output_tokens_asked
from blink.workload.requests import NO_PARENT, Requests

F64 = NDArray[np.float64]
GRID_RATIO = 1.02
SLACK_NS = NS_PER_S
"""Tokens delivered within the window may have been computed a moment before it."""
WORDS = {"compute": "compute", "bandwidth": "memory bandwidth"}


@dataclass(frozen=True, slots=True)
class Bound:
    """`replicas`: fewer cannot do it. `impossible`: why no number can, in a sentence; `resource` is what binds.

    `excess`: what would be needed over what is allowed, where it is impossible.
    """

    replicas: int
    resource: str
    sentence: str
    impossible: str | None = None
    ttft_floor_ms: float | None = None
    tpot_floor_ms: float | None = None
    excess: float = 1.0


@dataclass(frozen=True, slots=True)
class Times:
    """The least time of a GPU: of a decode row without context, of a KV token read, of a prompt token and its pairs."""

    step: StepModel
    row_ns: float
    kv_ns: float
    prompt_ns: float
    pair_ns: float
    prefill_batch: tuple[int, int]  # the shape with the least time a token
    decode_batch: int
    prefill_share: float = 1.0  # of a prompt's prefill alone, what it takes at least within other steps


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a window: when they are sent, their prompts and the tokens that they will get."""

    sent_ns: I64
    prompts: I64
    outputs: I64
    begin_ns: int
    end_ns: int
    patient: bool  # all wait until they are served, and none waits for another before it is sent
    computed: I64  # of the prompts, what no cache can have: all without one


def bound_of(candidate: Candidate, slo: Objectives, seeds: tuple[int, ...]) -> Bound:
    """The bound over the loads of all seeds, each of which must be carried. Raises InputError if it cannot run at all.

    The error is that of the run itself, such as of a model that does not fit.
    """
    times = least_times(candidate.scenario)
    found = [_bound(candidate, slo, times, load_of(candidate.fleet(1, seed))) for seed in seeds]
    worst = max(found, key=lambda bound: (bound.impossible is not None, bound.replicas))
    if worst.impossible is None and worst.replicas > candidate.replicas_max:
        gpus, most = worst.replicas * candidate.gpus, candidate.replicas_max * candidate.gpus
        return Bound(
            worst.replicas,
            worst.resource,
            worst.sentence,
            f"{worst.sentence}; that is {gpus} GPUs, and limits.gpus_max leaves {most}",
            worst.ttft_floor_ms,
            worst.tpot_floor_ms,
            worst.replicas / candidate.replicas_max,
        )
    return worst


def least_times(scenario: Scenario) -> Times:
    """The least times of a candidate's GPUs, by its own step model and the shapes that it may launch."""
    system = scenario.system
    if isinstance(system, HostDrivenSystem):
        plant = EnginePlant.of(scenario, system)
        return _mixed_times(plant.step, plant.limits.tokens_max, mixed_share(scenario))
    blink = Plant.of(scenario)
    step = blink.step
    row_ns, batch = min((step.decode_ns(b, 0) / b, b) for b in blink.decode_table.batches)
    prompt_ns, shape = min((step.prefill_ns(b, s) / (b * s), (b, s)) for b, s in _shapes(blink.prefill_table))
    return Times(step, row_ns, _kv_ns(step), prompt_ns, 0.0, shape, batch)


def _shapes(table: GraphTable) -> list[tuple[int, int]]:
    grid = [(b, s) for b in table.batches for s in table.sequences if b == 1 or b * s <= table.tokens_max]
    return [*grid, (table.fallback.batch, table.fallback.sequence)]


def mixed_share(scenario: Scenario) -> float:
    """The least that a mixed step takes under a pipeline and drafts, over the products of its tokens in a plain one.

    In a pipeline of P stages a step's tokens go round in P groups at most, of at least a P-th of them each, and it
    takes at least as long as one group. Drafts yield 1 + a + ... + a^k tokens a step of the model, which all share it.
    """
    drafts = scenario.serving.speculation if scenario.serving else None
    return 1.0 / (scenario.gpu.stages * (tokens_a_step(drafts) if drafts else 1.0))


def _mixed_times(step: StepModel, tokens_max: int, share_min: float) -> Times:
    """Steps that hold rows and prompts together: a token is at least its share of the products of any such step.

    Between two points of the grid the time rises with the tokens: what the lower point takes, shared among the tokens
    of the upper one, is at most what any step between them takes a token.
    """
    least, at, tokens = math.inf, 1, 1
    while tokens <= tokens_max:
        after = max(tokens + 1, math.floor(tokens * GRID_RATIO))
        parts = step.prefill_breakdown(1, tokens)
        share = (parts.sum_ns - parts.attention_ns) / min(after - 1, tokens_max)
        if share < least:
            least, at = share, tokens
        tokens = after
    pair_ns = step.prefill_breakdown(1, 2).attention_flops_ns / 3 * share_min  # two tokens, three pairs
    least *= share_min
    return Times(step, least, _kv_ns(step), least, pair_ns, (1, at), at, share_min)


def _kv_ns(step: StepModel) -> float:
    tokens = 1 << 20
    return (step.decode_ns(1, tokens) - step.decode_ns(1, 0) - 1) / tokens


def load_of(scenario: Scenario) -> Load:
    """The requests that a run of the scenario will judge."""
    scenario, requests = build_load(scenario)
    workload = scenario.workload
    sent = requests.arrival_ns
    last = int(sent[-1])
    whole = workload.duration_s is not None and workload.requests is None and workload.trace is None
    end = int(sent[0]) + ns_from_s(workload.duration_s or 0.0) if whole else last
    begin = int(sent[0]) + (end - int(sent[0])) // WARMUP_PARTS
    inside = (sent >= begin) & (sent < end)
    outputs = np.minimum(requests.output_tokens, output_tokens_asked(scenario, requests))
    outputs = np.minimum(outputs, scenario.limits.output_capacity_tokens)
    patient = not workload.cancel.fraction and bool(np.all(requests.parent == NO_PARENT))
    computed = least_computed(scenario, requests)[inside]
    return Load(sent[inside], requests.prompt_tokens[inside], outputs[inside], begin, end, patient, computed)


def least_computed(scenario: Scenario, requests: Requests) -> I64:
    """Tokens of each prompt that have to be computed even if every block that another prompt has is in the cache."""
    caching = scenario.serving is not None and scenario.serving.prefix_caching
    if not caching or requests.prefixes is None:
        return requests.prompt_tokens
    blocks, size = requests.prefixes.blocks, requests.prefixes.block_tokens
    owners = Counter(block for own in blocks for block in set(own))
    shared = [sum(1 for _ in takewhile(lambda block: owners[block] > 1, own)) for own in blocks]
    found: I64 = np.maximum(1, requests.prompt_tokens - np.array(shared, np.int64) * size)
    return found


def _bound(candidate: Candidate, slo: Objectives, times: Times, load: Load) -> Bound:
    if not len(load.sent_ns):
        return Bound(1, "compute", "no request is sent within the window")
    ttft, tpot = floors(times, load)
    ttft_ms, tpot_ms = _p99_ms(ttft), _p99_ms(tpot[load.outputs > 1])
    below = _below_floor(slo, times, load, ttft, tpot)
    if below is not None:
        sentence, resource, excess = below
        return Bound(1, resource, sentence, sentence, ttft_ms, tpot_ms, excess)
    replicas, resource, sentence = _least_replicas(slo, times, load)
    return Bound(replicas, resource, sentence, None, ttft_ms, tpot_ms)


def floors(times: Times, load: Load) -> tuple[F64, F64]:
    """By request: its own prefill alone; its own decode step at the middle of its output, alone."""
    step = times.step
    prefill = {tokens: step.prefill_ns(1, tokens) for tokens in np.unique(load.computed).tolist()}
    ttft = np.array([prefill[tokens] for tokens in load.computed.tolist()], np.float64) * times.prefill_share
    # Steps i = 1 .. n - 1 read prompt + i tokens each: their mean is that of the middle.
    context = load.prompts + np.maximum(load.outputs, 1) / 2
    return ttft, step.decode_ns(1, 0) + context * _kv_ns(step)


def _below_floor(slo: Objectives, times: Times, load: Load, ttft: F64, tpot: F64) -> tuple[str, str, float] | None:
    """Why no number of replicas can meet the objectives, if so, what stands in the way, and by which factor."""
    more = load.outputs > 1
    where = f"on {times.step.tensor_parallel} x {times.step.gpu.name}"
    if slo.p99_ttft_ms is not None and (floor := _p99_ms(ttft) or 0.0) > slo.p99_ttft_ms:
        prompt = int(np.percentile(load.computed, 99))
        resource = _prefill_resource(times.step, prompt)
        sentence = (
            f"a P99 TTFT of {slo.p99_ttft_ms:g} ms is below the physical floor of {floor:.1f} ms: the prefill of the "
            f"P99 prompt ({prompt:,} tokens) alone takes so long {where}, bound by {WORDS[resource]}"
        )
        return sentence, resource, floor / slo.p99_ttft_ms
    if slo.p99_tpot_ms is not None and (floor := _p99_ms(tpot[more]) or 0.0) > slo.p99_tpot_ms:
        sentence = (
            f"a P99 TPOT of {slo.p99_tpot_ms:g} ms is below the physical floor of {floor:.1f} ms: a decode step of one "
            f"sequence alone takes so long {where}, bound by memory bandwidth: every step reads the weights"
        )
        return sentence, "bandwidth", floor / slo.p99_tpot_ms
    wanted = slo.goodput
    if wanted is not None:
        good = np.ones(len(ttft), bool)
        if wanted.ttft_ms is not None:
            good &= ttft <= wanted.ttft_ms * NS_PER_MS
        late = len(good) - int(good.sum())
        if wanted.tpot_ms is not None:
            good &= ~more | (tpot <= wanted.tpot_ms * NS_PER_MS)
        if wanted.e2e_ms is not None:
            good &= ttft + (load.outputs - 1) * tpot <= wanted.e2e_ms * NS_PER_MS
        if (share := float(good.mean())) < wanted.share:
            prefill = late >= len(good) * (1 - share) / 2  # of those that miss, half do so by their first token
            resource = _prefill_resource(times.step, int(np.percentile(load.computed, 99))) if prefill else "bandwidth"
            which = "prefill alone takes" if prefill else "decode steps alone take"
            sentence = (
                f"a goodput of {wanted.share:.1%} is above what is physically possible, {share:.1%}: the others' own "
                f"{which} longer than the bounds {where}, bound by {WORDS[resource]}"
            )
            return sentence, resource, wanted.share / max(share, 1e-3)
    return None


def _prefill_resource(step: StepModel, prompt: int) -> str:
    parts = step.prefill_breakdown(1, max(1, prompt))
    flops = parts.gemm_flops_ns + parts.attention_flops_ns
    return "compute" if flops >= parts.gemm_bytes_ns + parts.attention_bytes_ns else "bandwidth"


def _least_replicas(slo: Objectives, times: Times, load: Load) -> tuple[int, str, str]:
    prefill, decode = _work(times, load)
    resource = _resource(times, load, float(prefill.sum()), float(decode.sum()))
    if not load.patient:
        return 1, resource, "no bound: requests that are given up or follow one another have no fixed deadline"
    keeps_up = any(objective.name == KEEPS_UP for objective in objectives_of(slo))
    best, stretch_s = _by_throughput(times, load) if keeps_up else 0.0, (load.end_ns - load.begin_ns) / NS_PER_S
    ttft_ms, tpot_ms, share = _deadline(slo)
    if ttft_ms is not None:
        within = prefill if tpot_ms is None else prefill + decode
        steps = 0.0 if tpot_ms is None else (load.outputs - 1) * tpot_ms * NS_PER_MS
        deadline = load.sent_ns + ttft_ms * NS_PER_MS + steps
        order = np.argsort(deadline, kind="stable")
        each = may_miss(share, len(order))
        missing = min(len(order), each * 2 if share is None and tpot_ms is not None else each)
        excused = float(np.sort(within)[::-1][:missing].sum())
        need = np.cumsum(within[order]) - excused
        spans = deadline[order] - load.begin_ns
        place = int(np.argmax(need / spans))
        if need[place] / spans[place] > best:
            best, stretch_s = float(need[place] / spans[place]), float(spans[place]) / NS_PER_S
    replicas = max(1, math.ceil(best - 1e-9))
    words = f"{best:.2f} replicas' GPU time is needed in {stretch_s:.0f} s, bound mostly by {WORDS[resource]}"
    return replicas, resource, f"at least {replicas} replica{'s' if replicas > 1 else ''}: {words}"


def _work(times: Times, load: Load) -> tuple[F64, F64]:
    """GPU time of each request at least: of its prefill, and of its tokens after the first."""
    prompts, steps = load.prompts.astype(np.float64), np.maximum(load.outputs - 1, 0).astype(np.float64)
    computed = load.computed.astype(np.float64)
    prefill = computed * times.prompt_ns + computed * (computed + 1) / 2 * times.pair_ns
    read = steps * prompts + steps * (steps + 1) / 2
    return prefill, steps * times.row_ns + read * times.kv_ns


def _by_throughput(times: Times, load: Load) -> float:
    """Replicas that deliver the least share of the tokens within the window, if their rows had no context at all."""
    tokens = SERVICEABLE_SHARE * float(load.outputs.sum())
    return tokens * min(times.row_ns, times.prompt_ns) / (load.end_ns - load.begin_ns + SLACK_NS)


def _deadline(slo: Objectives) -> tuple[float | None, float | None, float | None]:
    """Bounds that a request must keep on TTFT and TPOT, and the share that must; None for P99s of each."""
    if slo.p99_ttft_ms is not None:
        return slo.p99_ttft_ms, slo.p99_tpot_ms, None
    if slo.goodput is not None and slo.goodput.ttft_ms is not None:
        return slo.goodput.ttft_ms, slo.goodput.tpot_ms, slo.goodput.share
    return None, None, None


def _resource(times: Times, load: Load, prefill_ns: float, decode_ns: float) -> str:
    """What most of the least work is made of."""
    context = int(load.prompts.mean() + load.outputs.mean() / 2)
    rows = times.step.decode_breakdown(times.decode_batch, times.decode_batch * context)
    bytes_ns = rows.gemm_bytes_ns + rows.attention_bytes_ns
    decode_bytes = bytes_ns >= rows.gemm_flops_ns + rows.attention_flops_ns
    prompt = times.step.prefill_breakdown(*times.prefill_batch)
    prefill_bytes = prompt.gemm_bytes_ns >= prompt.gemm_flops_ns
    by_bytes = (decode_ns if decode_bytes else 0.0) + (prefill_ns if prefill_bytes else 0.0)
    return "bandwidth" if by_bytes >= (decode_ns + prefill_ns) / 2 else "compute"


def _p99_ms(values: F64) -> float | None:
    found = Distribution.of(values).percentile(990)
    return None if found is None else found / NS_PER_MS
