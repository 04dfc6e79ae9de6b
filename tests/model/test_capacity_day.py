"""A plan over time: levels of a curve and of growth, what the hours save, autoscaling with lag, and the order tried."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.plan.capacity.answer import answered
from blink.plan.capacity.candidate import candidates_of
from blink.plan.capacity.follow import Rise, _curve, kept_hours
from blink.plan.capacity.levels import LEVELS_MAX, at_level, day_spans, growth_spans
from blink.plan.capacity.order import confirm
from blink.plan.capacity.over_time import OverTime
from blink.plan.capacity.question import Follow, Question, Traffic
from blink.plan.capacity.run import plan
from blink.plan.capacity.search import CapacitySearch, Figures
from blink.plan.capacity.settle import settle
from blink.workload.build import build_load
from tests.model.test_capacity import question, trace_file

CURVE = [[4, 6.0], [14, 30.0], [20, 24.0]]


class Pretended(CapacitySearch):
    """A search whose runs are pretended: so many replicas meet a share of the busiest rate, or not."""

    def __init__(self, asked: Question, meets: Callable[[int, float, int], bool]) -> None:
        super().__init__(asked, candidates_of(asked), None)
        self._pretend, self.asked = meets, list[tuple[int, float, int]]()

    def run_all(self, points: Any) -> list[Figures]:
        found = []
        for point in points:
            key = dict(point.key)
            replicas, level = point.scenario.fleet.replicas, key.get("level", 1.0)
            self.asked.append((replicas, level, key["seed"]))
            met = "relief" not in key and self._pretend(replicas, level, key["seed"])
            found.append(figures(met, replicas, level))
            self.run_count += 1
        return found


def figures(met: bool, replicas: int, level: float) -> Figures:
    return {
        "p99_ttft_ms": 100.0 if met else 900.0, "p99_tpot_ms": 10.0, "median_ttft_ms": 50.0, "median_tpot_ms": 9.0,
        "output_tokens_per_s": 1.0, "gpu_busy": 0.5, "gpu_memory": 0.5, "gpu_compute": 0.5, "slots_in_use_max": 1,
        "within": {"p99_ttft_ms": 1.0 if met else 0.5, "p99_tpot_ms": 1.0}, "wall_kw": replicas + level,
        "under_way": 40.0 * level, "notes": [], "requests": 100, "started": 1,
    }  # fmt: skip


def pretended(meets: Callable[[int, float, int], bool], **more: Any) -> tuple[Pretended, dict[str, Any]]:
    """The search and its answer."""
    search = Pretended(question(**more), meets)
    search.search()
    return search, answered(search)


# --- levels ---


def test_the_day_goes_from_hour_to_hour_and_through_every_point_of_the_curve() -> None:
    traffic = Traffic(curve=((3.5, 2.0), (12.0, 10.0), (12.25, 4.0)))
    spans = day_spans(traffic)
    times = [span.begin.at for span in spans]
    assert times == [float(hour) for hour in range(4)] + [3.5] + [float(hour) for hour in range(4, 13)] + [12.25] + [
        float(hour) for hour in range(13, 24)
    ]
    assert spans[-1].end.at == 24.0 and spans[-1].end.factor == spans[0].begin.factor
    assert max(span.end.factor for span in spans) == 1.0
    by_hour = {span.begin.at: span.begin.factor for span in spans}
    assert by_hour[12.25] == pytest.approx(0.4)
    assert by_hour[0.0] == pytest.approx((4.0 - 2.0 * (24 - 12.25) / (27.5 - 12.25)) / 10)  # over midnight
    assert day_spans(Traffic(rate=3.0)) == []


def test_a_curve_of_many_rates_is_run_at_rates_that_are_never_lower() -> None:
    curve = tuple((hour / 10, 1.0 + hour % 97) for hour in range(240))
    spans = day_spans(Traffic(curve=curve))
    levels = {span.begin.level for span in spans}
    assert len(levels) <= LEVELS_MAX
    assert all(0 <= span.begin.level - span.begin.factor < 1 / LEVELS_MAX + 1e-9 for span in spans)
    assert 1.0 in levels


def test_growth_goes_from_today_to_the_end_and_ends_at_the_busiest_rate() -> None:
    spans = growth_spans(Traffic(rate=8.0, growth_per_month=0.1, months=2.5))
    assert [span.begin.at for span in spans] == [0.0, 1.0, 2.0] and spans[-1].end.at == 2.5
    assert spans[0].begin.factor == pytest.approx(1.1**-2.5) and spans[-1].end.factor == 1.0
    assert growth_spans(Traffic(rate=8.0)) == [] == growth_spans(Traffic(rate=8.0, growth_per_month=-0.1, months=3))


def test_a_level_is_a_load_of_that_rate_long_enough_to_be_judged(tmp_path: Any) -> None:
    asked = question(traffic={"rate": 40.0, "window_s": 20.0})
    fleet = candidates_of(asked)[0].fleet(1, 3)
    half, few = at_level(fleet, 0.5, 40.0), at_level(fleet, 0.05, 40.0)
    assert (half.workload.arrivals.rate, half.workload.duration_s) == (20.0, 20.0)  # type: ignore[union-attr]
    assert few.workload.duration_s == pytest.approx(200 / 0.75 / 2.0)
    assert len(build_load(few)[1]) * 0.75 == pytest.approx(200, rel=0.2)
    traced = question(traffic={"trace": trace_file(tmp_path / "t.jsonl")})
    whole = candidates_of(traced)[0].fleet(1, 3)
    sent, slow = (build_load(one)[1].arrival_ns for one in (whole, at_level(whole, 0.5, None)))
    assert slow[-1] == pytest.approx(2 * sent[-1])


# --- the order ---


def test_one_replica_more_and_one_less_are_run_with_every_seed() -> None:
    search, answer = pretended(lambda replicas, level, seed: replicas >= 5)
    assert answer["best"]["replicas"] == 5
    assert {(count, seed) for count, _, seed in search.asked} >= {(n, s) for n in (4, 5, 6) for s in search.seeds}
    assert "2 of 2 runs meet it, with one replica less 0 of 2, with one more 2 of 2" in answer["answer"]


def test_where_more_replicas_are_worse_all_that_were_passed_over_are_tried_and_the_answer_says_so() -> None:
    """The search doubles past 3 and ends at 8. But 9 misses, so what lies below 8 is tried after all."""
    search, answer = pretended(lambda replicas, level, seed: replicas in (3, 8) or replicas >= 10)
    assert answer["best"]["replicas"] == 3
    assert search.trials[0].misses_above == [4, 6, 7, 9]
    assert "More replicas are not always better here: 4, 6, 7 and 9 miss" in answer["answer"]


def test_a_larger_fleet_that_misses_is_named_with_the_one_that_holds_again() -> None:
    _, answer = pretended(lambda replicas, level, seed: replicas == 4 or replicas >= 7)
    assert answer["best"]["replicas"] == 4
    assert "5 and 6 miss it in some run; 7 hold again" in answer["answer"]
    assert "All numbers from the bound to 4 were tried" in answer["answer"]


def test_the_order_is_confirmed_beyond_the_cap_but_no_fleet_beyond_it_is_offered() -> None:
    search, answer = pretended(lambda replicas, level, seed: replicas >= 5, limits={"gpus_max": 5})
    assert answer["best"]["replicas"] == 5 and 6 in search.trials[0].runs
    assert all(fleet["replicas"] <= 5 for fleet in answer["fleets"])


# --- the day ---


def test_each_hour_is_run_and_the_hours_say_what_could_be_saved() -> None:
    """A replica carries a quarter of the busiest rate: the hours need 1 to 4."""
    search, answer = pretended(
        lambda replicas, level, seed: replicas >= 4 * level - 1e-9, traffic={"curve": CURVE, "window_s": 20.0}
    )
    day = answer["day"]
    levels = {round(one["level"], 6) for one in day["moments"]}
    assert {round(level, 6) for count, level, _ in search.asked if count == 4} >= levels
    assert all(one["replicas"] == max(1, int(np.ceil(4 * one["level"] - 1e-6))) for one in day["moments"])
    assert day["replicas_by_hour"][4] == 2 and day["replicas_by_hour"][13] == 4
    mean = np.mean(day["by_hour"]["replicas"])
    assert day["by_hour"]["mean_replicas"] == pytest.approx(mean, abs=0.05)  # and the warm-ups
    assert day["by_hour"]["mean_replicas"] > mean
    assert day["saved_share"] == pytest.approx(1 - day["by_hour"]["mean_replicas"] / 4)
    assert day["by_hour"]["missed"] == [] and day["within"] == {"p99_ttft_ms": 1.0, "p99_tpot_ms": 1.0}
    kw = [4 + one["level"] for one in day["moments"]]
    assert day["fixed"]["mean_kw"] == pytest.approx(np.mean([(a + b) / 2 for a, b in itertools.pairwise(kw)]))
    assert "Every hour of the day keeps it, too." in answer["answer"]
    assert "Run once at each hour, 4 replicas keep every objective all day" in day["sentence"]
    seeds = {(level, seed) for _, level, seed in search.asked if level != 1.0}
    assert len(seeds) == len({seed for _, seed in seeds}), "each level has a load of its own"
    assert not {seed for _, seed in seeds} & set(search.seeds)


def test_a_fleet_that_misses_an_hour_is_made_larger_and_the_answer_says_why() -> None:
    _, answer = pretended(
        lambda replicas, level, seed: replicas >= (3 if level == 1.0 else 4 if 0.7 < level < 0.9 else 1),
        traffic={"curve": CURVE, "window_s": 20.0},
    )
    assert answer["best"]["replicas"] == 4
    assert "3 meet the busiest time and miss at" in answer["answer"]
    assert (
        answer["binds"]["resource"] is None
        and "keeps every objective at the busiest time" in answer["binds"]["sentence"]
    )


def test_a_fleet_that_misses_an_hour_with_every_number_allowed_is_no_answer() -> None:
    _, answer = pretended(
        lambda replicas, level, seed: replicas >= 3 and level == 1.0,
        traffic={"curve": CURVE, "window_s": 20.0}, limits={"gpus_max": 4},
    )  # fmt: skip
    assert answer["best"] is None
    assert "meet the busiest time and miss at" in answer["answer"] and "limits.gpus_max" in answer["answer"]


def test_growth_is_run_month_by_month() -> None:
    traffic = {"rate": 30.0, "growth_per_month": 0.2, "months": 4, "window_s": 20.0}
    _, answer = pretended(lambda replicas, level, seed: replicas >= 5 * level - 1e-9, traffic=traffic)
    months = answer["months"]
    assert answer["day"] is None
    assert [one["replicas"] for one in months["moments"]] == [3, 3, 4, 5, 5]
    assert months["replicas_by_month"] == [3, 4, 5, 5]
    assert months["saved_usd"] > 0
    assert "Bought as it grows: 3 replicas from month 0, 4 from month 1, 5 from month 2" in months["sentence"]


def test_the_day_and_its_words_are_the_same_for_any_number_of_workers() -> None:
    """Really simulated, and followed with lag."""
    asked = question(
        traffic={"curve": [[5, 12.0], [5.25, 12.0], [5.5, 36.0], [12, 36.0], [13, 12.0]], "window_s": 12.0},
        autoscale={"lag_s": 10.0, "interval_s": 5.0},
    )
    one, two = (plan(asked, workers=workers) for workers in (1, 2))
    assert one == two
    day = one["day"]
    assert all(moment["meets"] for moment in day["moments"])
    assert 0 < day["saved_share"] < 1 and day["by_hour"]["missed"] == []
    assert day["by_hour"]["usd_per_month"] < one["best"]["usd_per_month"]
    assert day["fixed"]["mean_kw"] < day["fixed"]["kw_max"]
    rises = day["autoscale"]["rises"]
    assert rises and all(5.25 <= rise["hour"] <= 5.5 and rise["started"] >= 1 for rise in rises)


# --- following it ---


def test_a_rise_follows_the_curve_through_midnight() -> None:
    spans = day_spans(Traffic(curve=((1.0, 4.0), (23.0, 8.0))))
    points = _curve(spans, 23.5, 24.5)
    assert [hour for hour, _ in points] == [23.5, 24.0, 24.5]
    assert [factor for _, factor in points] == pytest.approx([0.875, 0.75, 0.625])
    assert [hour for hour, _ in _curve(spans, -0.5, 0.5)] == [-0.5, 0.0, 0.5]


def test_autoscaling_pays_warm_ups_and_waits_before_it_drains() -> None:
    spans = day_spans(Traffic(curve=((0.0, 4.0), (12.0, 8.0))))
    replicas = [1] * 12 + [3] * 12
    assert kept_hours(Follow(down_after_s=0.0), spans, replicas, 1_800 * 10**9) == pytest.approx(1.0)
    assert kept_hours(Follow(down_after_s=900.0), spans, replicas, 0) == pytest.approx(0.5)
    assert kept_hours(Follow(), spans, [2] * 24, 10**12) == 0.0


def test_a_lag_as_long_as_the_rise_is_seen_to_miss() -> None:
    """The same curve, followed at once or too late: the rate triples within three minutes."""
    curve = [[5, 12.0], [5.05, 36.0], [12, 36.0], [13, 12.0]]

    def rises(lag_s: float) -> list[dict[str, Any]]:
        asked = question(
            traffic={"curve": curve, "window_s": 12.0}, autoscale={"lag_s": lag_s, "interval_s": 5.0, "target": 60.0}
        )
        found: list[dict[str, Any]] = plan(asked, workers=2)["day"]["autoscale"]["rises"]
        return found

    late = rises(240.0)
    assert any(not rise["meets"] for rise in late)


def test_to_follow_a_traffic_that_has_no_curve_is_refused() -> None:
    with pytest.raises(InputError, match=r"autoscale: is given without traffic\.curve"):
        question(autoscale={"lag_s": 3.0})


def test_a_settled_fleet_is_the_cheapest_within_the_caps() -> None:
    search = Pretended(question(candidates={"systems": ["blink", "vllm"]}), lambda replicas, level, seed: replicas >= 4)
    search.search()
    best = settle(search).best
    assert best is not None and dict(best.candidate.key)["system"] == "blink"
    confirm(search, best)
    assert OverTime(search, best, day_spans(Traffic(curve=((0.0, 1.0), (12.0, 2.0))))).count == 4
    assert Rise(1, 2.0, 0.1).replicas == 1


def test_what_is_left_over_at_the_ends_of_a_short_run_makes_no_fleet_larger() -> None:
    """Without a bound on the first token a fleet must keep up; at a lower rate than the busiest one it does."""

    class Lazy(Pretended):
        def run_all(self, points: Any) -> list[Figures]:
            found = super().run_all(points)
            for point, one in zip(points, found, strict=True):
                one["served_share"] = 0.9 if dict(point.key).get("level", 1.0) < 1.0 else 1.0
                one["p99_tpot_ms"] = one["p99_ttft_ms"] / 10
            return found

    asked = question(traffic={"curve": CURVE, "window_s": 20.0}, slo={"p99_tpot_ms": 20.0})
    search = Lazy(asked, lambda replicas, level, seed: replicas >= 2)
    search.search()
    answer = answered(search)
    assert answer["best"]["replicas"] == 2
    assert all(one["meets"] for one in answer["day"]["moments"])
    assert set(answer["day"]["replicas_by_hour"]) == {2}, "fewer must keep up, and are not seen to"
