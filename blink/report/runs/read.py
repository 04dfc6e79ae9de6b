"""A run by its path: a folder of Blink's, or the JSON file of a load generator."""

from __future__ import annotations

import json
from pathlib import Path

from blink.common.errors import InputError
from blink.report.runs.blink_run import read_blink_run
from blink.report.runs.guidellm import is_guidellm, read_guidellm
from blink.report.runs.measured import AnyRun
from blink.report.runs.vllm_bench import is_vllm, read_vllm

BYTES_MAX = 1 << 30
ALLOWED = "allowed: the folder of a run, the JSON of vllm bench serve --save-result, or that of guidellm"


def read_any(text: str) -> AnyRun:
    """Read a run; `file.json#2` is the third benchmark of a guidellm report. Raises InputError in one line."""
    name, _, number = text.rpartition("#") if "#" in text and not Path(text).exists() else (text, "", "")
    path = Path(name)
    if path.is_dir():
        return read_blink_run(path)
    document = _json(path)
    if is_guidellm(document):
        return read_guidellm(document, name, _index(text, number))
    if number:
        raise InputError(f"{text}: # chooses a benchmark of a guidellm report, which {name} is not")
    if is_vllm(document):
        return read_vllm(document, name)
    raise InputError(f"{path}: is not a run; {ALLOWED}")


def _json(path: Path) -> object:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InputError(f"{path}: is larger than {BYTES_MAX >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; {ALLOWED}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is not JSON; {ALLOWED}") from None


def _index(text: str, number: str) -> int | None:
    if not number:
        return None
    if not number.isascii() or not number.isdigit():
        raise InputError(f"{text}: #{number} is not allowed; allowed: the place of a benchmark, from #0")
    return int(number)
