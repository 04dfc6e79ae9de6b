"""The fit: it reproduces the profiles from the measured points, and recovers constants it is shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.perf.engine import EngineProfile
from blink.perf.fit import Fit, fit, main, report, residuals, residuals_report
from blink.perf.gpu import GpuProfile
from blink.perf.points import Points, load_points, shipped_points
from tests.shared import ROOT, shared_path

PATHS = {path.stem: path for path in shipped_points()}
FILES = [load_points(path) for path in PATHS.values()]
BY_NAME = {data.name: data for data in FILES}
FOUND = fit(FILES)


def errors(name: str, kind: str, use: str) -> list[float]:
    return [abs(r.error) for r in residuals(BY_NAME[name], FOUND) if (r.point.kind, r.point.use) == (kind, use)]


def test_fit_reproduces_the_profiles() -> None:
    gpu, engine = GpuProfile.load("h200"), EngineProfile.load("torch-capture")
    assert FOUND.on_gpu(gpu) == gpu
    assert FOUND.on_engine(engine) == engine


def test_fit_does_not_start_from_the_profile() -> None:
    elsewhere = dataclasses.replace(FILES[0].gpu, kernel_floor_ns=1, attention_bandwidth_efficiency=0.1)
    assert fit([dataclasses.replace(data, gpu=elsewhere) for data in FILES]) == FOUND


def test_only_fit_points_are_fitted() -> None:
    keep = [
        dataclasses.replace(data, points=tuple(point for point in data.points if point.use == "fit")) for data in FILES
    ]
    assert fit(keep) == FOUND
    fitted = {data.name: sum(point.use == "fit" for point in data.points) for data in FILES}
    assert fitted == {
        "h200-llama-3-8b-fused": 1,
        "h200-llama-3-8b-loop": 0,
        "h200-llama-3-8b-steps": 32,
        "h200-qwen3-32b-steps": 0,
    }


def test_fitted_steps_are_within_4_percent_but_one() -> None:
    """8 x 1024 tokens took 2.13 times what 4 x 1024 took, with a spread of 4 %; no constant explains that."""
    assert max(errors("h200-llama-3-8b-steps", "decode", "fit")) < 0.04
    prefill = sorted(errors("h200-llama-3-8b-steps", "prefill", "fit"))
    assert prefill[-2] < 0.04
    assert prefill[-1] < 0.08


@pytest.mark.parametrize(
    ("name", "kind", "bound"),
    [
        ("h200-qwen3-32b-steps", "prefill", 0.08),
        ("h200-qwen3-32b-steps", "decode", 0.09),
        ("h200-llama-3-8b-fused", "prefill", 0.08),
        ("h200-llama-3-8b-fused", "decode", 0.03),
        ("h200-llama-3-8b-loop", "decode", 0.05),
    ],
)
def test_held_out_steps_are_within_10_percent(name: str, kind: str, bound: float) -> None:
    held = errors(name, kind, "holdout")
    assert held
    assert max(held) < bound


def shown(truth: Fit) -> list[Points]:
    """The points as they would be if the constants were `truth`."""
    files = []
    for data in FILES:
        rows = residuals(data, truth)
        points = tuple(dataclasses.replace(row.point, p50_ns=round(row.predicted_ns)) for row in rows)
        files.append(dataclasses.replace(data, points=points))
    return files


@pytest.mark.parametrize(
    "truth", [Fit(2500, 1500, 2.5, 0.7, 0.6, 0.5), Fit(1000, 5000, 1.3, 0.95, 0.3, 0.9), FOUND], ids=["a", "b", "found"]
)
def test_fit_recovers_what_it_is_shown(truth: Fit) -> None:
    found = fit(shown(truth))
    for name, value in dataclasses.asdict(truth).items():
        assert getattr(found, name) == pytest.approx(value, rel=2e-3), name


def test_loop_points_are_the_medians_of_the_raw_arrays() -> None:
    for point in BY_NAME["h200-llama-3-8b-loop"].points:
        if (point.batch, point.layers) == (64, 32):
            continue  # its array travelled with the interfered half only; the log has its median
        path = shared_path(f"measurements/steps_b{point.batch}_t{point.sequence}_l{point.layers}_isolated.npz")
        device = np.sort(np.load(path)["device"])
        assert len(device) == point.samples
        assert device[len(device) // 2] * 1000 == pytest.approx(point.p50_ns, abs=10)


def test_the_documentation_holds_the_fit_as_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == report(FILES, FOUND)
    constants, summary = printed.split("\n\n")[:2]
    models = (ROOT / "docs" / "models.md").read_text()
    assert constants in models
    assert summary in models
    tables = (ROOT / "docs" / "measurements" / "h200-steps.md").read_text()
    for data in FILES:
        assert residuals_report(data, FOUND) in tables


STEPS = "h200-llama-3-8b-steps"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('use = "fit"', 'use = "spare"', "point 0: use: 'spare' is not allowed; allowed: fit, holdout, excluded"),
        ('kind = "decode"', 'kind = "encode"', "point 14: kind: 'encode' is not allowed; allowed: prefill, decode"),
        ("batch = 64", "batch = 0", "point 18: batch: 0; allowed: an integer >= 1"),
        ("batch = 64", "bunch = 64", "bunch"),
        ("samples = 30", 'samples = 30\nwhy = "odd"', "point 0: why: 'odd' is not allowed"),
        ('use = "fit"', 'use = "excluded"', "point 0: why: '' is not allowed"),
        ("loop = false", "loop = 0", "loop: 0 is not allowed; allowed: true, false"),
        ('gpu = "h200"', "", "gpu: missing"),
        ('gpu = "h200"', 'gpu = "h201"', "'h201' is not allowed"),
        ("p50_ns = 21766209", "p50_ns = 20900000", None),
    ],
)
def test_a_wrong_points_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, says: str | None
) -> None:
    text = PATHS[STEPS].read_text()
    assert before in text
    path = tmp_path / "points.toml"
    path.write_text(text.replace(before, after))
    if says is None:  # a point changed but still fits: different constants, no refusal
        assert fit([load_points(path), BY_NAME["h200-llama-3-8b-fused"]]) != FOUND
        return
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("blink: error: ")
    assert error.count("\n") == 1
    assert says in error


def without(data: Points, kind: str) -> Points:
    return dataclasses.replace(data, points=tuple(point for point in data.points if point.kind != kind))


@pytest.mark.parametrize("gone", ["fit", "decode", "prefill"])
def test_points_that_do_not_settle_every_constant_are_refused(gone: str) -> None:
    cut = without(BY_NAME[STEPS], gone)  # nothing of it for "fit", which is no kind
    files = [cut] if gone != "fit" else [data for data in FILES if data.name != STEPS]
    with pytest.raises(InputError, match="do not determine all constants"):
        fit(files)


@pytest.mark.parametrize("divisor", [3, 4])
def test_points_that_no_constant_explains_are_refused(divisor: int) -> None:
    data = BY_NAME[STEPS]
    faster = tuple(dataclasses.replace(point, p50_ns=point.p50_ns // divisor) for point in data.points)
    with pytest.raises(InputError, match="stands at its limit"):
        fit([dataclasses.replace(data, points=faster), BY_NAME["h200-llama-3-8b-fused"]])


def test_an_absent_points_file() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_points("nowhere.toml")
