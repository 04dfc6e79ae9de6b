"""Requests sent at given times, whatever the answers do, by one thread that does nothing else: times at the client."""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_SPIN_NS = 1_000_000
"""So long before a request is due the client only looks, for select comes back too late."""


@dataclass(slots=True)
class Times:
    """Of one request, on the monotonic clock: sent, first and last token at the client. -1 where there was none."""

    sent_ns: int = -1
    first_ns: int = -1
    last_ns: int = -1
    chunks: int = 0


@contextmanager
def undisturbed() -> Iterator[None]:
    """This process, and those that it starts, come before all others of the machine, if the system lets them."""
    before = os.sched_getscheduler(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, before, os.sched_param(0))


def play(port: int, lengths: Sequence[tuple[int, int]], at_ns: Sequence[int]) -> list[Times]:
    """Stream requests of (prompt, output) tokens, each over a connection that is open already, sent at its time."""
    times = [Times() for _ in lengths]
    ends = [socket.create_connection(("127.0.0.1", port)) for _ in lengths]
    requests = [_request(prompt, output) for prompt, output in lengths]
    start_ns, index, left = time.monotonic_ns() + 200_000_000, 0, len(lengths)
    with selectors.DefaultSelector() as selector:
        while left:
            now_ns = time.monotonic_ns()
            wait_ns = start_ns + at_ns[index] - now_ns if index < len(ends) else 1_000_000_000
            if wait_ns <= 0:
                times[index].sent_ns = now_ns
                ends[index].sendall(requests[index])
                selector.register(ends[index], selectors.EVENT_READ, index)
                index += 1
                continue
            for key, _ in selector.select(max(0, wait_ns - _SPIN_NS) / 1e9):
                data = ends[key.data].recv(1 << 18)
                _note(times[key.data], data.count(b'"text"'))
                if not data:
                    selector.unregister(ends[key.data])
                    ends[key.data].close()
                    left -= 1
    return times


def _request(prompt: int, output: int) -> bytes:
    body = json.dumps({"prompt": [65] * prompt, "max_tokens": output, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _note(times: Times, chunks: int) -> None:
    if chunks:
        now_ns = time.monotonic_ns()
        times.first_ns = now_ns if times.first_ns < 0 else times.first_ns
        times.last_ns, times.chunks = now_ns, times.chunks + chunks
