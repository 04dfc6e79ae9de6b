"""What the runs say: figures by key, pooled over seeds; saturation, plateaus, means over pre-saturation rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from blink.plan.reproduce.testbed import ISOLATED, Key, Testbed
from blink.plan.reproduce.window import Figures

SERVICEABLE_SHARE = 0.95
BLINK = "blink"


class NoEvidenceError(Exception):
    """The runs that were made do not say it; the message says why."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures of every run, one list over the seeds for each key."""

    bed: Testbed
    runs: Mapping[Key, Sequence[Figures]]

    def seeds(self, key: Key) -> Sequence[Figures]:
        """The figures of one point, a seed each. Raises NoEvidenceError if it was not run."""
        if not self.runs.get(key):
            raise NoEvidenceError(f"{' '.join(key)} was not run")
        return self.runs[key]

    def figure(self, key: Key, name: str) -> float:
        """Geometric mean over seeds. Raises NoEvidenceError where no seed has a sample."""
        found = [figures[name] for figures in self.seeds(key)]
        known = [value for value in found if value is not None and value > 0]
        if not known:
            raise NoEvidenceError(f"{' '.join(key)}: no request was complete in time")
        return geometric_mean(known)

    def at(self, model: str, system: str, condition: str, rate: float) -> Key:
        """The key of a point of the load curves."""
        return ("load", model, system, condition, f"{rate:g}")

    def throughput(self, key: Key, tokens: str = "output_tokens") -> float:
        """Tokens/s of the requests that were complete in time, pooled over seeds. NoEvidenceError if none was."""
        found = _sum(self.seeds(key), tokens)
        if not found:
            raise NoEvidenceError(f"{' '.join(key)}: no request was complete in time")
        return found / _sum(self.seeds(key), "seconds")

    def offered(self, key: Key) -> float:
        """Output tokens/s that were asked for, pooled over seeds."""
        return _sum(self.seeds(key), "asked_tokens") / _sum(self.seeds(key), "seconds")

    def capacity(self, model: str, system: str, condition: str) -> float:
        """The most output tokens/s that were delivered at any rate, without the time in which a run fills up."""
        keys = [self.at(model, system, condition, rate) for rate in self.bed.rates]
        return max(_sum(self.seeds(key), "delivered_tokens") / _sum(self.seeds(key), "steady_seconds") for key in keys)

    def serviceable(self, model: str, system: str, condition: str) -> float:
        """The highest rate with at least 95 % of the offered throughput; 0 if there is none.

        What a system gives at a rate, once a run has lasted, is what is offered or its capacity, whichever is less: so
        the rate is serviceable if the capacity is 95 % of the mean offered throughput. A run of half a minute does not
        show it by itself, since the answers to its last requests are still under way when it ends.
        """
        most = self.capacity(model, system, condition) / self.tokens_per_request()
        return max((rate for rate in self.bed.rates if SERVICEABLE_SHARE * rate <= most), default=0.0)

    def tokens_per_request(self) -> float:
        """Mean output length over all runs of the load curves."""
        runs = [figures for key, seeds in sorted(self.runs.items()) if key[0] == "load" for figures in seeds]
        return _sum(runs, "asked_tokens") / _sum(runs, "requests")

    def before_saturation(self, model: str, condition: str) -> list[float]:
        """The rates up to Blink's saturation point. Raises NoEvidenceError if it is saturated at all of them."""
        most = self.serviceable(model, BLINK, condition)
        rates = [rate for rate in self.bed.rates if rate <= most]
        if not rates:
            raise NoEvidenceError(f"{model}, {condition}: Blink is saturated at every rate")
        return rates

    def plateau(self, model: str, system: str, condition: str, tokens: str = "output_tokens") -> float:
        """The highest output throughput over the rates, or the throughput of other tokens at that rate; in tokens/s."""
        return self.throughput(self.at(model, system, condition, self.plateau_rate(model, system, condition)), tokens)

    def plateau_rate(self, model: str, system: str, condition: str) -> float:
        """The rate at which throughput is highest."""
        keys = {rate: self.at(model, system, condition, rate) for rate in self.bed.rates}
        return max(keys, key=lambda rate: _sum(self.seeds(keys[rate]), "output_tokens"))

    def over_blink(self, model: str, name: str, condition: str = ISOLATED) -> dict[str, float]:
        """Each engine's figure over Blink's: geometric mean over Blink's pre-saturation rates."""
        rates = self.before_saturation(model, condition)
        return {
            engine: geometric_mean(
                self.figure(self.at(model, engine, condition, rate), name)
                / self.figure(self.at(model, BLINK, condition, rate), name)
                for rate in rates
            )
            for engine in self.bed.engines
        }

    def inflation(self, model: str, system: str, name: str, conditions: tuple[str, str]) -> float:
        """A figure under the second condition over the first: geometric mean over Blink's pre-saturation rates."""
        before, after = conditions
        return geometric_mean(
            self.figure(self.at(model, system, after, rate), name)
            / self.figure(self.at(model, system, before, rate), name)
            for rate in self.before_saturation(model, after)
        )


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm; all values must be positive, and there must be one."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def _sum(seeds: Sequence[Figures], name: str) -> float:
    return math.fsum(figures[name] or 0.0 for figures in seeds)
