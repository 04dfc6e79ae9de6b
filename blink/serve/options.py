"""The options of one server, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """See `blink serve --help`. Times in seconds, sizes in bytes."""

    scenario: str
    backend: str
    host: str
    port: int
    time_scale: float
    open_max: int
    body_max: int
    request_timeout: float
    drain: float
    linger: float
    failure_rate: float
    failure_kinds: tuple[str, ...]
    seed: str | None
    overrides: tuple[str, ...]
    model: str | None
    tokenizer: str
    save_tokenizer: Path | None
    api_key: str | None
    ttft: str | None
    itl: str | None
    record: Path | None
    replay: Path | None
    trace: Path | None
    ring: Path | None
    otel: bool
    log_json: bool
    log_requests: bool
