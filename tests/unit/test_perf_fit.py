"""The fit: it reproduces the H200 profile from the measured points, and recovers constants it is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.perf.fit import DEFAULT_POINTS, Fit, Points, fit, load_points, main, report, residuals
from blink.perf.gpu import GpuProfile
from tests.shared import ROOT, shared_path

DATA = load_points()


def test_fit_reproduces_the_profile() -> None:
    gpu = GpuProfile.load("h200")
    assert fit(DATA) == Fit(gpu.kernel_floor_ns, gpu.attention_bandwidth_efficiency)


def test_fit_does_not_start_from_the_profile() -> None:
    elsewhere = dataclasses.replace(DATA.gpu, kernel_floor_ns=1, attention_bandwidth_efficiency=0.1)
    assert fit(dataclasses.replace(DATA, gpu=elsewhere)) == fit(DATA)


def test_residuals_are_small_and_the_holdout_is_not_fitted() -> None:
    rows = residuals(DATA, fit(DATA).applied(DATA.gpu))
    assert [row.point.use for row in rows] == ["fit", "fit", "fit", "holdout"]
    assert max(abs(row.error) for row in rows if row.point.use == "fit") < 0.02
    assert abs(rows[-1].error) < 0.03
    without = dataclasses.replace(DATA, points=tuple(point for point in DATA.points if point.use == "fit"))
    assert fit(without) == fit(DATA)


def shown(truth: Fit) -> Points:
    """The points as they would be if the constants were `truth`."""
    rows = residuals(DATA, truth.applied(DATA.gpu))
    points = tuple(dataclasses.replace(row.point, period_ns=row.predicted_ns) for row in rows)
    return dataclasses.replace(DATA, points=points)


@pytest.mark.parametrize("truth", [Fit(2000, 0.5), Fit(3500, 0.9), Fit(1500, 0.31)])
def test_fit_recovers_what_it_is_shown(truth: Fit) -> None:
    found = fit(shown(truth))
    assert found.kernel_floor_ns == pytest.approx(truth.kernel_floor_ns, abs=1)
    assert found.attention_bandwidth_efficiency == pytest.approx(truth.attention_bandwidth_efficiency, abs=2e-4)


def test_points_are_the_medians_of_the_raw_arrays() -> None:
    for point in DATA.points:
        if (point.batch, point.layers) == (64, 32):
            continue  # its array travelled with the interfered half only; the log has its median
        path = shared_path(f"measurements/steps_b{point.batch}_t{point.kv_length}_l{point.layers}_isolated.npz")
        device = np.sort(np.load(path)["device"])
        assert len(device) == point.steps
        assert device[len(device) // 2] * 1000 == pytest.approx(point.period_ns, abs=10)


def test_the_documentation_holds_the_fit_as_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == report(DATA, fit(DATA))
    assert printed in (ROOT / "docs" / "models.md").read_text()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('use = "holdout"', 'use = "spare"', "point 3: use: 'spare' is not allowed; allowed: fit, holdout"),
        ("batch = 64", "batch = 0", "point 2: batch: 0; allowed: an integer >= 1"),
        ("batch = 64", "bunch = 64", "bunch"),
        ('gpu = "h200"', "", "gpu: missing"),
        ('gpu = "h200"', 'gpu = "h201"', "'h201' is not allowed"),
        ("batch = 16\nkv_length = 1024\nlayers = 32", "batch = 1\nkv_length = 1024\nlayers = 32", None),
        ('use = "fit"', 'use = "holdout"', "do not determine both constants"),
        ("period_ns = 8603870", "period_ns = 3000000", "not physical"),
    ],
)
def test_a_wrong_points_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, says: str | None
) -> None:
    text = DEFAULT_POINTS.read_text()
    assert before in text
    path = tmp_path / "points.toml"
    path.write_text(text.replace(before, after))
    if says is None:  # a point changed but still fits: different constants, no refusal
        assert fit(load_points(path)) != fit(DATA)
        return
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("blink: error: ")
    assert error.count("\n") == 1
    assert says in error


def test_an_absent_points_file() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_points("nowhere.toml")
