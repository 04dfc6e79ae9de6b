"""`blink trace export`: the perfetto package's own classes read it, spans nest and agree with the run; bad input."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from blink.report.rundir import read_run
from blink.report.timeline.model import Edge, Instant, Span, Timeline, Track, cut, happenings
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")
Named = tuple[str, str]
"""Group and name of a track."""


def made(folder: Path, *more: str) -> Path:
    assert main(["run", TINY, *more, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("blink") / "r")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("vllm") / "r", "--set", 'system={kind="vllm"}')


def perfetto(folder: Path, *more: str) -> Any:
    """The trace of a run as the package's protobuf classes read it."""
    classes = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs extra perfetto")
    out = folder.parent / "out.pftrace"
    assert main(["trace", "export", str(folder), "--out", str(out), *more]) == 0
    trace = classes.Trace()
    trace.ParseFromString(out.read_bytes())
    assert all(packet.IsInitialized() for packet in trace.packet)
    return trace


def spans_of(trace: Any) -> Iterator[tuple[Named, int, int, int, str]]:
    """(track, its uuid, start, end, name) of each span, by a stack a track: fails where an end has no begin."""
    kinds = trace.packet[0].track_event.DESCRIPTOR.enum_types_by_name["Type"].values_by_name
    begin, end = kinds["TYPE_SLICE_BEGIN"].number, kinds["TYPE_SLICE_END"].number
    names: dict[int, Named] = {}
    groups: dict[int, str] = {}
    open_spans: dict[int, list[tuple[int, str]]] = defaultdict(list)
    latest: dict[int, int] = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if not track.HasField("parent_uuid"):
                groups[track.uuid] = track.name
            else:
                names[track.uuid] = (groups[track.parent_uuid], track.name)
            continue
        event = packet.track_event
        uuid = event.track_uuid
        assert uuid in names
        assert packet.timestamp >= latest.get(uuid, 0), "the times of a track never go back"
        latest[uuid] = packet.timestamp
        if event.type == begin:
            open_spans[uuid].append((packet.timestamp, event.name))
        elif event.type == end:
            start, name = open_spans[uuid].pop()
            yield names[uuid], uuid, start, packet.timestamp, name
    assert not any(open_spans.values()), "every span ends"


def test_the_perfetto_classes_read_every_track_and_spans_nest(run: Path) -> None:
    spans = list(spans_of(perfetto(run)))
    groups = {track[0] for track, *_ in spans}
    assert groups == {"frontend", "link", "scheduler", "slots"}
    requests = read_run(run).requests
    whole = [span for span in spans if span[0] == ("frontend", "requests") and span[4].startswith("request ")]
    assert len(whole) == len(requests["sent_ns"])
    assert len({uuid for _, uuid, *_ in whole}) == len(whole), "requests overlap: each has a track of its own"
    assert max(_together(whole)) > 1
    decoded = [end - start for track, _, start, end, name in spans if track[0] == "frontend" and name == "decode"]
    good = requests["first_token_ns"] >= 0
    assert sum(decoded) == int((requests["last_token_ns"] - requests["first_token_ns"])[good].sum())


def _together(spans: list[Any]) -> list[int]:
    return [sum(1 for other in spans if other[2] <= span[2] < other[3]) for span in spans]


def test_graphs_are_those_of_the_run_one_after_the_other(run: Path) -> None:
    graphs = [span for span in spans_of(perfetto(run)) if span[0] == ("scheduler", "graphs")]
    blink = read_run(run).summary["blink"]
    kinds = [name.split()[0] for *_, name in graphs]
    assert kinds.count("decode") == blink["decode_launches"]
    assert kinds.count("prefill") == blink["prefill_launches"]
    assert all(before[3] <= after[2] for before, after in pairwise(graphs))


def test_a_slot_holds_one_request_at_a_time_and_its_states_fill_the_stay(run: Path) -> None:
    by_track: dict[Named, list[Any]] = defaultdict(list)
    for span in spans_of(perfetto(run)):
        if span[0][0] == "slots":
            by_track[span[0]].append(span)
    requests = read_run(run).requests
    stays = [span for spans in by_track.values() for span in spans if span[4].startswith("request ")]
    assert len(stays) == int((requests["slot"] >= 0).sum())
    for spans in by_track.values():
        inside = sum(end - start for *_, start, end, name in spans if not name.startswith("request "))
        assert inside == sum(end - start for *_, start, end, name in spans if name.startswith("request "))


def test_counters_end_where_nothing_is_left(run: Path) -> None:
    trace = perfetto(run)
    kind = trace.packet[0].track_event.DESCRIPTOR.enum_types_by_name["Type"].values_by_name["TYPE_COUNTER"].number
    names = {one.track_descriptor.uuid: one.track_descriptor.name for one in trace.packet}
    values: dict[str, list[int]] = defaultdict(list)
    for packet in trace.packet:
        if packet.track_event.type == kind:
            values[names[packet.track_event.track_uuid]].append(packet.track_event.counter_value)
    summary = read_run(run).summary["blink"]
    assert max(values["batch, sequences"]) == summary["batch"]["max"]
    assert max(values["KV blocks"]) == summary["kv_blocks"]["max"]
    assert {name: found[-1] for name, found in values.items()} == {
        "batch, sequences": 0, "waiting in the ring": 0, "KV blocks": 0,
    }  # fmt: skip


