"""The folder of a sweep: results.parquet, scenario.toml, sweep.json with what was computed; PARTIAL if stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.config import relocated, to_toml
from blink.common.errors import InputError
from blink.plan.sweep.question import Question
from blink.plan.sweep.store import RESULTS_NAME
from blink.report.rundir import PARTIAL_NAME, SCENARIO_NAME, RunDir, put, to_json
from blink.report.sweep_folder import SWEEP_NAME

PARTIAL_TEXT = "The sweep was stopped before its end: the same command goes on with the runs that are missing.\n"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Where a sweep is kept: new, or of the same sweep, which is then gone on with."""

    path: Path
    made: RunDir | None

    @classmethod
    def prepare(cls, path: Path | str, *, restart: bool = False) -> SweepFolder:
        """Make or take the folder. `restart` throws away the results that it holds. InputError for other contents."""
        path = Path(path)
        if not (path / RESULTS_NAME).is_file():
            _forget(path)  # a sweep that was killed before its first point leaves at most its scenario
            return cls(path, RunDir.prepare(path))
        _forget(path)
        if restart:
            try:
                (path / RESULTS_NAME).unlink()
            except OSError as error:
                raise InputError(f"--out {path}: cannot be written: {error.strerror}") from None
        return cls(path, None)

    def write(self, question: Question, data: dict[str, Any]) -> None:
        """Keep what was computed."""
        if data["partial"]:
            put(self.path / PARTIAL_NAME, lambda part: part.write_text(PARTIAL_TEXT, encoding="utf-8"))
        scenario = to_toml(relocated(question.scenario.resolved(), self.path))
        put(self.path / SCENARIO_NAME, lambda part: part.write_text(scenario, encoding="utf-8"))
        put(self.path / SWEEP_NAME, lambda part: part.write_text(to_json(data), encoding="utf-8"))

    def discard(self) -> None:
        """Take back the folder if nothing was put into it."""
        if self.made:
            self.made.discard()


def _forget(path: Path) -> None:
    """Remove what was computed from former results; it is written anew. Other files stay, and are complained of."""
    if path.is_dir() and ((path / RESULTS_NAME).is_file() or (path / f".{RESULTS_NAME}.part").is_file()):
        for name in (SWEEP_NAME, PARTIAL_NAME, f".{RESULTS_NAME}.part"):
            (path / name).unlink(missing_ok=True)
