"""TTFT on the wire: from a request's packet on the loopback to that of its first token, by the kernel's stamps on both.

Run as `python -m benchmarks.wire PORT`: it prints a line when it listens, and at the end of its input a JSON object of
nanoseconds by response. It may listen if it is root.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from select import select
from struct import unpack

from blink.serve.arrival import ask_for_stamps, stamp_in
from tests.shared import ROOT

_ALL, _BUFFER_BYTES, _SO_RCVBUFFORCE = 3, 1 << 27, 33


@dataclass(slots=True)
class Packet:
    """A packet of TCP over IPv4 with content."""

    source: int
    target: int
    content: bytes

    @classmethod
    def of(cls, frame: bytes) -> Packet | None:
        """In a frame of the loopback."""
        if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            return None
        begin, end = 14 + (frame[14] & 15) * 4, 14 + unpack("!H", frame[16:18])[0]
        source, target = unpack("!HH", frame[begin : begin + 4])
        return cls(source, target, frame[begin + (frame[begin + 12] >> 4) * 4 : end])


class Streams:
    """What has been seen of the streams of a server."""

    def __init__(self, port: int) -> None:
        self.ttft_ns: dict[str, int] = {}
        self._port = port
        self._waiting: dict[int, tuple[int, bytes]] = {}

    def see(self, packet: Packet, at_ns: int) -> None:
        """A packet, in its order."""
        if packet.target == self._port and packet.content.startswith(b"POST"):
            self._waiting[packet.source] = at_ns, b""
        elif packet.source == self._port and packet.target in self._waiting:
            sent_ns, before = self._waiting[packet.target]
            data = before + packet.content
            if found := re.search(rb'data: {"id":"([^"]+)"', data):
                del self._waiting[packet.target]
                self.ttft_ns[found[1].decode()] = at_ns - sent_ns
            else:
                self._waiting[packet.target] = sent_ns, data


def main() -> None:
    """Until the input ends."""
    streams = Streams(int(sys.argv[1]))
    with suppress(OSError):  # the kernel stamps and keeps; whoever is measured comes first
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as sock:
        sock.bind(("lo", 0))
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        ask_for_stamps(sock)
        print("listening", flush=True)
        while True:
            ready, _, _ = select([sock, sys.stdin], [], [])
            if sock not in ready:
                break
            frame, told, _, origin = sock.recvmsg(1 << 17, 64)
            packet = Packet.of(frame) if origin[2] == socket.PACKET_HOST else None  # each is seen leaving, too
            stamp_ns = stamp_in(told)
            if packet is not None and packet.content and stamp_ns is not None:
                streams.see(packet, stamp_ns)
    print(json.dumps(streams.ttft_ns), flush=True)


@contextmanager
def watched(port: int) -> Iterator[dict[str, float]]:
    """Milliseconds by response, complete after the block; none where nobody may listen."""
    found: dict[str, float] = {}
    command = [sys.executable, "-m", "benchmarks.wire", str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        listens = bool(process.stdout.readline())
        yield found
        said, _ = process.communicate()
    if listens:
        found.update({name: ttft_ns / 1e6 for name, ttft_ns in json.loads(said).items()})


if __name__ == "__main__":
    main()
