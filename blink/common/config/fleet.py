"""Several replicas behind a router: how many, who chooses among them, how they start, fail, come and go."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from blink.common.config.fields import REQUIRED, Bool, Float, Int, Table, Text, option, refuse

REPLICAS_MAX = 1024
SECONDS_MAX = 1e7
Router = Literal["round-robin", "least-outstanding", "join-shortest-queue", "power-of-two", "prefix-affinity"]


class Outage(Table):
    """One failure at a known time."""

    replica: Int = option(REQUIRED, "Number of the replica, from 0.", ge=0, lt=REPLICAS_MAX)
    at_s: Float = option(REQUIRED, "When it fails.", "s", ge=0, le=SECONDS_MAX)


class Failures(Table):
    """Replicas that fail: what they were doing is lost, and another one has to be started in their place."""

    outages: tuple[Outage, ...] = option((), "Failures at known times, as `{replica = 0, at_s = 60}`.")
    mtbf_s: Float | None = option(
        None,
        "Mean time for which a replica serves until it fails, exponential. Unset: none but the outages.",
        "s",
        gt=0,
        le=1e10,
    )
    detect_s: Float = option(
        5.0, "From a failure until the router knows: it still sends requests there.", "s", ge=0, le=SECONDS_MAX
    )
    repair_s: Float = option(
        60.0, "From then until another one is started, which then has to warm up.", "s", ge=0, le=SECONDS_MAX
    )
    lost: Literal["retry", "fail"] = option(
        "retry", "Requests that a failed replica had: `retry` serves them anew elsewhere, `fail` gives them up."
    )
    retries_max: Int = option(3, "How often a request is served anew before it is given up.", "retries", ge=1, le=1000)


class Autoscale(Table):
    """Replicas come and go with the load."""

    replicas_min: Int = option(1, "Replicas, at least.", "replicas", ge=1, le=REPLICAS_MAX)
    replicas_max: Int = option(REQUIRED, "Replicas, at most.", "replicas", ge=1, le=REPLICAS_MAX)
    target: Float = option(
        REQUIRED, "Requests under way that a replica is meant to have; their number over it is how many are wanted.",
        "requests", gt=0, le=1e6,
    )  # fmt: skip
    interval_s: Float = option(15.0, "How often that is looked at.", "s", gt=0, le=SECONDS_MAX)
    lag_s: Float = option(
        30.0, "From the decision until a new replica begins to warm up: metrics, scheduling, a machine.", "s", ge=0,
        le=SECONDS_MAX,
    )  # fmt: skip
    down_after_s: Float = option(
        300.0, "For how long fewer must have been wanted before one is drained.", "s", ge=0, le=SECONDS_MAX
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.replicas_max < self.replicas_min:
            raise refuse("replicas_max", f"= {self.replicas_max}: must be at least replicas_min = {self.replicas_min}")
        return self


class Fleet(Table):
    """Replicas of what the rest of the scenario describes, behind one router."""

    replicas: Int = option(1, "Replicas, each as the scenario has it, at the start.", "replicas", ge=1, le=REPLICAS_MAX)
    router: Router = option(
        "least-outstanding",
        "How a request gets its replica. `round-robin`: in turn; `least-outstanding`: the one with the fewest requests "
        "under way; `join-shortest-queue`: the one with the fewest that wait for a place, as it reports it; "
        "`power-of-two`: of two at random, the one with fewer under way; `prefix-affinity`: the one that had the same "
        "prefix before, unless it has many more under way than the mean.",
    )
    affinity_overload: Float = option(
        1.25,
        "With prefix-affinity: requests under way, over the mean of the replicas, above which another is taken.",
        "ratio",
        ge=1,
        le=1000,
    )
    profile: Text = option(
        "one-rack", "Name of a shipped fleet profile, or the path of a TOML file of that form: router, hosts, start-up."
    )
    prefill_replicas: Int | None = option(
        None,
        "Separate prefill and decode: so many of the replicas compute prompts and first tokens, and send "
        "their keys and values to the others, which decode. Unset: every replica does both.",
        "replicas",
        ge=1,
        le=REPLICAS_MAX,
    )
    warm_up_s: Float | None = option(
        None,
        "From the start of a replica until it serves. Unset: by the fleet profile, from its weights and graphs.",
        "s",
        ge=0,
        le=SECONDS_MAX,
    )
    cold_start: Bool = option(False, "Whether the replicas have to warm up at the beginning, too.")
    failures: Failures | None = option(None, "Replicas that fail. Unset: none does.")
    autoscale: Autoscale | None = option(None, "Replicas that come and go with the load. Unset: their number is fixed.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.prefill_replicas is not None and self.prefill_replicas >= self.replicas:
            raise refuse(
                "prefill_replicas",
                f"= {self.prefill_replicas}: must be below replicas = {self.replicas}: others decode",
            )
        if self.autoscale is not None:
            if self.prefill_replicas is not None:
                raise refuse("autoscale", "not allowed with prefill_replicas: the shares of both kinds are fixed")
            if not self.autoscale.replicas_min <= self.replicas <= self.autoscale.replicas_max:
                raise refuse("replicas", f"= {self.replicas}: must lie within autoscale.replicas_min and replicas_max")
        for outage in self.failures.outages if self.failures else ():
            if outage.replica >= self.replicas and self.autoscale is None:
                raise refuse("failures.outages", f"replica = {outage.replica}: there are {self.replicas}, from 0")
        return self
