"""What carries HTTP can be exchanged: the same answers, clients that leave are noticed, SIGTERM drains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from tests.serve.running import open_stream, running, wait_for

pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from blink.serve.carrier import CARRIERS
from blink.serve.writer import Writer

BODY = {"prompt": "Hello", "n": 8, "max_tokens": 200, "ignore_eos": True}


@pytest.mark.parametrize("carrier", CARRIERS)
def test_streams_come_whole_clients_may_leave_and_a_signal_drains(carrier: str) -> None:
    pytest.importorskip(carrier)
    with running("--http", carrier, "--time-scale", "0.2") as server:
        whole = [choice["text"] for choice in server.post("/v1/completions", BODY)["choices"]]
        texts = [""] * 8
        *chunks, done = server.events("/v1/completions", BODY)
        for choice in (choice for chunk in chunks for choice in chunk["choices"]):
            texts[choice["index"]] += choice["text"]
        assert (texts, done) == (whole, "[DONE]")
        left = open_stream(server.port, {**BODY, "max_tokens": 2000})
        left.close()
        server.wait_idle()
        assert server.metric("blink:disconnects_total") == 1
        found: list[Any] = []
        long = {**BODY, "max_tokens": 2000}
        thread = threading.Thread(target=lambda: found.append(server.events("/v1/completions", long)))
        thread.start()
        wait_for(lambda: server.metric("blink:open_requests") == 8)
        assert server.stop() == 0
        thread.join()
        assert found[0][-1] == "[DONE]"


class Waits:
    """An awaitable whose iterator has __next__ alone, as one that is not written in Python may."""

    def __init__(self) -> None:
        self._left = 2

    def __await__(self) -> Iterator[None]:
        return self

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise StopIteration


def test_a_send_that_waits_may_be_any_iterator() -> None:
    sent: list[bytes] = []

    def send(message: MutableMapping[str, Any]) -> Any:
        sent.append(message.get("body", b""))
        return Waits()

    async def write() -> None:
        writer = Writer(send)
        for index in range(5):
            writer.write(b"%d" % index, more=index < 4)
            await asyncio.sleep(0)
        await asyncio.wait_for(writer.done(), 5)

    asyncio.run(write())
    assert b"".join(sent) == b"01234"