def test_groups_and_tracks_have_their_order_from_the_run_and_not_from_their_names(run: Path) -> None:
    tracks = [packet.track_descriptor for packet in perfetto(run).packet if packet.HasField("track_descriptor")]
    groups = [track for track in tracks if not track.HasField("parent_uuid")]
    assert [group.name for group in groups] == ["frontend", "link", "scheduler", "slots"]
    ranks = [group.sibling_order_rank for group in groups]
    assert ranks == sorted(set(ranks))
    for group in groups:
        assert group.child_ordering == group.EXPLICIT
        inside = {track.name: track.sibling_order_rank for track in tracks if track.parent_uuid == group.uuid}
        assert list(inside.values()) == sorted(set(inside.values()))
    slots = [track.name for track in tracks if track.parent_uuid == groups[-1].uuid]
    assert slots == sorted(slots, key=lambda name: int(name.split()[1]))
    assert slots != sorted(slots), "slot 10 comes after slot 9"


@pytest.mark.parametrize(
    ("system", "parts"), [("blink", ["link", "scheduler", "slots"]), ("vllm", ["scheduler", "sequences"])]
)
def test_a_fleet_has_the_groups_of_each_replica_and_its_spans_nest(
    system: str, parts: list[str], tmp_path: Path
) -> None:
    folder = made(tmp_path / "r", "--set", f'system={{kind="{system}"}}', "--set", "fleet={replicas=2}")
    spans = list(spans_of(perfetto(folder)))
    of_replicas = [f"replica {number}, {part}" for number in (0, 1) for part in parts]
    assert {track[0] for track, *_ in spans} == {"frontend", *of_replicas}
    requests = read_run(folder).requests
    held = "slots" if system == "blink" else "sequences"
    stays = [span for span in spans if span[0][0].endswith(held) and span[4].startswith("request ")]
    assert len(stays) == len(requests["sent_ns"])
    graphs = [span for span in spans if span[0] == ("replica 1, scheduler", "graphs")]
    assert graphs


def test_an_engines_steps_and_sequences_nest_too(engine: Path) -> None:
    spans = list(spans_of(perfetto(engine)))
    assert {track for track, *_ in spans} >= {("scheduler", "graphs"), ("sequences", "sequences")}
    assert {"waiting", "prefill", "decode"} <= {name for track, *_, name in spans if track[0] == "sequences"}


@pytest.mark.parametrize("kind", ["run", "engine"])
def test_chromes_json_has_the_same_spans(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    out = folder.parent / "out.json"
    assert main(["trace", "export", str(folder), "--format", "chrome", "--out", str(out)]) == 0
    events = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    stacks: dict[Any, list[Any]] = defaultdict(list)
    found = 0
    for event in events:
        at = (event["pid"], event.get("id", event["tid"]))
        if event["ph"] in "Bb":
            stacks[at].append(event)
        elif event["ph"] in "Ee":
            begun = stacks[at].pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
            found += 1
    assert not any(stacks.values())
    assert found == len(list(spans_of(perfetto(folder))))
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"frontend", "scheduler"} <= processes


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("perfetto", reason="needs extra perfetto")
    for form in ("perfetto", "chrome"):
        for name in ("a", "b"):
            assert main(["trace", "export", str(run), "--format", form, "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_part_of_the_run_is_cut_out(run: Path) -> None:
    spans = list(spans_of(perfetto(run, "--from", "0.1", "--to", "0.2")))
    assert spans
    assert all(100_000_000 <= start <= end <= 200_000_000 for _, _, start, end, _ in spans)


def test_spans_that_do_not_nest_are_a_fault() -> None:
    track = Track("g", "t", spans=[Span(0, 10, "a"), Span(5, 15, "b")])
    with pytest.raises(ValueError, match="g, t: b at 5 ns ends after what it is in"):
        list(happenings(track))


def test_happenings_of_one_moment_close_before_they_open() -> None:
    track = Track("g", "t", spans=[Span(0, 5, "a"), Span(5, 9, "b"), Span(5, 7, "c")], instants=[Instant(5, "i")])
    edges = [(t_ns, edge, name) for t_ns, edge, name, _ in happenings(track)]
    assert edges == [
        (0, Edge.BEGIN, "a"), (5, Edge.END, ""), (5, Edge.BEGIN, "b"), (5, Edge.BEGIN, "c"), (5, Edge.INSTANT, "i"),
        (7, Edge.END, ""), (9, Edge.END, ""),
    ]  # fmt: skip


def test_a_counter_keeps_its_level_at_a_cut() -> None:
    whole = Timeline("r", [Track("g", "c", levels=[(0, 1), (4, 2), (8, 3)])])
    assert cut(whole, 5, 9).tracks[0].levels == [(5, 2), (8, 3)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("absent",), "absent: no such folder"),
        (("RUN", "--format", "svg"), "invalid choice: 'svg'"),
        (("RUN", "--from", "x"), "--from: 'x' is not allowed"),
        (("RUN", "--from", "3", "--to", "2"), "--to 2: is not allowed"),
        (("RUN", "--out", "/absent/file"), "cannot be written"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "export", *(str(run) if one == "RUN" else one for one in arguments)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_run_without_a_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path / "r", "--set", "trace.format=none")
    assert main(["trace", "export", str(folder)]) == 2
    assert "no trace in this folder" in capsys.readouterr().err
