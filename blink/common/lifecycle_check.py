"""Checks the trace of a host-driven engine: the order of each life, the limits of each step, first come first served.

| rule | says |
|---|---|
| R1 | a request is received, tokenized, queued, scheduled, in that order and once; its times never go back |
| R2 | tokens count 1, 2, 3, ... without a gap, each from a step that is done; none before the prompt is computed |
| R3 | chunks of a prompt follow one another and cover it, from the cached context on |
| R4 | nothing is computed for a request that is not running: after preempted comes resumed first |
| R5 | finished once, with all its tokens; delivered after it; nothing afterwards |
| S1 | steps are numbered upwards and done in the order in which they were launched |
| S2 | a step has at most max_num_seqs sequences and max_num_batched_tokens tokens |
| S3 | KV blocks in use never exceed what there are |
| S4 | requests are scheduled for the first time in the order in which they were queued |
| L1 | a trace that claims to be complete leaves no request without an end |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from blink.common.lifecycle import COLUMNS, LifeEvent, LifeTrace, read_lifecycle
from blink.common.verdict import CONFORMS, INCONCLUSIVE, STUCK, VIOLATES, Finding, Verdict

VIOLATIONS_MAX = 10
Row = dict[str, int]


@dataclass(slots=True)
class _Life:
    """What is known of one request."""

    state: str = "received"
    t_ns: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    computed: int = 0
    to_compute: int = 0


class _BreachError(Exception):
    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def _need(condition: bool, rule: str, message: str) -> None:
    if not condition:
        raise _BreachError(rule, message)


class _Replay:
    """Follows a trace row by row."""

    def __init__(self, trace: LifeTrace) -> None:
        self.header = trace.header
        self.lives: dict[int, _Life] = {}
        self.line: deque[int] = deque()
        self.flying: deque[int] = deque()
        self.done: set[int] = set()
        self.steps = -1
        self._rules = {event: getattr(self, f"_{event.label}") for event in LifeEvent}

    def row(self, row: Row) -> None:
        """Take one row. Raises _BreachError."""
        event = LifeEvent(row["event"])
        if row["request_id"] >= 0 and event is not LifeEvent.RECEIVED:
            life = self.lives.get(row["request_id"])
            _need(life is not None, "R1", f"{event.label} of a request that was never received")
            assert life is not None
            _need(row["t_ns"] >= life.t_ns, "R1", f"{event.label} at {row['t_ns']} ns, before {life.t_ns} ns")
            _need(life.state != "ended", "R5", f"{event.label} after the request's end")
            if event is not LifeEvent.ABORTED:
                life.t_ns = row["t_ns"]
            self._rules[event](row, life)
        else:
            self._rules[event](row, None)

    def _received(self, row: Row, _: _Life | None) -> None:
        _need(row["request_id"] not in self.lives, "R1", "received twice")
        self.lives[row["request_id"]] = _Life(t_ns=row["t_ns"], prompt_tokens=row["tokens"])

    def _tokenized(self, row: Row, life: _Life) -> None:
        self._follows(life, ("received",), "tokenized")

    def _queued(self, row: Row, life: _Life) -> None:
        self._follows(life, ("tokenized",), "queued")
        self.line.append(row["request_id"])

    def _scheduled(self, row: Row, life: _Life) -> None:
        self._follows(life, ("queued",), "running")
        first = self.line.popleft() if self.line else None
        _need(first == row["request_id"], "S4", f"scheduled while request {first} was queued before it")
        self._admit(row, life)

    def _resumed(self, row: Row, life: _Life) -> None:
        self._follows(life, ("preempted",), "running")
        self._admit(row, life)

    def _admit(self, row: Row, life: _Life) -> None:
        _need(row["tokens"] >= life.prompt_tokens + life.tokens, "R3", f"{row['tokens']} tokens to compute are too few")
        life.to_compute, life.computed = row["tokens"], row["context"]

    def _preempted(self, row: Row, life: _Life) -> None:
        self._follows(life, ("running",), "preempted")

    def _prefill_chunk(self, row: Row, life: _Life) -> None:
        _need(life.state == "running", "R4", f"a chunk of a request that is {life.state}")
        _need(row["context"] == life.computed, "R3", f"a chunk behind {row['context']} tokens, not {life.computed}")
        life.computed += row["tokens"]
        _need(life.computed <= life.to_compute, "R3", f"{life.computed} of {life.to_compute} tokens computed")

    def _step_launched(self, row: Row, _: _Life | None) -> None:
        header = self.header
        _need(row["step"] == self.steps + 1, "S1", f"step {row['step']} after step {self.steps}")
        self.steps = row["step"]
        self.flying.append(row["step"])
        _need(row["rows"] <= header.max_num_seqs, "S2", f"{row['rows']} sequences, at most {header.max_num_seqs}")
        most = header.max_num_batched_tokens
        _need(row["tokens"] <= most, "S2", f"{row['tokens']} tokens, at most {most}")
        _need(row["blocks"] <= header.kv_blocks, "S3", f"{row['blocks']} KV blocks, there are {header.kv_blocks}")

    def _step_done(self, row: Row, _: _Life | None) -> None:
        _need(bool(self.flying) and self.flying[0] == row["step"], "S1", f"step {row['step']} done out of order")
        self.flying.popleft()
        self.done = {row["step"]}

    def _first_token(self, row: Row, life: _Life) -> None:
        self._token(row, life)

    def _token(self, row: Row, life: _Life) -> None:
        # A step in flight still yields the token of a request that was preempted meanwhile.
        _need(life.state in ("running", "preempted"), "R4", f"a token of a request that is {life.state}")
        _need(row["step"] in self.done, "R2", f"a token of step {row['step']}, which is not the one that is done")
        _need(row["tokens"] == life.tokens + 1, "R2", f"token {row['tokens']} after token {life.tokens}")
        whole = life.computed >= life.prompt_tokens or life.state == "preempted"
        _need(whole, "R2", f"a token with {life.computed} of {life.prompt_tokens} prompt tokens computed")
        life.tokens += 1

    def _finished(self, row: Row, life: _Life) -> None:
        _need(life.state in ("running", "preempted"), "R5", f"finished while {life.state}")
        _need(row["tokens"] == life.tokens, "R5", f"finished with {row['tokens']} tokens, it had {life.tokens}")
        life.state = "finished"

    def _aborted(self, row: Row, life: _Life) -> None:
        if row["request_id"] in self.line:
            self.line.remove(row["request_id"])
        life.state = "ended"

    def _delivered(self, row: Row, life: _Life) -> None:
        self._follows(life, ("finished",), "ended", "R5")
        _need(row["tokens"] == life.tokens, "R5", f"{row['tokens']} tokens delivered, it had {life.tokens}")

    @staticmethod
    def _follows(life: _Life, before: tuple[str, ...], after: str, rule: str = "R1") -> None:
        _need(life.state in before, rule, f"{after} after {life.state}")
        life.state = after


def check_lifecycle(source: LifeTrace | Path) -> Verdict:
    """The verdict on a trace: conforms, violates (up to ten findings), inconclusive (cut off), or stuck."""
    trace = read_lifecycle(source) if isinstance(source, Path) else source
    replay, findings = _Replay(trace), []
    lists = [trace.columns[name].tolist() for name in COLUMNS]
    for index, values in enumerate(zip(*lists, strict=True)):
        row = dict(zip(COLUMNS, values, strict=True))
        try:
            replay.row(row)
        except _BreachError as breach:
            where = f"request {row['request_id']}" if row["request_id"] >= 0 else f"step {row['step']}"
            findings.append(Finding(breach.rule, f"{where}: {breach}", index))
            if len(findings) == VIOLATIONS_MAX:
                break
    counts = {"events": len(trace), "requests": len(replay.lives), "steps": replay.steps + 1}
    if findings:
        return Verdict(VIOLATES, findings[0].message, tuple(findings), counts)
    footer = trace.footer
    if footer is None or footer.events != len(trace) or not footer.complete:
        return Verdict(INCONCLUSIVE, "the trace was cut off or says that the run was", (), counts)
    left = [request_id for request_id, life in replay.lives.items() if life.state != "ended"]
    if left:
        finding = Finding("L1", f"request {left[0]} never came to its end", -1)
        return Verdict(STUCK, f"{len(left)} requests never came to their end", (finding,), counts)
    reason = f"{len(trace)} events of {len(replay.lives)} requests in {replay.steps + 1} steps keep every rule"
    return Verdict(CONFORMS, reason, (), counts)
