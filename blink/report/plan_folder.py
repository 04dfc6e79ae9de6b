"""The folder of a plan: plan.json with all that was found, question.toml; read and written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.config.toml import to_toml
from blink.common.errors import InputError
from blink.report.rundir import RunDir, put, to_json

PLAN_NAME = "plan.json"
QUESTION_NAME = "question.toml"


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan that was kept: what was found, and the text of its question."""

    path: Path
    data: dict[str, Any]
    question: str


def write_plan(folder: RunDir, data: dict[str, Any]) -> None:
    """Keep a plan, plan.json last."""
    question = to_toml(data["question"])
    put(folder.path / QUESTION_NAME, lambda part: part.write_text(question, encoding="utf-8"))
    put(folder.path / PLAN_NAME, lambda part: part.write_text(to_json(data), encoding="utf-8"))


def read_plan(path: Path) -> StoredPlan:
    """Read a plan's folder. Raises InputError naming the file that is absent or not of this form."""
    file = path / PLAN_NAME
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        data["candidates"], data["answer"]
        question = (path / QUESTION_NAME).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file}: is not what blink plan keeps") from None
    return StoredPlan(path, data, question)
