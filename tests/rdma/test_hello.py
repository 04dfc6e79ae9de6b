"""Hello and everything else that both sides say over TCP, without verbs."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.hw.verbs.frames import FRAME_BYTES_MAX, FrameError, FrameReader, FrameSocket, encode, parse_address
from blink.hw.verbs.hello import (
    HelloError,
    Identity,
    RingHello,
    disagreement,
    identity_of,
    pair_of,
    plain_dtype,
    ring_hello_of,
)
from blink.hw.verbs.memory import RemoteRegion
from blink.hw.verbs.queue_pair import QueuePairAddress

PAIR = QueuePairAddress(17, 0xABCDEF, "0000:0000:0000:0000:0000:ffff:0a09:0001", 0, 5)
STATE = np.dtype({"names": ["step", "failed"], "formats": ["<u8", "<u4"], "offsets": [0, 8], "itemsize": 12})
HELLO = RingHello(
    identity=Identity("ab", "digest"),
    pair=PAIR,
    regions={"status": RemoteRegion(0x7F00_0000_0000, 65_536, 0x1234)},
    structures={"state": STATE, "record": STATE},
    backend="native",
    life=2,
    machine="here",
    trace_capacity=1024,
    record_offset_ns=-5,
    found={"device": "rxe0"},
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def test_a_hello_arrives_as_it_was_said() -> None:
    frame = json.loads(json.dumps(HELLO.plain()))
    found = ring_hello_of(frame)
    assert found == replace(HELLO, structures=found.structures)
    assert plain_dtype(found.structures["state"]) == plain_dtype(STATE)
    assert identity_of(frame) == HELLO.identity
    assert len(encode(HELLO.plain())) < FRAME_BYTES_MAX


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hello": "http"}, "hello: 'http' is not 'blink-rdma'"),
        ({"version": 2}, "version: the other side speaks 2, this one 1"),
        ({"version": None}, "version: the other side speaks None, this one 1"),
        ({"slots": [0]}, r"slots: \[0\] is no \[first, count\]"),
        ({"slots": [0, -1]}, "slots: -1 is no whole number from 0"),
        ({"boot_id": 5}, "boot_id: 5 is no text of at most 256 characters"),
        ({"boot_id": "x" * 300}, "boot_id: .* is no text of at most 256 characters"),
        ({"regions": {"status": [1, 2]}}, r"regions.status: \[1, 2\] is no \[address, bytes, key\]"),
        ({"regions": {"status": [1, 2, 1 << 70]}}, "regions.status: 1180591620717411303424 is no whole number"),
        ({"structures": {"state": []}}, r"structures.state: \[\] is no list of fields"),
        ({"structures": {"state": [["x", 0, 3]]}}, "structures.state: .* is no field"),
        ({"structures": {"state": [["x", 0, 8], ["x", 8, 8]]}}, "structures.state: "),
        ({"structures": {"state": [["x", 1 << 20, 8]]}}, "structures.state: 1048576 is no whole number from 0"),
        ({"record_offset_ns": 0.5}, "record_offset_ns: 0.5 is no whole number"),
        ({"life": True}, "life: True is no whole number from 0"),
        ({"pair": None}, "pair: None is no object"),
        ({"refused": "slots: taken"}, "^slots: taken$"),
    ],
)
def test_what_is_wrong_with_a_hello_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(HelloError, match=says):
        ring_hello_of({**HELLO.plain(), **change})


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(HELLO.plain())), json_values))
def test_whatever_is_said_is_a_hello_or_is_refused(change: dict[str, Any]) -> None:
    frame = {**HELLO.plain(), **change}
    for parse in (identity_of, pair_of, ring_hello_of):
        try:
            parse(frame)
        except HelloError as error:
            assert len(str(error)) < 1_200


def test_a_disagreement_names_both_values() -> None:
    ring = Identity("ab", "d1")
    assert disagreement(ring, ring) is None
    assert disagreement(ring, replace(ring, boot_id="")) is None  # a frontend that has not seen it before
    for change, says in (
        ({"boot_id": "cd"}, "boot_id: the ring has ab, the frontend cd"),
        ({"settings": "d2"}, "settings: the ring has d1, the frontend d2"),
        ({"layout": "00"}, f"layout_hash: the ring has {ring.layout}, the frontend 00"),
        ({"slots": (64, 64)}, "slots: the ring has slots 0..4095, the frontend slots 64..127"),
    ):
        assert disagreement(ring, replace(ring, **change)) == says  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=3), max_size=5), st.integers(1, 9))
def test_frames_arrive_whole_however_they_are_cut(frames: list[dict[str, Any]], size: int) -> None:
    data, reader = b"".join(encode(frame) for frame in frames), FrameReader()
    found = [frame for start in range(0, len(data), size) for frame in reader.feed(data[start : start + size])]
    assert found == frames


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "a frame of 65537 bytes is announced; 65536 are allowed"),
        (b"GET / HTTP/1.1\r\n", "a frame of 1195725856 bytes is announced"),
        (b"\0\0\0\3abc", "what arrived is not JSON"),
        (b"\0\0\0\2[]", "what arrived is not a JSON object"),
        (b"\0\0\0\2\xff\xfe", "what arrived is not JSON"),
        (b"\0\0\xc3\x50" + b"[" * 50_000, "what arrived is not JSON"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        FrameReader().feed(data)


def test_a_frame_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(FrameError, match="65536 are allowed"):
        encode({"x": "y" * FRAME_BYTES_MAX})


def test_a_socket_that_stays_silent_or_hangs_up_is_not_waited_for() -> None:
    near, far = (FrameSocket(end) for end in _tcp_pair())
    with pytest.raises(FrameError, match=r"no answer within 0\.05 s"):
        near.receive(0.05)
    far.send({"a": 1})
    far.send({"a": 2})
    assert [near.receive(1), near.receive(1)] == [{"a": 1}, {"a": 2}]
    far.close()
    with pytest.raises(FrameError, match=r"hung up|gone"):
        near.receive(1)
    assert near.closed
    near.close()
    with pytest.raises(FrameError, match="gone"):  # closed here, as a takeover in another thread does
        near.arrived(0.0)


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


@pytest.mark.parametrize("text", ["", "7471", ":7471", "host:", "host:x", "host:70000", "::1:7471", "[::1]7471"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--listen: .* is not allowed; allowed: HOST:PORT"):
        parse_address("--listen", text)


def test_addresses() -> None:
    assert parse_address("--listen", "gpu.local:7471") == ("gpu.local", 7471)
    assert parse_address("--listen", "[::1]:0") == ("::1", 0)
