"""The reader: a turn of the backend, then every stream that has news, those first that a client still waits for."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from blink.frontend.openai.bodies import Bounds
from blink.serve.backend import Job, Stats
from blink.serve.pump import Pump


class Stream:
    """Notes that it was flushed."""

    def __init__(self, name: str, flushed: list[str], *, has_begun: bool) -> None:
        self._name, self._flushed, self.has_begun = name, flushed, has_begun

    def flush(self) -> None:
        self._flushed.append(self._name)
        self.has_begun = True


class OneTurn:
    """A backend whose first turn has news of all streams."""

    name, bounds = "one turn", Bounds(1, 1, 1)

    def __init__(self, streams: list[Stream]) -> None:
        self.pump: Pump | None = None
        self._streams = streams

    def turn(self) -> int | None:
        assert self.pump is not None
        for stream in self._streams:
            self.pump.has_news(stream)
        return None

    def submit(self, job: Job) -> None: ...

    def cancel(self, job: Job) -> None: ...

    def stats(self) -> Stats:
        return Stats()

    def slot_states(self) -> bytes:
        return b""

    def close(self, *, complete: bool) -> None: ...


def test_first_tokens_leave_before_the_others_and_each_kind_in_its_order() -> None:
    flushed: list[str] = []
    begun = (True, False, True, False)
    backend = OneTurn([Stream(str(index), flushed, has_begun=one) for index, one in enumerate(begun)])

    async def turn() -> None:
        backend.pump = pump = Pump(backend, lambda error: None, lambda seconds: None)
        pump.start()
        await asyncio.sleep(0)
        pump.stop()

    asyncio.run(turn())
    assert flushed == ["1", "3", "0", "2"]
