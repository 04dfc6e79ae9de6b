"""A run of a host-driven engine: its steps and its sequences, out of its lifecycle trace."""

from __future__ import annotations

from blink.common.lifecycle import LifeEvent, LifeTrace
from blink.report.timeline.model import Instant, Span, Track

SCHEDULER, SEQUENCES = "scheduler", "sequences"
NEXT = {
    LifeEvent.QUEUED: "waiting",
    LifeEvent.SCHEDULED: "prefill",
    LifeEvent.PREEMPTED: "preempted",
    LifeEvent.RESUMED: "prefill again",
    LifeEvent.FIRST_TOKEN: "decode",
}
"""What a sequence does from the event on."""
OVER = (LifeEvent.FINISHED, LifeEvent.ABORTED)
DECISIONS = (LifeEvent.SCHEDULED, LifeEvent.RESUMED, LifeEvent.PREEMPTED, LifeEvent.ABORTED)


def engine_tracks(trace: LifeTrace) -> list[Track]:
    """The tracks of a lifecycle trace. Steps may overlap: the CPU launches one while the GPU runs the one before."""
    columns = {name: column.tolist() for name, column in trace.columns.items()}
    launched: dict[int, tuple[int, dict[str, int | str]]] = {}
    steps: list[Track] = []
    doing: dict[int, tuple[int, str]] = {}
    stays: dict[int, list[Span]] = {}
    decisions: list[Instant] = []
    rows_now: list[tuple[int, int]] = []
    blocks_now: list[tuple[int, int]] = []
    last_ns = max(columns["t_ns"], default=0)
    for row in sorted(range(len(columns["t_ns"])), key=columns["t_ns"].__getitem__):
        t_ns, event = columns["t_ns"][row], LifeEvent(columns["event"][row])
        step, request = columns["step"][row], columns["request_id"][row]
        if event == LifeEvent.STEP_LAUNCHED:
            args: dict[str, int | str] = {name: columns[name][row] for name in ("step", "rows", "tokens", "blocks")}
            launched[step] = (t_ns, args)
            rows_now.append((t_ns, columns["rows"][row]))
            blocks_now.append((t_ns, columns["blocks"][row]))
        elif event == LifeEvent.STEP_DONE and step in launched:
            since, args = launched.pop(step)
            steps.append(
                Track(SCHEDULER, "graphs", overlaps=True, spans=[Span(since, max(t_ns, since), _step(args), args)])
            )
        if event in NEXT or event in OVER:
            if request in doing:
                since, name = doing.pop(request)
                stays.setdefault(request, []).append(Span(since, t_ns, name))
            if event in NEXT:
                doing[request] = (t_ns, NEXT[event])
        if event in DECISIONS:
            decisions.append(Instant(t_ns, event.label, {"request_id": request}))
    for request, (since, name) in doing.items():
        stays.setdefault(request, []).append(Span(since, last_ns, name, {"unfinished": 1}))
    found = [
        Track(SCHEDULER, "decisions", instants=decisions),
        *steps,
        Track(SCHEDULER, "batch, sequences", levels=_last_of_each(rows_now)),
        Track(SCHEDULER, "KV blocks", levels=_last_of_each(blocks_now)),
    ]
    found += [
        Track(SEQUENCES, "sequences", overlaps=True, spans=[_whole(request, stays[request]), *stays[request]])
        for request in sorted(stays)
    ]
    return [track for track in found if track.spans or track.instants or track.levels]


def _step(args: dict[str, int | str]) -> str:
    return f"step, {args['rows']} sequences, {args['tokens']} tokens"


def _whole(request: int, spans: list[Span]) -> Span:
    return Span(spans[0].start_ns, spans[-1].end_ns, f"request {request}")


def _last_of_each(levels: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of several values at one time, the last."""
    return sorted(dict(levels).items())
