"""What the scheduler's loop costs around a graph, and what the frontend costs a request, from recorded runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.results import I64
from blink.common.steps import StepTable

_SAMPLES_MIN = 5
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A constant, and the standard error of the median that it comes from."""

    value: float
    error: float
    samples: int

    def plus(self, other: Estimate) -> Estimate:
        """Both together."""
        return Estimate(self.value + other.value, math.hypot(self.error, other.error), min(self.samples, other.samples))


@dataclass(frozen=True, slots=True)
class LoopCosts:
    """Nanoseconds around a graph: means, since a boundary at which a request has ended takes twice as long as
    others, and is as real; only the hundredth that takes longest is left out.

    `launch`: from a boundary until the launch; `publish`: from the graph's end until the last token of the batch is
    stored; `publish_per_slot`: what both take longer for each slot of the batch; `claim`: what a prefill takes longer
    until its launch, with `claim_per_slot` more for each prompt; `relaunch`: what a relaunch adds.
    """

    launch: Estimate
    publish: Estimate
    publish_per_slot: Estimate
    claim: Estimate
    claim_per_slot: Estimate
    relaunch: Estimate


def loop_costs(runs: Sequence[StepTable]) -> LoopCosts:
    """From runs that were busy: an idle scheduler's boundary lies before its prompt came."""
    before = np.concatenate([run.launched_ns - run.boundary_ns for run in runs]).astype(np.float64)
    after = np.concatenate([run.stored_ns - run.done_ns for run in runs]).astype(np.float64)
    live = np.concatenate([run.live for run in runs]).astype(np.float64)
    kind = np.concatenate([run.kind for run in runs])
    known = np.concatenate([run.boundary_ns >= 0 for run in runs])
    relaunched = np.concatenate([run.relaunched for run in runs])
    busy = np.concatenate([run.kv_tokens > 0 for run in runs])
    decode = (kind == GraphKind.DECODE) & known
    prefill = (kind == GraphKind.PREFILL) & known & busy & ~relaunched
    plain = decode & ~relaunched
    launch, launch_per_slot = line(live[plain], before[plain], _usual_mean)
    publish, stored_per_slot = line(live[decode], after[decode])
    per_slot = launch_per_slot.plus(stored_per_slot)
    claim, per_prompt = line(live[prefill], before[prefill] - launch.value, _usual_mean)
    renewed = before[decode & relaunched] - launch.value
    relaunch = _median(renewed, "a relaunch") if renewed.size else Estimate(0.0, 0.0, 0)  # a host relaunches nothing
    return LoopCosts(launch, publish, per_slot, claim, per_prompt, relaunch)


@dataclass(frozen=True, slots=True)
class FrontendCosts:
    """Nanoseconds of a request and of a look at the ring.

    `ingress`: until it is taken in; `tokenize`, with `tokenize_per_token` more for each token; `post`: from a slot
    until it is published; `read`: from a stored first token until it is read, with `read_per_slot` more for each slot.
    """

    ingress: Estimate
    tokenize: Estimate
    tokenize_per_token: Estimate
    post: Estimate
    read: Estimate
    read_per_slot: Estimate


def frontend_costs(requests: Mapping[str, I64], live: I64) -> FrontendCosts:
    """From the columns of a served load (results.REQUEST_COLUMNS), and the batch when each first token was stored."""
    ingress = _mean(requests["ingress_ns"], "a request")
    prompts = requests["prompt_tokens"].astype(np.float64)
    tokenize, per_token = line(prompts, requests["tokenize_ns"].astype(np.float64))
    post = _mean(requests["link_ns"], "a request")
    read, per_slot = line(live.astype(np.float64), requests["read_ns"].astype(np.float64))
    return FrontendCosts(ingress, tokenize, per_token, post, read, per_slot)


def _median(values: Floats, what: str) -> Estimate:
    if values.size < _SAMPLES_MIN:
        raise InputError(f"calibrate: the programme has {values.size} samples of {what}; needed: {_SAMPLES_MIN}")
    return Estimate(float(np.median(values)), 1.2533 * float(values.std()) / values.size**0.5, int(values.size))


def _mean(values: NDArray[np.float64] | I64, what: str) -> Estimate:
    if values.size < _SAMPLES_MIN:
        raise InputError(f"calibrate: the programme has {values.size} samples of {what}; needed: {_SAMPLES_MIN}")
    return Estimate(float(values.mean()), float(values.std()) / values.size**0.5, int(values.size))


def _usual_mean(values: Floats) -> float:
    """Without the hundredth that is largest: something else disturbed it."""
    return float(np.sort(values)[: max(1, math.ceil(0.99 * values.size))].mean())


def _middle(values: Floats) -> float:
    return float(np.median(values))


def line(x: Floats, y: Floats, middle: Callable[[Floats], float] = _middle) -> tuple[Estimate, Estimate]:
    """Intercept and slope through the middles of each x, medians by default, by their numbers; neither below 0."""
    if y.size < _SAMPLES_MIN:
        raise InputError(f"calibrate: the programme has {y.size} samples of a batch; needed: {_SAMPLES_MIN}")
    places = np.unique(x)
    middles = np.array([middle(y[x == place]) for place in places])
    weights = np.array([np.count_nonzero(x == place) for place in places], np.float64)
    centre = float(np.average(places, weights=weights))
    spread = float(np.average((places - centre) ** 2, weights=weights))
    mean = float(np.average(middles, weights=weights))
    slope = float(np.average((places - centre) * middles, weights=weights)) / spread if spread else 0.0
    slope = max(0.0, slope)
    start = max(0.0, mean - slope * centre)
    left = float(np.std(y - start - slope * x))
    error = left / y.size**0.5
    return Estimate(start, error, int(y.size)), Estimate(slope, error / spread**0.5 if spread else 0.0, int(y.size))
