"""A clock that falls under load, steps as they were measured, and turns of a thread that never sleeps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.perf.corrections import MeasuredStep, StepCorrections, interpolated
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.host.turns import Turns
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel
from blink.perf.throttle import Throttle

SLICE_NS = 4_000_000


def throttle(compute: float = 0.2, memory: float = 0.05) -> Throttle:
    return Throttle(50e6, compute, memory, lambda batch, sequence: 0.9)


def test_a_gpu_that_idled_is_as_fast_as_its_profile() -> None:
    assert throttle().decode_ns(5_000_000_000, 6_000_000) == 6_000_000


def test_prefills_in_a_row_take_longer_and_longer_up_to_a_bound() -> None:
    clock, now, durations = throttle(), 0, []
    for _ in range(60):
        durations.append(clock.prefill_ns(now, 20_000_000, 1, 512, 512))
        now += durations[-1]
    assert all(one <= other for one, other in pairwise(durations))
    assert durations[0] > 20_000_000
    assert durations[-1] == pytest.approx(20_000_000 * (1 + 0.2 * 0.9), rel=1e-4)


def test_a_decode_step_feels_less_of_it_and_forgets() -> None:
    clock = throttle()
    end = clock.prefill_ns(0, 100_000_000, 4, 1024, 4096)
    soon, later = clock.decode_ns(end, 6_000_000), clock.decode_ns(end + 500_000_000, 6_000_000)
    assert 6_000_000 < soon < 6_000_000 * 1.05
    assert later == pytest.approx(6_000_000, abs=50)
    assert clock.decode_ns(end, 6_000_000) == soon  # asking changes nothing


def test_above_an_exponent_of_1_little_computing_costs_next_to_nothing() -> None:
    """Twice the level, four times the fall."""
    falls = []
    for busy in (0.3, 0.6):
        clock, now = Throttle(50e6, 0.2, 0.1, lambda batch, sequence, busy=busy: busy, 2.0), 0  # type: ignore[misc]
        for _ in range(60):
            now += clock.prefill_ns(now, 20_000_000, 1, 512, 512)
        falls.append(clock.decode_ns(now, 100_000) / 100_000 - 1)
    assert falls[0] == pytest.approx(0.1 * 0.3**2, rel=0.02)
    assert falls[1] == pytest.approx(4 * falls[0], rel=0.02)


def test_padding_saves_time() -> None:
    clock = Throttle(50e6, 0.0, 0.0, lambda batch, sequence: 0.5, 1.0, 0.08)
    assert clock.prefill_ns(0, 10_000_000, 2, 512, 1024) == 10_000_000
    assert clock.prefill_ns(0, 10_000_000, 2, 512, 768) == pytest.approx(10_000_000 * (1 - 0.08 / 4), abs=1)


def test_a_profile_without_these_constants_has_no_throttle() -> None:
    assert Throttle.of(GpuProfile.load("h200"), lambda batch, sequence: 1.0) is None
    falling = replace(GpuProfile.load("h200"), throttle_time_ns=1_000, throttle_compute=0.1)
    assert Throttle.of(falling, lambda batch, sequence: 1.0) is not None


# --- tiles and measured shapes ---


@pytest.mark.parametrize(("tokens", "computed"), [(1, 1), (3, 4), (129, 256), (256, 256), (257, 512), (600, 768)])
def test_products_are_computed_in_whole_tiles(tokens: int, computed: int) -> None:
    assert EngineProfile.load("torch-paged").tiled(tokens) == computed
    assert EngineProfile.load("torch-capture").tiled(tokens) == tokens


def step(kind: str, batch: int, sequence: int, ratio: float, use: str = "fit", **more: object) -> MeasuredStep:
    return MeasuredStep(kind, batch, sequence, use, ratio, 0.001, 1_000_000, 10, **more)  # type: ignore[arg-type]


def test_ratios_lie_between_those_of_the_neighbours() -> None:
    found = StepCorrections(
        "test",
        (
            step("decode", 8, 0, 1.0), step("decode", 16, 0, 1.2), step("decode", 12, 0, 9.0, "holdout"),
            step("prefill", 1, 128, 1.1), step("prefill", 1, 512, 0.9), step("prefill", 2, 192, 1.3),
        ),
    )  # fmt: skip
    assert found.decode_ratio(8) == 1.0
    assert found.decode_ratio(12) == pytest.approx(1.1)  # what was held out takes no part
    assert found.decode_ratio(64) == 1.2
    assert found.prefill_ratio(1, 320) == pytest.approx(1.0)
    assert found.prefill_ratio(1, 384) == 1.3  # as many tokens as two prompts of 192
    assert [held.batch for held in found.holdout()] == [12]


def test_a_step_model_with_corrections_keeps_the_bandwidth() -> None:
    """A measured ratio scales with the roofline: another bandwidth still changes every step."""
    shape, gpu, engine = ModelShape.load("llama-3-8b"), GpuProfile.load("h200"), EngineProfile.load("torch-paged")
    found = StepCorrections("test", (step("decode", 8, 0, 1.1, curve=((1000, 1.0), (3000, 1.02))),))
    plain, corrected = StepModel(shape, gpu, engine=engine), StepModel(shape, gpu, engine=engine, corrections=found)
    slow = StepModel(
        shape, replace(gpu, memory_bandwidth_bytes_per_s=0.9 * gpu.memory_bandwidth_bytes_per_s), engine=engine,
        corrections=found,
    )  # fmt: skip
    assert corrected.decode_ns(8, 0) == pytest.approx(1.1 * plain.decode_ns(8, 0), rel=1e-6)
    linear = round(1.1 * plain.decode_breakdown(8, 0).sum_ns) + plain.decode_ns(8, 3000) - plain.decode_ns(8, 0)
    assert corrected.decode_ns(8, 3000) == pytest.approx(1.02 * linear, rel=1e-6)
    assert slow.decode_ns(8, 2000) > 1.05 * corrected.decode_ns(8, 2000)
    assert corrected.prefill_ns(1, 256) == plain.prefill_ns(1, 256)
    assert 0 < corrected.prefill_busy(4, 1024) <= 1


def test_outside_a_curve_its_ends_hold() -> None:
    assert interpolated(((10.0, 20.0), (1.0, 2.0)), 5) == 1.0
    assert interpolated(((10.0, 20.0), (1.0, 2.0)), 15) == 1.5
    assert interpolated(((10.0, 20.0), (1.0, 2.0)), 99) == 2.0
    assert interpolated(((), ()), 99) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile = 'gpu'", "profile: 'gpu' is not allowed; allowed: 'steps'"),
        ("HEAD", "step: missing"),
        ("HEAD[[step]]\nkind = 'decode'", "allowed: a table of kind, batch"),
        ("HEAD[[step]]\nSTEP\nratio = 200.0", "ratio: 200.0 is not allowed"),
        ("HEAD[[step]]\nSTEP\nratio = 1.0\ncurve = [[20, 1.0], [10, 1.0]]", "curve: .* ascending"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    head = "profile = 'steps'\n" + "".join(
        f"{name} = 'x'\n" for name in ("name", "description", "model", "gpu", "engine", "source")
    )
    entry = "kind = 'decode'\nbatch = 1\nsequence = 0\nuse = 'fit'\nerror = 0.1\np50_ns = 5\nsamples = 1"
    path = tmp_path / "steps.toml"
    path.write_text(text.replace("HEAD", head).replace("STEP", entry))
    with pytest.raises(InputError, match=message):
        StepCorrections.load(path)


# --- turns ---


def test_a_thread_runs_one_slice_and_then_each_competitor_one() -> None:
    turns = Turns(2.0, 0.0, SLICE_NS, SLICE_NS, 0, np.random.default_rng(1))
    late = np.array([turns.late_ns(t) for t in range(0, 400 * SLICE_NS, SLICE_NS // 8)])
    assert late.max() <= 2 * SLICE_NS
    assert np.mean(late == 0) == pytest.approx(1 / 3, abs=0.01)


def test_a_question_is_answered_the_same_in_any_order() -> None:
    times = np.random.default_rng(2).integers(0, 10**9, 300).tolist()
    one, other = (Turns(1.5, 0.25, SLICE_NS, SLICE_NS, 10**8, np.random.default_rng(3)) for _ in range(2))
    forward = {t: one.late_ns(t) for t in sorted(times)}
    assert {t: other.late_ns(t) for t in times} == forward


def test_a_thread_starts_where_fewest_run_and_a_run_of_seconds_shows_the_mean() -> None:
    shares = []
    for seed in range(20):
        turns = Turns(1.4, 0.0, SLICE_NS, SLICE_NS, 10**9, np.random.default_rng(seed), first=2)
        times = range(0, 9 * 10**9, SLICE_NS)
        mine = np.array([turns.late_ns(t) == 0 for t in times])
        assert mine[: 900_000_000 // SLICE_NS].mean() == pytest.approx(1 / 3, abs=0.02)
        shares.append(mine[10**9 // SLICE_NS :].mean())
    assert np.mean(shares) == pytest.approx(0.6 / 2 + 0.4 / 3, rel=0.02)
    assert np.std(shares) < 0.03


def test_competitors_stay_for_a_placement() -> None:
    """With 1.5 of them on average, whole seconds have one, others two."""
    turns = Turns(1.5, 0.0, SLICE_NS, SLICE_NS, 10**9, np.random.default_rng(4))
    mine = np.array([turns.late_ns(t) == 0 for t in range(0, 20 * 10**9, SLICE_NS)]).reshape(20, -1).mean(axis=1)
    assert mine.max() > 0.48
    assert mine.min() < 0.36
