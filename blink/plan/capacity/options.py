"""Serving options that a question may vary: what each is called in a candidate's key, and how a scenario gets it."""

from __future__ import annotations

from typing import Any

from blink.common.config import Scenario, parse_scenario
from blink.plan.capacity.question import Candidates

Axes = list[tuple[str, tuple[Any, ...]]]


def option_axes(asked: Candidates) -> Axes:
    """Those that the question names, with their values; the others stay as the scenario has them."""
    named: Axes = [
        ("pipeline_parallel", asked.pipeline_parallel or ()),
        ("dtype", asked.dtypes or ()),
        ("chunk_tokens", asked.chunk_tokens or ()),
        ("prefix_caching", asked.prefix_caching or ()),
        ("draft_tokens", asked.draft_tokens or ()),
    ]
    return [(name, values) for name, values in named if values]


def with_options(scenario: Scenario, chosen: dict[str, Any], asked: Candidates) -> Scenario:
    """The scenario with these values. Raises InputError for what its form refuses."""
    if not chosen:
        return scenario
    document = scenario.resolved()
    if "pipeline_parallel" in chosen:
        document["gpu"]["pipeline_parallel"] = chosen["pipeline_parallel"]
    if "dtype" in chosen:
        document["model"]["dtype"] = chosen["dtype"]
    serving = document.pop("serving", {})
    if "chunk_tokens" in chosen:
        _set(serving, "chunk_tokens", chosen["chunk_tokens"] or None)
    if "prefix_caching" in chosen:
        serving["prefix_caching"] = chosen["prefix_caching"]
        if not chosen["prefix_caching"]:
            serving.pop("kv_offload_gib", None)
    if "draft_tokens" in chosen:
        drafts = {
            "draft_tokens": chosen["draft_tokens"],
            "acceptance": asked.draft_acceptance,
            "draft_cost": asked.draft_cost,
        }
        _set(serving, "speculation", drafts if chosen["draft_tokens"] else None)
    if serving:
        document["serving"] = serving
    return parse_scenario(document, scenario.name)


def _set(table: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def option_words(key: dict[str, Any]) -> str:
    """The options of a candidate's key in words, each behind a comma: `, 2 stages, fp8`."""
    words = []
    if (stages := key.get("pipeline_parallel", 1)) > 1:
        words.append(f"{stages} stages")
    if key.get("dtype") is not None:
        words.append(str(key["dtype"]))
    if key.get("chunk_tokens"):
        words.append(f"chunks of {key['chunk_tokens']}")
    if key.get("prefix_caching"):
        words.append("prefix caching")
    if key.get("draft_tokens"):
        words.append(f"{key['draft_tokens']} drafts")
    return "".join(f", {word}" for word in words)
