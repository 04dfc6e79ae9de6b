"""The package ibverbs in place of pyverbs, on a device: the same channel, the same failures."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from blink.hw.verbs import binding, device
from blink.hw.verbs.failure import AccessError, PeerLostError
from blink.hw.verbs.probe import probe
from tests.rdma.ends import choice, connected

pytestmark = [
    pytest.mark.rdma,
    pytest.mark.skipif(importlib.util.find_spec("ibverbs") is None, reason="needs the package ibverbs"),
]


@pytest.fixture(autouse=True)
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Devices are opened through it."""
    monkeypatch.setenv("BLINK_VERBS", "ibverbs")
    found = binding.load.__wrapped__()
    assert found.name == "ibverbs"
    monkeypatch.setattr(device, "load", lambda: found)
    yield


def test_write_read_and_compare_and_swap() -> None:
    data = np.random.default_rng(2).bytes(200_000)
    with connected(write_staging_bytes=1 << 16) as ends:
        ends.channel.write(ends.region, 64, data)
        ends.channel.write(ends.region, 0, b"8 bytes.")
        assert ends.channel.read_now(ends.region, 64, len(data)) == data
        assert ends.channel.read_now(ends.region, 0, 8) == b"8 bytes."
        assert ends.channel.compare_and_swap(ends.region, 8, 0, 5) == 0
        assert ends.channel.compare_and_swap(ends.region, 8, 0, 6) == 5
        for number in range(600):
            ends.channel.write(ends.region, 8 * number, number.to_bytes(8, "little"))
        ends.channel.flush()
        assert bytes(ends.block.view(8 * 599, 8)) == (599).to_bytes(8, "little")


def test_failures_are_those_of_pyverbs() -> None:
    with connected() as ends, pytest.raises(AccessError, match="READ: the completion says REM_ACCESS_ERR"):
        ends.channel.read_now(replace(ends.region, key=ends.region.key ^ 0x5500), 0, 8)
    with connected() as ends:
        ends.other.close()
        ends.channel.write(ends.region, 0, b"anybody?")
        with pytest.raises(PeerLostError):
            ends.channel.flush()


def test_the_probe_keeps_the_order() -> None:
    opened = device.Device(choice())
    try:
        assert probe(opened)["WRITE order"].startswith("kept in 64 of 64")
    finally:
        opened.close()
