"""Sweeps: the grid, objectives, what a curve says of made-up runs whose capacity is known, and the results file."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.common.metrics import Slo
from blink.plan.comparison import FIGURES
from blink.plan.point import PointResult
from blink.plan.sweep.answer import answered
from blink.plan.sweep.curve import curve
from blink.plan.sweep.grid import Grid, parse_over, parse_rates
from blink.plan.sweep.identity import DECISIVE, PACKAGE, point_digest
from blink.plan.sweep.question import Question
from blink.plan.sweep.row import Row, row_of
from blink.plan.sweep.run import Made, make
from blink.plan.sweep.slo import SloClass, classes_of, parse_class
from blink.plan.sweep.store import RESULTS_NAME, Store, read_results
from blink.plan.variant import with_rate
from tests.shared import ROOT
from tests.unit.test_layers import imports

TINY = load_scenario(ROOT / "scenarios" / "ci-tiny.toml")
CHAT = SloClass("chat", Slo(ttft_ms=100.0))
TOKENS, SECONDS = 100, 100.0


def test_rates_are_spread_in_equal_ratios_from_end_to_end() -> None:
    assert parse_rates("1:32:13") == (1, 1.33, 1.78, 2.38, 3.17, 4.24, 5.66, 7.55, 10.1, 13.5, 18, 24, 32)
    assert parse_rates("4,8.5") == (4, 8.5)


@pytest.mark.parametrize("text", ["", "1:2", "2:1:3", "0:4:3", "1:4:1", "1:4:2.5", "a,b", "1:inf:3"])
def test_rates_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--rate: .* is not allowed; allowed: "):
        parse_rates(text)


def test_axes_are_read_as_they_are_written() -> None:
    texts = ["model=llama-3-8b,phi-4,gpu=h200", "mitigations=none,cat=4", "limits.batch_max=16, 32"]
    assert parse_over(texts) == {
        "model": ["llama-3-8b", "phi-4"],
        "gpu": ["h200"],
        "mitigations": ["none", "cat=4"],
        "limits.batch_max": ["16", "32"],
    }


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["llama"], "'llama' is not known"),
        (["modle=a"], "'modle=a' is not known"),
        (["gpu=h200,modle=a"], "'modle=a' is not known"),
        (["gpu="], "'gpu=' is not allowed"),
        (["gpu=a,gpu=b"], "gpu is given twice"),
    ],
)
def test_what_is_no_axis_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(InputError, match=f"^--over: {says}"):
        parse_over(texts)


def test_a_grid_has_every_combination_and_builds_each_axis_on_those_it_needs() -> None:
    over = {"system.max_num_seqs": ["8", "4"], "interference": ["none"], "system": ["vllm"], "model": ["llama-3-8b"]}
    grid = Grid.of(over, (20.0, 10.0), 2)
    points = grid.points(TINY)
    assert [dict(point.key) for point in points][:2] == [
        {"model": "llama-3-8b", "system": "vllm", "system.max_num_seqs": "8", "interference": "none", **load}
        for load in ({"rate": 10.0, "seed": 1}, {"rate": 10.0, "seed": 2})
    ]
    assert len(points) == 8
    assert points[-1].scenario.system.max_num_seqs == 4  # type: ignore[union-attr]
    assert points[-1].scenario.model.profile == "llama-3-8b"


@pytest.mark.parametrize(
    ("over", "rates", "seeds", "says"),
    [
        ({"gpu": ["h200", "h200"]}, (), 1, "--gpu: h200 is given twice"),
        ({"threads": ["0"], "interference": ["none"]}, (), 1, "--over: threads gives the levels"),
        ({"threads": ["x"]}, (), 1, "--over: threads = 'x' is not allowed"),
        ({"colour": ["red"]}, (), 1, "--over: 'colour' is not known"),
        ({}, (1.0, 1.0), 1, "--rate: 1.0 is given twice"),
        ({}, (-1.0,), 1, "--rate: -1 is not allowed"),
        ({}, (), 0, "--seeds = 0: must be between"),
        ({"gpu": ["abacus"]}, (), 1, ".*abacus"),
        ({"limits.batch_max": [str(n) for n in range(1, 300)]}, tuple(map(float, range(1, 200))), 1, "59,501 runs"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(over: Any, rates: Any, seeds: int, says: str) -> None:
    with pytest.raises(InputError, match=f"^{says}"):
        Grid.of(over, rates, seeds).points(TINY)


def test_classes_are_named_objectives_beside_the_scenarios_own() -> None:
    chat = parse_class("chat:ttft_ms=300,tpot_ms=20")
    assert chat == SloClass("chat", Slo(ttft_ms=300.0, tpot_ms=20.0))
    assert [one.name for one in classes_of(TINY, [chat])] == ["scenario", "chat"]
    with pytest.raises(InputError, match=r"^--slo: chat is given twice"):
        classes_of(TINY, [chat, chat])
    for text in ("chat", "chat:", "chat:ttft=3", "Chat:ttft_ms=3", "scenario:ttft_ms=3", "a:ttft_ms=-1"):
        with pytest.raises(InputError, match=r"^--slo: .* is not allowed; allowed: NAME:BOUND=MS"):
            parse_class(text)


def made_up(rate: float, seed: int, capacity: float, *, late_from: float = 1e9) -> Row:
    """A run of a system that serves `capacity` requests/s at most, and keeps CHAT below a rate of `late_from`."""
    sent = round(rate * SECONDS)
    served = min(rate, capacity) * (1 + 0.01 * (seed - 2))
    kept = {
        "summary": {},
        "window": {
            "seconds": SECONDS,
            "requests": sent,
            "asked_tokens": sent * TOKENS,
            "delivered_tokens": round(min(served, rate) * SECONDS * TOKENS),
        },
        "within": {"chat": sent if rate < late_from else sent // 2},
    }
    return row_of(PointResult((("rate", rate), ("seed", seed)), kept), f"{rate}-{seed}", (CHAT,))


def asked(rates: tuple[float, ...], own: float = 6.0, seeds: int = 3) -> Question:
    scenario = with_rate(TINY, own)
    return Question(scenario, Grid.of({}, rates, seeds), (CHAT,))


RATES = (2.0, 4.0, 8.0, 16.0, 32.0)


def found(capacity: float, own: float = 6.0, rates: tuple[float, ...] = RATES, **more: float) -> dict[str, Any]:
    rows = [made_up(rate, seed, capacity, **more) for rate in rates for seed in (1, 2, 3)]
    return curve(asked(rates, own), rows)


def test_a_curve_ends_where_the_line_meets_the_plateau() -> None:
    load = found(10.0)["load"]
    assert load["saturated"] is True
    assert load["serviceable_rate"] == 8.0
    assert load["unserviceable_rate"] == 16.0
    assert load["saturation_rate"]["mean"] == pytest.approx(10.0, rel=1e-6)
    assert load["saturation_rate"]["low"] < 10.0 < load["saturation_rate"]["high"]
    assert load["plateau_tokens_per_s"]["mean"] == pytest.approx(10.0 * TOKENS)
    assert load["plateau_kept"] == pytest.approx(1.0)


def test_five_percent_less_than_asked_is_still_serviceable() -> None:
    assert found(15.4)["load"]["serviceable_rate"] == 16.0
    assert found(15.0)["load"]["serviceable_rate"] == 8.0


@pytest.mark.parametrize(("own", "state"), [(4.0, "free"), (9.0, "tight"), (11.0, "saturated")])
def test_the_verdict_on_the_scenarios_own_load(own: float, state: str) -> None:
    verdict = found(10.0, own)["verdict"]
    assert verdict["state"] == state
    assert verdict["headroom"]["share"] == pytest.approx(10.0 / own - 1, rel=1e-4)
    assert verdict["sure"] is True


def test_a_verdict_near_the_end_is_not_sure() -> None:
    assert found(10.0, 10.02)["verdict"] | {"headroom": None} == {
        "rate": 10.02, "state": "saturated", "headroom": None, "sure": False,
    }  # fmt: skip


def test_without_too_high_a_rate_the_end_is_a_lower_bound() -> None:
    data = found(100.0)
    assert data["load"]["saturated"] is False
    assert data["load"]["saturation_rate"] is None
    assert data["load"]["serviceable_rate"] == 32.0
    assert data["verdict"]["headroom"] == {"share": pytest.approx(32 / 6 - 1, rel=1e-4), "at_least": True}
    assert found(100.0, 64.0)["verdict"]["state"] == "unknown"


def test_a_system_that_collapses_ends_before_its_first_rate_that_is_too_much() -> None:
    rows = [made_up(rate, seed, 3.0 if rate > 8 else 8.0) for rate in RATES for seed in (1, 2, 3)]
    load = curve(asked(RATES), rows)["load"]
    assert load["plateau_rate"] == 8.0
    assert load["saturation_rate"]["mean"] == pytest.approx(8.0, rel=0.01)
    assert load["plateau_kept"] == pytest.approx(3 / 8, rel=0.01)


def test_goodput_counts_what_keeps_an_objective() -> None:
    (chat,) = found(10.0, late_from=8.0)["classes"]
    assert chat["rate_within"] == 4.0
    assert chat["bounded"] is True
    (chat,) = found(10.0)["classes"]
    assert (chat["rate_within"], chat["bounded"]) == (32.0, False)
    assert chat["goodput_max"]["mean"] == pytest.approx(32.0)


def test_points_that_cannot_run_are_told_and_left_out() -> None:
    rows = [made_up(rate, 1, 10.0) for rate in RATES]
    rows[0] = {**rows[0], "error": "too large"}
    data = curve(asked(RATES, seeds=1), rows)
    assert [point["rate"] for point in data["points"]] == list(RATES[1:])
    assert data["failed"] == ["too large"]


def test_the_answer_names_who_bears_most() -> None:
    question = Question(with_rate(TINY, 6.0), Grid.of({"system": ["blink", "vllm"]}, RATES, 1))
    rows = [
        {"system": system, **made_up(rate, 1, capacity)}
        for system, capacity in (("blink", 5.0), ("vllm", 10.0))
        for rate in RATES
    ]
    data = answered(question, Made(rows, len(rows), 0))
    assert data["answer"] == (
        "Load in requests/s before saturation: vLLM 9.90 and Blink 4.95. The scenario's 6 is too much for Blink."
    )


def test_systems_are_held_against_the_first_seed_by_seed() -> None:
    question = Question(with_rate(TINY, 6.0), Grid.of({"system": ["blink", "vllm"]}, RATES, 3))
    rows = [
        {"system": system, **made_up(rate, seed, capacity)}
        for system, capacity in (("blink", 5.0), ("vllm", 10.0))
        for rate in RATES
        for seed in (1, 2, 3)
    ]
    first, second = answered(question, Made(rows, len(rows), 0))["curves"]
    assert first["over_first"] is None
    assert second["over_first"]["ratio"] == pytest.approx(2.0, rel=1e-6)
    assert second["over_first"]["significant"] is True  # each seed alone says it, however far the seeds lie apart


def test_the_results_file_is_the_same_in_whichever_order_points_end(tmp_path: Path) -> None:
    rows = [made_up(rate, 1, 10.0) for rate in RATES]
    digests = [row["digest"] for row in rows]
    for name, order in (("one", range(5)), ("two", (3, 0, 4, 2, 1))):
        (tmp_path / name).mkdir()
        with Store(tmp_path / name, {"axes": {}}, digests) as store:
            for index in order:
                store.put(index, rows[index])
    one, two = ((tmp_path / name / RESULTS_NAME).read_bytes() for name in ("one", "two"))
    assert one == two
    assert read_results(tmp_path / "one" / RESULTS_NAME) == ({"axes": {}}, rows)


def test_a_row_that_need_not_be_written_yet_is_written_without_another(tmp_path: Path) -> None:
    rows = [made_up(rate, 1, 10.0) for rate in RATES]
    with Store(tmp_path, {}, [row["digest"] for row in rows]) as store:
        store.put(0, rows[0])
        store.put(1, rows[1])  # a moment later: too soon to write again
        end = time.monotonic() + 30
        while len(read_results(tmp_path / RESULTS_NAME)[1]) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_store_goes_on_where_it_was_left_and_takes_nobody_elses_points(tmp_path: Path) -> None:
    rows = [made_up(rate, 1, 10.0) for rate in RATES]
    digests = [row["digest"] for row in rows]
    with Store(tmp_path, {}, digests) as store:
        store.put(1, rows[1])
        with pytest.raises(InputError, match="another sweep writes there"), Store(tmp_path, {}, digests):
            pass
    with Store(tmp_path, {}, digests) as store:
        assert store.take_over() == 1
        assert store.missing() == [0, 2, 3, 4]
    with Store(tmp_path, {}, digests[2:]) as store, pytest.raises(InputError, match="holds points of another sweep"):
        store.take_over()
    (tmp_path / RESULTS_NAME).write_text("no", encoding="utf-8")
    with Store(tmp_path, {}, digests) as store, pytest.raises(InputError, match="is not the results of a sweep"):
        store.take_over()


def test_progress_tells_points_and_the_share_of_the_work(tmp_path: Path) -> None:
    calls: list[tuple[int, int, float]] = []
    question = Question(TINY, Grid.of({}, (100.0, 300.0), 1))

    def told(done: int, total: int, share: float) -> None:
        calls.append((done, total, share))

    make(question, tmp_path, workers=1, progress=told)
    assert calls == [(0, 2, 0.0), (1, 2, 0.5), (2, 2, 1.0)]  # forty requests either way
    calls.clear()
    make(question, tmp_path, workers=1, progress=told)
    assert calls == [(2, 2, 0.0)]


def test_a_point_is_the_same_by_what_its_files_hold(tmp_path: Path) -> None:
    profile = (ROOT / "blink" / "profiles" / "gpu" / "h200.toml").read_text(encoding="utf-8")
    digests = []
    for name, text in (("a", profile), ("b", profile), ("c", profile.replace("4_800", "4_900") + "\n# other\n")):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        scenario = TINY.model_copy(
            update={"gpu": TINY.gpu.model_copy(update={"profile": str(tmp_path / f"{name}.toml")})}
        )
        point = replace(Grid.of({}, (), 1).points(TINY)[0], scenario=scenario)
        digests.append(point_digest(point))
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_every_figure_has_a_column() -> None:
    row = made_up(2.0, 1, 10.0)
    assert set(FIGURES) < set(row)


BEFORE_OR_AFTER = {
    *("plan/__init__.py", "plan/axes.py", "plan/variant.py"),  # make the scenario, which is in the digest itself
    "plan/interval.py",  # goes over rows
}


def test_all_that_makes_a_row_is_in_the_digest_of_the_program() -> None:
    """From the files that make it, over all that these import, but for layers that count as a whole."""
    waiting, seen = [PACKAGE / "plan" / "sweep" / name for name in ("point.py", "row.py")], set[str]()
    while waiting:
        path = waiting.pop()
        name = path.relative_to(PACKAGE).as_posix()
        if name in seen or name.split("/")[0] in DECISIVE:
            continue
        seen.add(name)
        for module, _ in imports(path):
            below = PACKAGE.parent / module.replace(".", "/")
            waiting += [file for file in (below.with_suffix(".py"), below / "__init__.py") if file.is_file()]
    assert "plan/reproduce/window.py" in seen
    assert seen - {"__init__.py"} - BEFORE_OR_AFTER <= set(DECISIVE)
