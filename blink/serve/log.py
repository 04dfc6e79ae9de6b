"""Structured logs on standard error: lines of JSON, or the same as text."""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import TextIO


class Log:
    """`requests`: a line for every request that is over."""

    def __init__(self, *, as_json: bool, requests: bool, stream: TextIO | None = None) -> None:
        self._json, self._requests, self._stream = as_json, requests, stream or sys.stderr

    def say(self, message: str, **fields: object) -> None:
        """Something happened to the server."""
        self._line("server", {"message": message, **fields})

    def request(self, fields: dict[str, object]) -> None:
        """A request is over."""
        if self._requests:
            self._line("request", fields)

    def fault(self, message: str, error: BaseException) -> None:
        """A fault of this program, with its traceback."""
        lines = "".join(traceback.format_exception(error))
        self._line("fault", {"message": message, "traceback": lines})

    def _line(self, event: str, fields: dict[str, object]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        if self._json:
            text = json.dumps({"time": stamp + "Z", "event": event, **fields})
        elif event == "request":
            text = " ".join(f"{name}={value}" for name, value in fields.items())
        else:
            text = str(fields.pop("message", "")) + "".join(f" {name}={value}" for name, value in fields.items())
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):
            return
