"""A measured run of a vLLM engine: when each request came, had its first and its last token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64
from blink.common.units import NS_PER_S

FIELDS = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """One entry a row of the file: arrivals from the first, latencies in ns as the engine's core saw them, tokens."""

    arrival_ns: I64
    ttft_ns: I64
    e2e_ns: I64
    prompt_tokens: I64
    output_tokens: I64

    @classmethod
    def read(cls, path: str | Path) -> MeasuredRun:
        """Read JSON lines with FIELDS. Raises InputError that names file, line and field.

        `arrival_time` is a wall clock, the others are a monotonic one. No request can be queued before it came, and
        the quickest was queued within a fraction of a millisecond: the smallest difference joins the clocks.
        """
        rows = _rows(Path(path))
        table = {name: [row[name] for row in rows] for name in FIELDS}
        offset = min(queued - came for queued, came in zip(table["queued_ts"], table["arrival_time"], strict=True))
        came = [arrival + offset for arrival in table["arrival_time"]]
        return cls(
            _spans([min(came)] * len(came), came),
            _spans(came, table["first_token_ts"]),
            _spans(came, table["last_token_ts"]),
            np.array(table["input_toks"], np.int64),
            np.array(table["output_toks"], np.int64),
        )

    def __len__(self) -> int:
        return len(self.ttft_ns)


def _spans(start: list[float], end: list[float]) -> I64:
    return np.array([round((last - first) * NS_PER_S) for first, last in zip(start, end, strict=True)], np.int64)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{path}: line {number}: not JSON; allowed: one object a line") from None
        for name in FIELDS:
            value = row.get(name) if isinstance(row, dict) else None
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise InputError(f"{path}: line {number}: {name}: {value!r} is not allowed; allowed: a number")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: holds no request; allowed: at least one")
    return rows
