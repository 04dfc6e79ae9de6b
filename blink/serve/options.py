"""The options of one server, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blink.common.profile import list_profiles

if TYPE_CHECKING:
    from blink.hw.verbs.attach import Remote


@dataclass(frozen=True, slots=True)
class Options:
    """See `blink serve --help`. Times in seconds, sizes in bytes."""

    scenario: str
    backend: str
    engine: str
    host: str
    http: str
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
    tokenizer: str | None
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
    connect: Remote | None = None

    def all_overrides(self) -> list[tuple[str, str]]:
        """The command line's changes of the scenario, with the option that each comes from."""
        return overrides_of(self.engine, self.model, self.seed, self.overrides)


def overrides_of(engine: str, model: str | None, seed: str | None, overrides: tuple[str, ...]) -> list[tuple[str, str]]:
    """See Options.all_overrides."""
    found = []
    if engine == "torch" and model in list_profiles("model"):
        found.append(("--model", f"model.profile={model}"))
    if seed is not None:
        found.append(("--seed", f"seed={seed}"))
    return [*found, *(("--set", text) for text in overrides)]
