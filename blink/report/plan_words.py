"""A plan as rows of text: what the terminal and the page both show."""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]
STATES = {
    "stands": "meets",
    "impossible": "cannot",
    "cost": "over the cost cap",
    "power": "over the power cap",
    "dear": "too dear",
    "open": "not tried",
}
RESOURCES = {
    "nothing": "nothing more",
    "compute": "compute",
    "bandwidth": "memory bandwidth",
    "kv": "KV memory",
    "host": "host CPU",
    "batch": "batch limit",
    "slots": "ring slots",
}
FLEET_COLUMNS = ("fleet", "GPUs", "hosts", "kept threads", "USD/month", "kW")


def setting(data: Data) -> str:
    """Traffic, objectives and how many seeds, in a line."""
    rate = data["peak_rate"]
    traffic = "a trace" if rate is None else f"{rate:{',.0f' if rate >= 100 else '.3g'}} requests/s at the busiest time"
    if data["growth"] != 1:
        traffic += f" (today's x {data['growth']:.3g})"
    return f"{traffic}; {'; '.join(map(bound, data['objectives']))}; {len(data['seeds'])} seeds"


def bound(objective: Data) -> str:
    """An objective with its bound, as `P99 TTFT <= 500 ms`."""
    if objective["unit"]:
        return f"{objective['says']} <= {objective['bound']:g} {objective['unit']}"
    return f"{objective['says']} >= {objective['bound']:.4g}"


def objective_columns(data: Data) -> list[str]:
    """Headings of the objectives' figures."""
    return [f"{one['says']}{', ' + one['unit'] if one['unit'] else ''}" for one in data["objectives"]]


def fleet_row(fleet: Data, data: Data) -> list[str]:
    """One fleet under FLEET_COLUMNS and the objectives."""
    cells = [
        f"{fleet['replicas']} x {fleet['label']}",
        f"{fleet['gpus']}",
        f"{fleet['hosts']}",
        f"{fleet['reserved_threads']}",
        f"{fleet['usd_per_month']:,.0f}",
        f"{fleet['wall_kw']:.2f}",
    ]
    for objective, one in zip(data["objectives"], fleet["objectives"], strict=True):
        cells.append(kept(objective, one))
    return cells


def kept(objective: Data, one: Data) -> str:
    """A figure and by how much its bound is kept."""
    if one["value"] is None:
        return "none"
    mean = one["value"]["mean"]
    text = f"{mean:,.1f}" if objective["unit"] else f"{mean:.1%}"
    return f"{text} ({one['margin']:+.0%})"


def candidate_row(one: Data) -> list[str]:
    """A candidate: what it is, how it ended, the bound and the number found, why it is out."""
    low = "" if one["replicas_bound"] is None else str(one["replicas_bound"])
    found = "" if one["replicas"] is None else str(one["replicas"])
    cost = "" if one["usd_per_month"] is None else f"{one['usd_per_month']:,.0f}"
    return [one["label"], STATES[one["state"]], low, found, cost, one["why"] or ""]


def over_time(data: Data) -> list[tuple[str, Data]]:
    """What was found over the day and over the months of growth, with a title each; of an older plan maybe nothing."""
    parts = [("Over the day", data.get("day")), ("While the traffic grows", data.get("months"))]
    return [(title, found) for title, found in parts if found]


CANDIDATE_COLUMNS = ("candidate", "", "bound", "replicas", "USD/month", "why not")


def relief_rows(data: Data) -> list[list[str]]:
    """What more of each resource would do to the fleet with one replica less."""
    binds = data["binds"] or {"reliefs": []}
    objective = next((one for one in data["objectives"] if one["name"] == binds.get("objective")), None)
    rows = []
    for one in binds["reliefs"]:
        value = f"{one['value']:,.1f}" if objective and objective["unit"] else f"{one['value']:.1%}"
        given = one["factor"] > 1
        verdict = "would do" if one["meets"] else "would not do"
        much = f"{one['factor']:.2g} x" if given else ""
        rows.append([RESOURCES[one["resource"]], much, value, verdict if given else ""])
    return rows


def frontier_rows(data: Data) -> list[list[str]]:
    """The fleets of the frontier, by cost; those over the power cap are marked."""
    under = data["frontier_under_cap"]
    rows = []
    for place in data["frontier"]:
        row = fleet_row(data["fleets"][place], data)
        rows.append([*row, "" if under is None or place in under else "over the power cap"])
    return rows
