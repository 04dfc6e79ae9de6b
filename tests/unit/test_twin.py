"""Statistics, tolerances, forms of runs, occupancy: the parts of blink validate that need no hardware trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink import cli
from blink.common.errors import InputError
from blink.common.lifecycle import LifeEvent, LifeTrace
from blink.twin.observed import ObservedRun, matched, read_observed, write_log
from blink.twin.occupancy import occupancies, regimes
from blink.twin.report import verdict_lines
from blink.twin.statistics import compare, compare_owned, distances
from blink.twin.token_gaps import TokenGaps
from blink.twin.tolerances import Tolerances
from blink.twin.validation import groups
from blink.twin.validation import validate as compare_runs

MS = 1_000_000


# --- statistics ---


def test_distances_of_known_distributions() -> None:
    """A shift moves every quantile by as much: Wasserstein-1 is the shift; half the samples moved far is KS 1/2."""
    samples = np.random.default_rng(1).normal(100.0, 10.0, 2_000)
    shift, _ = distances(samples, samples + 3.0)
    assert shift == pytest.approx(3.0)
    moved = np.where(np.arange(2_000) % 2, samples, samples + 1_000.0)
    _, largest = distances(samples, moved)
    assert largest == pytest.approx(0.5, abs=0.02)
    assert distances(samples, samples) == (0.0, 0.0)


def test_errors_are_relative_to_the_measurement_and_their_intervals_hold_them() -> None:
    real = np.random.default_rng(2).exponential(20.0, 800)
    found = compare(real, 1.1 * real)
    for error in found.errors:
        assert error.relative == pytest.approx(0.1)
        assert error.low == pytest.approx(0.1)  # drawn together, the ratio does not scatter
        assert error.high == pytest.approx(0.1)
    other = compare(real, np.random.default_rng(3).exponential(20.0, 800))
    mean = other.error("mean")
    assert mean.low < mean.relative < mean.high
    assert mean.high - mean.low == pytest.approx(4 / np.sqrt(800) * np.sqrt(2), rel=0.25)
    assert compare(real, 1.1 * real).errors == found.errors  # the draw is seeded


def test_samples_of_a_request_are_drawn_together() -> None:
    """One sample each is the plain bootstrap; eight equal ones each have its interval, which is no narrower."""
    rng = np.random.default_rng(4)
    real, sim, owner = rng.exponential(20.0, 600), rng.exponential(21.0, 600), np.arange(600)
    plain, single = compare(real, sim), compare_owned(real, sim, owner, owner)
    many = compare_owned(*(np.repeat(part, 8) for part in (real, sim, owner, owner)))
    for statistic in ("mean", "p50", "p90", "p99"):
        for found in (single, many):
            error, expected = found.error(statistic), plain.error(statistic)
            assert error.relative == pytest.approx(expected.relative, abs=0.02)
            assert (error.low, error.high) == pytest.approx((expected.low, expected.high), abs=0.03)


def test_gaps_are_those_of_the_chosen_rows() -> None:
    gaps = TokenGaps(np.array([0, 0, 2, 3]), np.array([5, 6, 7, 8]))
    owner, gap_ns = gaps.of_rows(np.array([3, 1, 0]))
    assert sorted(zip(owner.tolist(), gap_ns.tolist(), strict=True)) == [(0, 8), (2, 5), (2, 6)]


# --- forms ---


def benchmark(count: int = 30, slower: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    ttfts = (0.02 + 0.01 * rng.random(count)) * slower
    itls = [(0.005 + 0.001 * rng.random(9)) * slower for _ in range(count)]
    return {
        "start_times": (100.0 + np.arange(count) * 0.1).tolist(), "ttfts": ttfts.tolist(),
        "itls": [row.tolist() for row in itls], "input_lens": [64 + row for row in range(count)],
        "output_lens": [10] * count, "errors": [""] * (count - 1) + ["timed out"],
    }  # fmt: skip


def written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_benchmark_json_with_details_is_a_run(tmp_path: Path) -> None:
    content = benchmark()
    run = read_observed(written(tmp_path / "bench.json", content))
    assert len(run) == 29  # one failed
    assert run.left_out == 1
    assert run.first_ns[3] - run.sent_ns[3] == pytest.approx(content["ttfts"][3] * 1e9, abs=1)
    assert run.last_ns[3] - run.first_ns[3] == pytest.approx(sum(content["itls"][3]) * 1e9, abs=1)
    assert run.listed_gaps is not None
    assert len(run.listed_gaps.gap_ns) == 29 * 9


def test_gaps_of_a_host_driven_engine_are_those_of_its_outputs() -> None:
    """Two requests in turns; what else happens makes no token."""
    first, token, done = LifeEvent.FIRST_TOKEN, LifeEvent.TOKEN, LifeEvent.FINISHED
    rows = [
        (10, first, 7),
        (15, first, 3),
        (30, token, 7),
        (31, token, 3),
        (60, token, 7),
        (60, done, 7),
        (70, done, 9),
    ]
    table = np.array(rows, np.int64)
    columns = dict(zip(("t_ns", "event", "request_id"), table.T, strict=True))
    found = TokenGaps.of_lifecycle(LifeTrace("made up", None, None, columns), np.array([3, 7], np.int64))  # type: ignore[arg-type]
    assert found.row.tolist() == [0, 1, 1]
    assert found.gap_ns.tolist() == [16, 20, 30]


def test_a_run_becomes_a_request_log_and_comes_back(tmp_path: Path) -> None:
    run = read_observed(written(tmp_path / "bench.json", benchmark()))
    write_log(run, tmp_path / "log.jsonl")
    again = read_observed(tmp_path / "log.jsonl")
    np.testing.assert_allclose(again.first_ns - again.sent_ns, run.first_ns - run.sent_ns, atol=1)
    np.testing.assert_allclose(again.last_ns, run.last_ns - run.sent_ns.min(), atol=1)
    np.testing.assert_array_equal(again.prompt_tokens, run.prompt_tokens)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", '{"ttfts": [1]}', "start_times: missing; needed: the details of a benchmark"),
        ("run.json", "[", "not valid JSON"),
        ("run.json", '{"start_times":[1],"ttfts":[],"itls":[],"input_lens":[],"output_lens":[]}', "not of one length"),
        ("run.txt", "", "is no run; allowed: the folder of a run"),
        ("run.jsonl", "", "holds no request"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_observed(path)


def observed(sent: list[int], first: list[int], last: list[int], **more: Any) -> ObservedRun:
    arrays = [np.array(values, np.int64) * MS for values in (sent, first, last)]
    count = len(sent)
    lengths = {"prompt_tokens": np.full(count, 8), "output_tokens": np.full(count, 4), **more}
    return ObservedRun("run", np.arange(count), *arrays, **lengths, left_out=0, parts={})


def test_runs_of_other_loads_are_refused() -> None:
    one, other = observed([0, 1], [2, 3], [4, 5]), observed([0, 1], [2, 3], [4, 5], prompt_tokens=np.array([8, 9]))
    with pytest.raises(InputError, match="request 1: prompt_tokens is 8 and 9: not the same load"):
        matched(one, other)
    with pytest.raises(InputError, match="no request is in both"):
        matched(one, one, skip=2)
    assert matched(one, one, skip=1)[0].tolist() == [1]


# --- occupancy ---


def test_batch_and_queue_are_counted_over_time() -> None:
    """Two requests of 100 ms each: the first waits 50, then decodes; the second the same, half a run later."""
    real = observed([0, 100], [50, 150], [100, 200])
    late = observed([0, 100], [80, 180], [100, 200])
    batch, queue = occupancies(real, late)
    assert batch.real == pytest.approx(0.5, abs=0.01)
    assert batch.sim == pytest.approx(0.2, abs=0.01)
    assert queue.apart == pytest.approx(0.3, abs=0.01)


def test_regimes_follow_the_places_that_are_taken() -> None:
    run = observed(list(range(9)), [50] * 9, [100] * 9)
    assert regimes(run, 6).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert regimes(run, None).max() == 1
    scarce = observed(
        [0] * 2 + list(range(10, 16)), [5] * 2 + [60] * 6, [100] * 8
    )  # two run, all others wait for memory
    assert regimes(scarce, 8).tolist() == [1, 1, 2, 2, 2, 2, 2, 2]


# --- tolerances ---


def test_the_packages_tolerances_are_those_of_the_aim() -> None:
    found = Tolerances.load()
    assert found.latency["ttft"] == {"mean": 0.02, "p50": 0.02, "p99": 0.05}
    assert found.throughput["output_tokens"] == 0.01
    assert found.parts["policy"] == 0.0
    assert found.conformance


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speed = 1", "speed: unknown; allowed: floor_ms"),
        ("[latency.ttft]\np42 = 0.1", "latency.ttft.p42: unknown; allowed: mean, p50, p90, p99"),
        ("[parts]\npolicy = -1", "parts.policy: -1 is not allowed; allowed: a number from 0"),
        ("conformance = 1", "conformance: 1 is not allowed; allowed: true, false"),
        ("throughput = 3", "throughput: 3 is not allowed; allowed: a table"),
    ],
)
def test_wrong_tolerances_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tolerances.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Tolerances.load(path)


# --- the command on runs without a trace ---


def validate(tmp_path: Path, slower: float, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    real, sim = (written(tmp_path / f"{name}.json", benchmark(slower=s)) for name, s in (("a", 1.0), ("b", slower)))
    code = cli.main(["validate", str(real), str(sim)])
    return code, capsys.readouterr().out


def test_equal_runs_pass_and_slower_ones_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = validate(tmp_path, 1.0, capsys)
    assert code == 0
    assert "within tolerance (the package's tolerances)" in said
    assert "parts: cannot be told apart: the measured run has no trace" in said
    code, said = validate(tmp_path, 1.1, capsys)
    assert code == 1
    assert "TPOT mean: +10.00%, allowed 2.00%" in said
    assert "ITL p50: +10.00%, allowed 2.00%" in said


def test_a_file_of_tolerances_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wide.toml"
    path.write_text("[latency.tpot]\nmean = 0.2\n")
    real, sim = (written(tmp_path / f"{name}.json", benchmark(slower=s)) for name, s in (("a", 1.0), ("b", 1.1)))
    assert cli.main(["validate", str(real), str(sim), "--tolerances", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["validations"][0]
    assert found["passed"]
    assert found["latencies"]["all"]["tpot"]["errors"]["mean"]["error"] == pytest.approx(0.1)
    assert found["not_decomposed"] == "the measured run has no trace"


@pytest.mark.parametrize(
    ("slower", "outside", "excused"),
    [((1.3, 1.3, 1.3, 1.3), True, False), ((1.5, 0.9, 1.6, 0.9), False, True), ((1.05, 0.95, 1.0, 1.0), False, False)],
)
def test_what_starts_scatter_by_counts_where_the_file_says_so(
    tmp_path: Path, slower: tuple[float, ...], outside: bool, excused: bool
) -> None:
    path = tmp_path / "starts.toml"
    path.write_text("by_start = true\n[latency.tpot]\nmean = 0.1\n")
    real = written(tmp_path / "real.json", benchmark())
    pairs = [(real, written(tmp_path / f"{index}.json", benchmark(slower=s))) for index, s in enumerate(slower)]
    tolerances = Tolerances.load(path)
    found = compare_runs("load", pairs, tolerances)
    assert bool(found.breaches) is outside
    assert bool(found.excused) is excused
    said = "\n".join(verdict_lines(found, tolerances))
    assert ("the interval over 4 starts reaches what is allowed" in said) is excused
    strict = compare_runs("load", pairs[:2], tolerances)  # two say nothing of what starts scatter by
    assert bool(strict.breaches) is (outside or excused)


def test_a_report_is_kept_with_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    real = written(tmp_path / "a.json", benchmark())
    out = tmp_path / "report"
    assert cli.main(["validate", str(real), str(real), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {"report.md", "validation.json", "qq-a.svg"}
    assert "### Latencies, 29 requests" in (out / "report.md").read_text()
    assert ">ITL<" in (out / "qq-a.svg").read_text() or "<!-- ITL -->" in (out / "qq-a.svg").read_text()
    capsys.readouterr()


def test_folders_of_runs_are_paired_by_name_and_pooled_over_seeds(tmp_path: Path) -> None:
    for side in ("real", "sim"):
        for name in ("load-30-s1", "load-30-s2", "load-60-s1"):
            (tmp_path / side / name).mkdir(parents=True)
            (tmp_path / side / name / "summary.json").write_text("{}")
    found = groups(tmp_path / "real", tmp_path / "sim")
    assert {name: len(pairs) for name, pairs in found.items()} == {"load-30": 2, "load-60": 1}
    (tmp_path / "sim" / "load-60-s1" / "summary.json").unlink()
    with pytest.raises(InputError, match="no run load-60-s1"):
        groups(tmp_path / "real", tmp_path / "sim")
    with pytest.raises(InputError, match="holds neither a run nor folders of runs"):
        groups(tmp_path, tmp_path)
