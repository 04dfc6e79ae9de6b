"""The price of isolation: hardware threads that engines must keep for themselves, and what other work on them is worth.

A host-driven engine keeps `host.reserved_cores` hardware threads a replica; Blink keeps the threads that attend to it
(`attended_threads` of the price profile) and gives the rest back. A fleet that stands beside other jobs lets them have
every thread that it does not keep; one that was run without other jobs lets nobody have any: that is its isolation.
"""

from __future__ import annotations

from typing import Any

from blink.perf.energy import PriceProfile
from blink.perf.placement import KINDS_WITHOUT_HOST
from blink.plan.capacity.candidate import HOURS_A_MONTH, Candidate
from blink.plan.capacity.search import CapacitySearch, Trial, label
from blink.plan.comparison import rounded


def isolation(search: CapacitySearch) -> dict[str, Any]:
    """Reserved and free threads of the cheapest fleet of each kind, and what they cost and are worth a month."""
    standing = search.standing()
    kinds = {
        "host-driven": [trial for trial in standing if not _hostless(trial.candidate)],
        "blink": [trial for trial in standing if _hostless(trial.candidate)],
    }
    rows = []
    for kind, trials in kinds.items():
        for level in ("none", "colocated"):
            mine = [trial for trial in trials if dict(trial.candidate.key)["interference"] == level]
            if mine:
                rows.append({"kind": kind, **_row(search, min(mine, key=search.usd_per_month))})
    return {"rows": rows, "sentence": _sentence(rows)}


def _row(search: CapacitySearch, trial: Trial) -> dict[str, Any]:
    candidate, replicas = trial.candidate, trial.replicas or 1
    prices = PriceProfile.load(candidate.scenario.prices.profile)
    thread = HOURS_A_MONTH * prices.host_thread_usd_per_hour
    reserved, free = candidate.reserved_threads(replicas), candidate.free_threads(replicas)
    usd = search.usd_per_month(trial)
    shared = dict(candidate.key)["interference"] != "none"
    return {
        "label": label(candidate),
        "interference": dict(candidate.key)["interference"],
        "replicas": replicas,
        "reserved_threads": reserved,
        "reserved_usd_per_month": rounded(reserved * thread),
        "free_threads": free,
        "free_usd_per_month": rounded(free * thread),
        "usd_per_month": rounded(usd),
        "shared": shared,
        "net_usd_per_month": rounded(usd - (free * thread if shared else 0.0)),
    }


def _hostless(candidate: Candidate) -> bool:
    return candidate.scenario.system.kind in KINDS_WITHOUT_HOST


def _sentence(rows: list[dict[str, Any]]) -> str:
    """The price in words: the fleet of each kind that costs least once other work has paid for its threads."""
    found = {kind: _least([row for row in rows if row["kind"] == kind]) for kind in ("host-driven", "blink")}
    parts = [_words(row) for row in found.values() if row is not None]
    other, blink = found["host-driven"], found["blink"]
    if other and blink:
        more = other["net_usd_per_month"] - blink["net_usd_per_month"]
        less = "more" if more >= 0 else "less"
        parts.append(f"all in all the host-driven fleet costs {abs(more):,.0f} USD a month {less} than Blink's")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:] + "." if text else "No fleet stands to compare."


def _least(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(rows, key=lambda row: float(row["net_usd_per_month"]), default=None)


def _words(row: dict[str, Any]) -> str:
    kept = (
        f"{row['replicas']} x {row['label']} keep{'s' if row['replicas'] == 1 else ''} {row['reserved_threads']} of "
        f"their hosts' hardware threads "
        f"({row['reserved_usd_per_month']:,.0f} USD a month)"
    )
    worth = f"the other {row['free_threads']}, worth {row['free_usd_per_month']:,.0f} USD a month,"
    return f"{kept}, and leave {worth} to other work" if row["shared"] else f"{kept}, and have {worth} unused"
