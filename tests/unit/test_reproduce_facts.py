"""The published facts: the same as the publication's, at most eight calibrated on, none known to the model."""

from __future__ import annotations

import ast
import math
import tomllib
from typing import Any

import pytest

from blink.plan.reproduce import testbed
from blink.plan.reproduce.carry_out import EVALUATIONS, chosen_facts
from blink.plan.reproduce.facts import (
    CALIBRATED,
    CALIBRATION_FACTS_MAX,
    EVERY,
    PUBLISHED,
    Quantity,
    calibration,
    load_facts,
    load_reasons,
)
from tests.shared import ROOT, shared_path

FACTS = load_facts()
WORDS_OF_A_FACT = {"id", "unit", "says", "model", "system", "source"}
MODEL_FOLDERS = ("common", "frontend", "perf", "profiles", "sim", "workload")


def numbers(quantity: Quantity) -> Any:
    """A quantity as published.toml has it."""
    if quantity.is_bound or quantity.is_value:
        return quantity.high
    return [quantity.low, quantity.high]


def test_every_published_figure_is_here_with_the_same_value() -> None:
    published = tomllib.loads(shared_path("design/published.toml").read_text(encoding="utf-8"))["fact"]
    ours = {fact.id: {quantity.name: numbers(quantity) for quantity in fact.quantities} for fact in FACTS}
    assert [fact["id"] for fact in published] == [fact.id for fact in FACTS]
    for fact in published:
        stated = {name: value for name, value in fact.items() if name not in WORDS_OF_A_FACT}
        assert stated.items() <= ours[fact["id"]].items(), fact["id"]


def test_at_most_eight_facts_are_calibrated_on_and_the_constants_are_named() -> None:
    assert len({table["id"] for table in calibration()}) <= CALIBRATION_FACTS_MAX
    for table in calibration():
        fact = next(fact for fact in FACTS if fact.id == table["id"])
        assert {name for name, use in fact.use.items() if use == CALIBRATED} == set(table["quantities"])
        assert table["sets"]
        assert table["how"]


def test_every_fact_is_evaluated() -> None:
    assert set(EVALUATIONS) == {fact.id for fact in FACTS}


def test_reasons_are_about_facts_that_exist() -> None:
    quantities = {fact.id: {quantity.name for quantity in fact.quantities} | {EVERY} for fact in FACTS}
    for reason in load_reasons():
        assert reason.quantity in quantities[reason.fact], reason
        assert reason.direction in ("low", "high", "any")


def test_nothing_in_the_model_knows_a_fact() -> None:
    ids = {fact.id for fact in FACTS}
    for folder in MODEL_FOLDERS:
        for path in (ROOT / "blink" / folder).rglob("*"):
            if path.suffix == ".toml":
                assert not [name for name in ids if name in path.read_text(encoding="utf-8")], path
            elif path.suffix == ".py":
                tree = ast.parse(path.read_text(encoding="utf-8"))
                texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
                assert not [name for name in ids for text in texts if isinstance(text, str) and name in text], path


def test_the_publication_is_shipped_without_the_shared_folder() -> None:
    assert {path.name for path in PUBLISHED.glob("*.toml")} == {
        "calibration.toml",
        "facts.toml",
        "reasons.toml",
        "testbed.toml",
    }


def test_patterns_choose_facts() -> None:
    chosen = chosen_facts(["launch.*", "ring.scan_us"])
    assert [fact.id for fact in chosen if not fact.id.startswith("launch.")] == ["ring.scan_us"]
    assert len(chosen) == 6
    assert chosen_facts([]) == FACTS


def test_the_testbed_is_thirteen_rates_four_models_four_systems_on_two_hosts() -> None:
    bed = testbed.Testbed.load(seeds=1)
    runs = bed.runs(frozenset({"load"}))
    assert len(runs) == 4 * 13 * 4 * 2
    assert len({run.key for run in runs}) == len(runs)
    assert (bed.rates[0], bed.rates[-1]) == (1, 32)
    beside = next(run.scenario for run in runs if run.at == ("load", "phi-4", "vllm", "interfered", "4"))
    assert {job.profile: job.threads for job in beside.interference.jobs} == {"pbzip2": 45, "llvm-build": 45}
    assert beside.host.reserved_cores == 6
    assert not math.isnan(beside.seed)


@pytest.mark.parametrize("name", ["cat=7", "nice", "huge_pages_victim", "huge_pages_interferer"])
def test_a_mitigation_changes_nothing_else(name: str) -> None:
    cases = testbed.Testbed.load().mitigated()
    plain, mitigated = cases["interfered"].resolved(), cases[name].resolved()
    assert plain.pop("mitigations") != mitigated.pop("mitigations")
    assert plain == mitigated
