"""`blink compare RUN_A RUN_B`: runs of Blink, of vLLM's benchmark and of guidellm, against each other; bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.cli import main
from blink.common import metrics
from blink.report.rundir import StoredRun, read_run
from blink.report.runs.difference import difference
from blink.report.runs.measured import AnyRun
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")
NO_CANCELS = ("--set", "workload.cancel.fraction=0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same forty requests by Blink and by a host-driven engine."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["run", TINY, *NO_CANCELS, "--out", str(folder / "a")]) == 0
    assert main(["run", TINY, *NO_CANCELS, "--set", 'system={kind="vllm"}', "--out", str(folder / "b")]) == 0
    return folder / "a", folder / "b"


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def vllm_json(run: StoredRun, *, detailed: bool) -> dict[str, Any]:
    """What `vllm bench serve` would have saved of the run, every gap of a request alike; one more request failed."""
    done = metrics.completed(run.requests)
    names = ("completed", "duration", "request_throughput", "output_throughput", "mean_ttft_ms", "p99_e2el_ms")
    saved = {"model_id": "m", "request_rate": "inf", "failed": 1, **{name: run.summary[name] for name in names}}
    saved["median_ttft_ms"] = run.summary["median_ttft_ms"]
    if not detailed:
        return saved
    tokens = done["output_tokens"].tolist()
    spans = ((done["last_token_ns"] - done["first_token_ns"]) / 1e9).tolist()
    gaps = [[span / (count - 1)] * (count - 1) if count > 1 else [] for span, count in zip(spans, tokens, strict=True)]
    saved["output_lens"], saved["itls"] = [*tokens, 0], [*gaps, []]
    saved["ttfts"] = [*(done["ttft_ns"] / 1e9).tolist(), 0.0]
    saved["errors"] = [*([""] * len(tokens)), "refused"]
    return saved


def guidellm_json(run: StoredRun) -> dict[str, Any]:
    done = metrics.completed(run.requests)
    rows = [
        {"request_latency": e2e / 1e9, "time_to_first_token_ms": ttft / 1e6, "inter_token_latency_ms": None}
        for e2e, ttft in zip(done["e2e_ns"].tolist(), done["ttft_ns"].tolist(), strict=True)
    ]
    spread = {"successful": {"mean": 7.0, "median": 6.0, "percentiles": {"p90": 8.0, "p99": 9.0}}}
    one = {
        "duration": 2.0,
        "config": {"strategy": {"type_": "constant", "rate": 5.0}},
        "metrics": {
            "request_totals": {"successful": len(rows), "errored": 2, "incomplete": 1},
            "output_tokens_per_second": {"successful": {"mean": 123.0}},
            "prompt_token_count": {"successful": {"total_sum": 456.0}},
            "inter_token_latency_ms": spread,
        },
        "requests": {"successful": rows},
    }
    return {"metadata": {"version": 2}, "benchmarks": [{"duration": 1.0}, one]}


def saved(folder: Path, document: Any) -> str:
    path = folder / "saved.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def test_two_runs_of_the_same_requests_are_paired(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = runs
    found = compared(capsys, str(a), str(b))
    summaries = [read_run(folder).summary for folder in runs]
    row = found["figures"]["p99_ttft_ms"]
    assert (row["a"], row["b"]) == tuple(summary["p99_ttft_ms"] for summary in summaries)
    assert row["ratio"] == pytest.approx(row["b"] / row["a"], rel=1e-5)
    assert {"option": "system.kind", "a": "blink", "b": "vllm"} in found["settings"]
    assert found["paired"]["requests"] == 40
    assert found["paired"]["ttft"]["sooner"] < 0.5
    assert 0 < found["distributions"]["ttft"]["distance"] <= 1


def test_a_run_is_like_itself(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, str(runs[0]), str(runs[0]))
    assert found["settings"] == []
    assert {row["ratio"] for row in found["figures"].values() if row["ratio"] is not None} == {1.0}
    assert {one["distance"] for one in found["distributions"].values()} == {0.0}
    assert found["paired"]["e2el"]["same"] == 1.0


def test_the_text_fits_a_terminal(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(runs[0]), str(runs[1])]) == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    for words in ("What differs in their scenarios", "TTFT P99, ms", "40 requests are the same on both sides"):
        assert words in out


def test_vllms_samples_give_the_figures_of_the_run_that_they_are_of(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = read_run(runs[0])
    found = compared(capsys, str(runs[0]), saved(tmp_path, vllm_json(run, detailed=True)))
    assert found["b"]["made_by"] == "vllm bench serve"
    for name in ("mean_ttft_ms", "p90_ttft_ms", "median_tpot_ms", "p99_e2el_ms", "output_throughput"):
        assert found["figures"][name]["ratio"] == pytest.approx(1.0, rel=1e-5), name
    assert found["figures"]["failed"]["b"] == 1
    assert found["distributions"]["ttft"]["distance"] == pytest.approx(0.0, abs=1e-9)


def test_vllms_figures_do_without_samples(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, str(runs[0]), saved(tmp_path, vllm_json(read_run(runs[0]), detailed=False)))
    assert found["figures"]["mean_ttft_ms"]["ratio"] == 1.0
    assert found["figures"]["p90_ttft_ms"]["b"] is None
    assert found["distributions"] == {}
    assert any("--save-detailed" in note for note in found["b"]["notes"])


def test_one_of_guidellms_benchmarks_is_read(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, guidellm_json(read_run(runs[0])))
    found = compared(capsys, str(runs[0]), f"{path}#1")
    assert found["figures"]["p99_ttft_ms"]["ratio"] == pytest.approx(1.0, rel=1e-5)
    assert found["figures"]["mean_tpot_ms"]["b"] == 7.0
    assert found["figures"]["failed"]["b"] == 3
    assert found["figures"]["output_throughput"]["b"] == 123.0
    assert found["figures"]["total_input_tokens"]["b"] == 456.0
    assert found["figures"]["request_rate"]["b"] == 5.0
    assert found["figures"]["total_output_tokens"]["b"] is None


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    a = AnyRun("a", "", {}, {"ttft": np.array([1, 2, 3, 4]) * 1_000_000})
    b = AnyRun("b", "", {}, {"ttft": np.array([3, 4, 5, 6]) * 1_000_000})
    assert difference(a, b)["distributions"]["ttft"] == {"distance": 0.5, "at_ms": 2.0, "a": 0.5, "b": 0.0}


def test_the_figure_is_drawn(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "both.svg"
    assert main(["compare", str(runs[0]), str(runs[1]), "--figure", str(out)]) == 0
    assert "TTFT: share that was as fast" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("document", "suffix", "says"),
    [
        ({"completed": 1, "request_throughput": "fast"}, "", "request_throughput is 'fast'; allowed: a number"),
        ({"completed": 1, "request_throughput": 1}, "#1", "# chooses a benchmark of a guidellm report"),
        ({"completed": 1, "request_throughput": 1, "output_lens": [1], "ttfts": [1], "itls": [1, 2]}, "", "one length"),
        (
            {"completed": 1, "request_throughput": 1, "output_lens": [1], "ttfts": [1], "itls": [1]},
            "",
            "list of numbers",
        ),
        ({"benchmarks": [{}, {}]}, "", "holds 2 benchmarks; say which"),
        ({"benchmarks": [{}]}, "#3", "#3: no such benchmark"),
        ({"benchmarks": [3]}, "#0", "benchmarks[0]: is 3; allowed: a JSON object"),
        ({"benchmarks": [{}]}, "#x", "#x is not allowed"),
        ([1, 2], "", "is not a run"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(
    document: Any, suffix: str, says: str, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["compare", str(runs[0]), saved(tmp_path, document) + suffix]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("A",), "is a run; give a second one"),
        (("A", "absent.json"), "absent.json: cannot be read"),
        (("A", "B", "--rate", "3"), "--rate: says how to run a scenario"),
        (("A", "B", "--systems", "blink"), "--systems: says how to run a scenario"),
        (("A", "B", "--format", "markdown"), "--format markdown"),
        ((TINY, "B"), "ci-tiny.toml: is not JSON"),
    ],
)
def test_runs_and_scenarios_are_not_mixed(
    arguments: tuple[str, ...], says: str, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    names = {"A": str(runs[0]), "B": str(runs[1])}
    assert main(["compare", *(names.get(one, one) for one in arguments)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
