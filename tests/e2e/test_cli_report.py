"""`blink report`: one file that needs no other, of a run and of a sweep; what it says, and what it refuses."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from blink.cli import main
from blink.common.states import SlotState
from blink.report.html.page import table
from blink.report.html.ring_chart import mean_levels, occupancy
from blink.report.html.waterfall import waterfalls
from blink.report.rundir import read_run
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")


class Reader(HTMLParser):
    """What a page refers to, its ids, and whether its elements nest."""

    VOID = frozenset({"meta", "br", "use", "path", "image", "rect", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")
            elif name == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def report(folder: Path) -> str:
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


def check_stands_alone(html: str) -> Reader:
    """No script, nothing from elsewhere, every element closed, every id once, every colour a variable of the page."""
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert "script" not in reader.tags
    assert len(set(reader.ids)) == len(reader.ids)
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]*)\)", html)) <= set(reader.ids)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    body = html[html.index("</style>") :]
    assert not re.search(r"(fill|stroke): #(?!000000)", body)
    return reader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "r"
    assert main(["run", TINY, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "s"
    grid = ("--rate", "50:800:3", "--systems", "blink,vllm", "--over", "interference=none,colocated", "--seeds", "2")
    assert main(["sweep", TINY, *grid, "--workers", "1", "--out", str(folder)]) == 0
    return folder


def test_a_runs_page_stands_alone_and_tells_the_run(run: Path) -> None:
    html = report(run)
    check_stands_alone(html)
    count = read_run(run).summary["completed"]
    assert f"Blink completed {count} of 40 requests at 100 requests/s: half of the first tokens came within" in html
    for words in ("A slow request", "Slots of the ring by state", "KV blocks", "scenario.toml", "batch_max = 16"):
        assert words in html


def test_a_sweeps_page_stands_alone_and_tells_the_curves(sweep: Path) -> None:
    html = report(sweep)
    check_stands_alone(html)
    for words in (
        "Load in requests/s",
        "vLLM, colocated",
        "P99 TTFT, ms",
        "scenario: TTFT 50, TPOT 5 ms",
        "Every rate",
    ):
        assert words in html


def test_the_same_folder_gives_the_same_page(run: Path, sweep: Path) -> None:
    for folder in (run, sweep):
        assert report(folder) == report(folder)


@pytest.mark.parametrize("more", [("--set", 'system={kind="vllm"}'), ("--set", "trace.format=none")])
def test_a_run_without_a_ring_or_without_a_trace_has_its_page_too(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert main(["run", TINY, *more, "--out", str(tmp_path / "r")]) == 0
    html = report(tmp_path / "r")
    check_stands_alone(html)
    assert ("Slots of the ring in use" in html) == ("trace.format=none" in more)


def test_a_fleets_page_says_what_each_replica_did(tmp_path: Path) -> None:
    assert main(["run", TINY, "--set", "fleet={replicas=3}", "--out", str(tmp_path / "r")]) == 0
    html = report(tmp_path / "r")
    check_stands_alone(html)
    assert "h200, 3 replicas, seed 1" in html
    assert "Router: least-outstanding; on 1 host." in html
    done = [int(found) for found in re.findall(r'<td>replica \d</td>.*?data-label="completed">(\d+)<', html)]
    assert len(done) == 3
    assert sum(done) == read_run(tmp_path / "r").summary["completed"]


def test_a_sweep_of_one_load_has_no_curves_and_says_who_keeps_up(tmp_path: Path) -> None:
    options = ("--systems", "blink,vllm", "--seeds", "1", "--workers", "1")
    assert main(["sweep", TINY, *options, "--out", str(tmp_path / "s")]) == 0
    html = report(tmp_path / "s")
    check_stands_alone(html)
    assert "Over the load" not in html
    assert "kept by" in html


def test_what_cannot_run_is_told_once_with_all_whom_it_concerns(tmp_path: Path) -> None:
    over = ("--over", "model=smollm2-135m,bloom-176b,interference=none,colocated", "--seeds", "1", "--workers", "1")
    assert main(["sweep", TINY, "--rate", "50", *over, "--out", str(tmp_path / "s")]) == 0
    html = report(tmp_path / "s")
    assert html.count("Not run: Blink, bloom-176b, isolated; Blink, bloom-176b, colocated: memory: ") == 1
    assert html.count("bloom-176b, isolated") == 1


def test_names_in_a_scenario_are_text_and_not_markup(tmp_path: Path) -> None:
    assert main(["run", TINY, "--set", "name=<b>&amp;", "--out", str(tmp_path / "r")]) == 0
    html = report(tmp_path / "r")
    check_stands_alone(html)
    assert "<title>&lt;b&gt;&amp;amp;</title>" in html


def test_the_waterfall_adds_up_to_the_request(run: Path) -> None:
    requests = read_run(run).requests
    _, typical, slow = waterfalls(requests)
    for one in (typical, slow):
        row = int(np.flatnonzero(requests["request_id"] == int(one.more[4 : one.more.index(":")]))[0])
        assert sum(value for _, value in one.parts) == requests["ttft_ns"][row]
        assert sum(value for _, value in one.parts) + one.decode_ns == requests["e2e_ns"][row]


def test_a_table_that_folds_has_the_heading_in_every_cell_that_has_one() -> None:
    html = table(("", "a < b", "why not"), [["x", "1", ""]], words=(0, 2), folds=True)
    assert (
        '<td class="words">x</td><td data-label="a &lt; b">1</td><td class="words" data-label="why not"></td>' in html
    )
    assert "data-label" not in table(("", "a"), [["x", "1"]])


def test_slots_are_counted_by_state() -> None:
    states = SlotState.EMPTY, SlotState.PREFILL_PENDING, SlotState.PREFILL_PROCESSING, SlotState.DECODE_PROCESSING
    columns = {
        "t_ns": np.array([0, 10, 15, 20, 30, 40]),
        "slot": np.array([0, 1, -1, 0, 0, 0]),
        "from": np.array([*(states[0],) * 2, -1, states[1], states[2], states[3]]),
        "to": np.array([*(states[1],) * 2, -1, states[2], states[3], states[3]]),
    }
    times, counts = occupancy(columns)
    assert times.tolist() == [0, 10, 20, 30]  # a token moves nothing
    assert counts[SlotState.PREFILL_PENDING].tolist() == [1, 2, 1, 1]
    assert counts[SlotState.DECODE_PROCESSING].tolist() == [0, 0, 0, 1]
    edges = np.array([0.0, 20.0, 30.0])
    assert mean_levels(times, counts[SlotState.PREFILL_PENDING], edges).tolist() == [1.5, 1.0]


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_another_folder_is_refused_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"blink: error: {tmp_path / name}: ")
    assert err.count("\n") == 1


def test_a_broken_sweep_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.json").write_text("{}", encoding="utf-8")
    assert main(["report", str(tmp_path)]) == 2
    assert "sweep.json: is not what blink sweep keeps" in capsys.readouterr().err
