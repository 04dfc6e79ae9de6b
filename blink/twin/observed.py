"""ObservedRun: what happened to each request of a run, whoever recorded it: a run's folder, benchmark JSON, a log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.lifecycle import is_lifecycle, read_lifecycle
from blink.common.results import I64, TTFT_PARTS, Outcome
from blink.common.trace import TRACE_FILE_NAMES, read_trace
from blink.common.units import NS_PER_S
from blink.report.rundir import SCENARIO_NAME, SUMMARY_NAME, StoredRun, read_run
from blink.twin.token_gaps import TokenGaps
from blink.workload.measured import MeasuredRun

BENCH_FIELDS = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
"""What `vllm bench serve --save-detailed` leaves, in seconds and tokens, one entry a request."""
TIMES = ("sent_ns", "first_ns", "last_ns")


@dataclass(frozen=True, slots=True, eq=False)
class ObservedRun:
    """Completed requests in the order of their keys, as their clients (or, of a log, the engine's core) saw them.

    `key` names the same request in a measured and in a predicted run. `parts`: nanoseconds of each part of TTFT, where
    they are known. `listed_gaps`: times between tokens that a benchmark lists; `gap_statistics_ms`: what a summary says
    of them. `folder`: of a run with a scenario, and perhaps a trace. `limit`: sequences that run together at most.
    `request_id`: of each row, as its trace has it.
    """

    name: str
    key: I64
    sent_ns: I64
    first_ns: I64
    last_ns: I64
    prompt_tokens: I64
    output_tokens: I64
    left_out: int
    parts: dict[str, I64]
    listed_gaps: TokenGaps | None = None
    gap_statistics_ms: dict[str, float] | None = None
    folder: Path | None = None
    limit: int | None = None
    request_id: I64 | None = None

    def __len__(self) -> int:
        return len(self.key)

    @property
    def trace_path(self) -> Path | None:
        """Its trace, if one was kept."""
        found = [self.folder / name for name in TRACE_FILE_NAMES if self.folder and (self.folder / name).is_file()]
        return found[0] if found else None

    @property
    def scenario_path(self) -> Path | None:
        """Its scenario, if it was kept."""
        path = self.folder / SCENARIO_NAME if self.folder else None
        return path if path and path.is_file() else None

    def gaps(self) -> TokenGaps | None:
        """Times between tokens: those that a benchmark lists, or by a trace, of slots or of a host-driven engine."""
        path = self.trace_path
        if self.listed_gaps or path is None or self.request_id is None:
            return self.listed_gaps
        if is_lifecycle(path):
            return TokenGaps.of_lifecycle(read_lifecycle(path), self.request_id)
        return TokenGaps.of_trace(read_trace(path), self.request_id)


def read_observed(path: Path) -> ObservedRun:
    """Read a run's folder, a `.json` of a benchmark with details, or a `.jsonl` request log.

    Raises InputError for anything else, and for one in which no request was completed.
    """
    if path.is_dir():
        run = _of_folder(path)
    elif path.suffix == ".json":
        run = _of_benchmark(path)
    elif path.suffix == ".jsonl":
        run = _of_log(path)
    else:
        allowed = "the folder of a run, benchmark JSON (.json) with details, a request log (.jsonl)"
        raise InputError(f"{path}: is no run; allowed: {allowed}")
    if not len(run):
        raise InputError(f"{path}: no request was completed: there is nothing to compare")
    return run


def is_run(folder: Path) -> bool:
    """Whether a folder is that of one run."""
    return (folder / SUMMARY_NAME).is_file()


def _of_folder(path: Path) -> ObservedRun:
    stored: StoredRun = read_run(path)
    rows = stored.requests
    done = np.flatnonzero(rows["outcome"] == Outcome.COMPLETED)
    traced = len(done) > 0 and bool(np.all(rows["source_row"][done] > 0))
    key = rows["source_row"] - 1 if traced else rows["request_id"]
    done = done[np.argsort(key[done], kind="stable")]
    blink = stored.summary["blink"]
    statistics = {
        name: float(stored.summary[f"{name}_itl_ms"])
        for name in ("mean", "p50", "p90", "p99")
        if stored.summary.get(f"{name}_itl_ms") is not None
    }
    return ObservedRun(
        path.name, key[done], rows["sent_ns"][done], rows["first_token_ns"][done], rows["last_token_ns"][done],
        rows["prompt_tokens"][done], rows["output_tokens"][done], len(key) - len(done),
        {name: rows[name][done] for name in TTFT_PARTS}, gap_statistics_ms=statistics or None, folder=path,
        limit=blink["batch"]["limit"] or None, request_id=rows["request_id"][done],
    )  # fmt: skip


def _of_benchmark(path: Path) -> ObservedRun:
    raw = _json(path)
    for name in BENCH_FIELDS:
        if not isinstance(raw.get(name), list):
            raise InputError(f"{path}: {name}: missing; needed: the details of a benchmark (--save-detailed)")
    count = len(raw["start_times"])
    if any(len(raw[name]) != count for name in BENCH_FIELDS):
        raise InputError(f"{path}: {', '.join(BENCH_FIELDS)}: not of one length")
    try:
        start, ttft = np.array(raw["start_times"], np.float64), np.array(raw["ttfts"], np.float64)
        gaps = [np.array(row, np.float64) for row in raw["itls"]]
        tokens = np.array(raw["output_lens"], np.int64)
        prompts = np.array(raw["input_lens"], np.int64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: the details are not numbers: {error}") from None
    errors = raw.get("errors") or [""] * count
    good = np.array([not error for error in errors]) & (ttft > 0)
    sent = np.rint((start - start.min()) * NS_PER_S).astype(np.int64)
    first = sent + np.rint(ttft * NS_PER_S).astype(np.int64)
    last = first + np.array([round(float(row.sum()) * NS_PER_S) for row in gaps], np.int64)
    kept = np.flatnonzero(good)
    between = [gaps[row] for row in kept.tolist()]
    return ObservedRun(
        path.stem, kept, sent[kept], first[kept], last[kept], prompts[kept], tokens[kept], count - len(kept), {},
        listed_gaps=TokenGaps.of_lists(between, NS_PER_S),
    )  # fmt: skip


def _of_log(path: Path) -> ObservedRun:
    run = MeasuredRun.read(path)
    return ObservedRun(
        path.stem, np.arange(len(run)), run.arrival_ns, run.arrival_ns + run.ttft_ns, run.arrival_ns + run.e2e_ns,
        run.prompt_tokens, run.output_tokens, 0, {},
    )  # fmt: skip


def write_log(run: ObservedRun, path: Path) -> None:
    """The run as a request log (the form that `_of_log` reads), its clock from 0."""
    with path.open("w", encoding="utf-8") as file:
        for row in range(len(run)):
            sent, first, last = (getattr(run, name)[row] / NS_PER_S for name in TIMES)
            entry = {
                "request_id": f"{run.name}-{int(run.key[row])}", "input_toks": int(run.prompt_tokens[row]),
                "output_toks": int(run.output_tokens[row]), "arrival_time": sent, "queued_ts": sent,
                "first_token_ts": first, "last_token_ts": last,
            }  # fmt: skip
            file.write(json.dumps(entry) + "\n")


def _json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: a {type(raw).__name__} is not allowed; allowed: an object")
    return raw


def matched(real: ObservedRun, sim: ObservedRun, skip: int = 0) -> tuple[I64, I64]:
    """Rows of both runs that are the same request, in the order of keys, without the first `skip` keys.

    Raises InputError if no request is in both, or if one of them has other lengths.
    """
    keys, mine, theirs = np.intersect1d(real.key, sim.key, return_indices=True)
    kept = keys >= skip
    mine, theirs = mine[kept], theirs[kept]
    if not mine.size:
        raise InputError(f"{real.name} and {sim.name}: no request is in both")
    for name in ("prompt_tokens", "output_tokens"):
        differs = np.flatnonzero(getattr(real, name)[mine] != getattr(sim, name)[theirs])
        if differs.size:
            row = int(differs[0])
            raise InputError(
                f"{real.name} and {sim.name}: request {int(real.key[mine[row]])}: {name} is "
                f"{int(getattr(real, name)[mine[row]])} and {int(getattr(sim, name)[theirs[row]])}: not the same load"
            )
    return mine, theirs
