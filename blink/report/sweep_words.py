"""The words of a sweep: names of its curves, the verdict on each, and the answer to what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blink.report.comparison_plot import NAMES
from blink.report.comparison_sections import number, words

Data = dict[str, Any]


def label(key: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], system: str) -> str:
    """A curve's name: its system, and what else tells it from the others."""
    parts = [NAMES.get(str(key.get("system", system)), str(key.get("system", system)))]
    parts += [named(name, value) for name, value in key.items() if name != "system" and len(axes[name]) > 1]
    return ", ".join(parts)


def named(name: str, value: Any) -> str:
    """One value of an axis in words."""
    if name in ("interference", "threads", "mitigations"):
        return words(name, value)
    return str(value) if name in ("model", "gpu") else f"{name.rpartition('.')[2]} {value}"


def rate_words(estimate: Mapping[str, Any]) -> str:
    """A rate with its interval, where there is one."""
    if estimate["low"] is None:
        return f"{number(estimate['mean'])} requests/s"
    return f"{number(estimate['mean'])} requests/s ({number(max(0.0, estimate['low']))} to {number(estimate['high'])})"


def told(curve: Data) -> str:
    """The verdict on a curve's operating load, in a sentence."""
    verdict, load = curve["verdict"], curve["load"]
    if curve["failed"] and not curve["points"]:
        return f"It cannot run: {curve['failed'][0]}."
    if load is None:
        kept = {"kept": "It keeps up with the load.", "saturated": "It does not keep up with the load."}
        return kept.get(verdict["state"], "The runs are too short to say whether it keeps up.")
    if verdict["state"] == "unknown":
        return _without_rate(load)
    rate, room = verdict["rate"], verdict["headroom"]["share"]
    if load["saturation_rate"] is None:
        top = load["serviceable_rate"]
        return f"It keeps up with every rate that was run, to {top:g} requests/s; {rate:g} is {rate / top:.0%} of that."
    end = rate_words(load["saturation_rate"])
    unsure = "" if verdict["sure"] is not False else ", which the runs do not show for certain"
    if room < 0:
        return f"At {rate:g} requests/s it is saturated{unsure}: its linear part ends at {end}."
    return f"At {rate:g} requests/s the load may grow by {room:.0%}{unsure}: the linear part ends at {end}."


def _without_rate(load: Data) -> str:
    if load["saturation_rate"] is not None:
        return f"Its linear part ends at {rate_words(load['saturation_rate'])}."
    if load["serviceable_rate"] is None:
        return "The runs are too short to say what it can serve."
    return f"It keeps up with every rate that was run, to {load['serviceable_rate']:g} requests/s."


def answer(data: Data) -> str:
    """The answer in one or two sentences: who bears most load, and how the scenario's own load stands."""
    ranked = [(end, one) for one in data["curves"] if (end := bearing(one)) is not None]
    if not ranked:
        curves = data["curves"]
        lost = [one["label"] for one in curves if one["verdict"]["state"] == "saturated"]
        if any(one["points"] for one in curves):
            return (
                f"The load is too much for {listed(lost)}."
                if lost
                else "Every system that was run keeps up with the load."
            )
        return "No run came to its end."
    ranked.sort(key=lambda pair: -pair[0])
    parts = [f"{one['label']} {_end(end, one)}" for end, one in ranked]
    shown = parts if len(parts) <= LISTED_MAX else [*parts[: LISTED_MAX - 1], f"the last, {parts[-1]}"]
    first = f"Load in requests/s before saturation: {listed(shown)}."
    return f"{first} {_at_own_rate(data, ranked)}".strip()


LISTED_MAX = 5


def bearing(curve: Data) -> float | None:
    """The highest load before saturation, or the highest that was run; None if no rate says so."""
    load = curve["load"]
    if load is None:
        return None
    if load["saturation_rate"]:
        return float(load["saturation_rate"]["mean"])
    return None if load["serviceable_rate"] is None else float(load["serviceable_rate"])


def _end(end: float, curve: Data) -> str:
    return number(end) if curve["load"]["saturated"] else f"{end:g} or more"


def _at_own_rate(data: Data, ranked: Sequence[tuple[float, Data]]) -> str:
    rate = data["operating_rate"]
    lost = [one["label"] for _, one in ranked if one["verdict"]["state"] == "saturated"]
    if rate is None:
        return ""
    if not lost:
        only = "It keeps" if len(ranked) == 1 else "All keep"
        return f"{only} up with the scenario's {rate:g}."
    if len(lost) == len(ranked):
        return f"The scenario's {rate:g} is too much for {'it' if len(ranked) == 1 else 'all of them'}."
    who = listed(lost) if len(lost) < LISTED_MAX - 1 else f"{len(lost)} of these {len(ranked)}"
    return f"The scenario's {rate:g} is too much for {who}."


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; of names with commas in them, `a; b; and c`."""
    mark = "; " if any(", " in name for name in names) else ", "
    if len(names) < 2:
        return "".join(names)
    return f"{mark.join(names[:-1])}{';' if mark == '; ' else ''} and {names[-1]}"
