"""Several replicas behind a router: how many, who chooses among them."""

from __future__ import annotations

from typing import Literal

from blink.common.config.fields import Float, Int, Table, Text, option

REPLICAS_MAX = 1024
Router = Literal["round-robin", "least-outstanding", "join-shortest-queue", "power-of-two", "prefix-affinity"]


class Fleet(Table):
    """Replicas of what the rest of the scenario describes, behind one router."""

    replicas: Int = option(1, "Replicas, each as the scenario has it.", "replicas", ge=1, le=REPLICAS_MAX)
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
