"""The verbs themselves on a real device: WRITE, READ, compare-and-swap, ordering, error completions, a full queue."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.hw.verbs.device import Device, DeviceChoice
from blink.hw.verbs.failure import AccessError, LocalError, PeerLostError
from blink.hw.verbs.probe import ORDER_ROUNDS, probe
from tests.rdma.ends import choice, connected

pytestmark = pytest.mark.rdma


@pytest.mark.parametrize("size", [1, 8, 63, 64, 65, 4096, 65_536, 300_000])
def test_what_is_written_is_there_and_is_read_back(size: int) -> None:
    data = bytes(np.arange(size, dtype=np.uint32).astype(np.uint8))
    with connected() as ends:
        ends.channel.write(ends.region, 128, data)
        ends.channel.flush()
        assert bytes(ends.block.view(128, size)) == data
        assert bytes(ends.block.view(0, 128)) == bytes(128)
        assert ends.channel.read_now(ends.region, 128, size) == data
        assert ends.channel.outstanding == 0


def test_more_than_the_staging_holds_arrives_whole() -> None:
    data = np.random.default_rng(1).bytes(900_000)
    with connected(write_staging_bytes=1 << 16, read_staging_bytes=1 << 15) as ends:
        ends.channel.write(ends.region, 0, data)
        ends.channel.flush()
        assert bytes(ends.block.view(0, len(data))) == data
        assert ends.channel.read_now(ends.region, 0, len(data)) == data


def test_compare_and_swap_takes_a_word_once() -> None:
    with connected() as ends:
        assert ends.channel.compare_and_swap(ends.region, 16, 0, 7) == 0
        assert ends.channel.compare_and_swap(ends.region, 16, 0, 9) == 7
        assert ends.channel.compare_and_swap(ends.region, 16, 7, 11) == 7
        assert int.from_bytes(ends.block.view(16, 8), "little") == 11
        with pytest.raises(LocalError, match="offset 12 is not aligned"):
            ends.channel.compare_and_swap(ends.region, 12, 0, 1)


def test_writes_arrive_in_the_order_of_posting() -> None:
    """T1: whoever sees the flag sees the payload that was written before it, and never that of the flag before."""
    rounds, size = 300, 16_384
    with connected() as ends:
        start = ends.block.address
        flag = ctypes.c_uint64.from_address(start + size)
        torn: list[int] = []

        def watch() -> None:
            seen = 0
            while seen < rounds:
                value = flag.value
                if value > seen:
                    seen = value
                    least = min(ctypes.c_uint64.from_address(start + at).value for at in range(0, size, 1024))
                    if least < value:
                        torn.append(value)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for number in range(1, rounds + 1):
            ends.channel.write(ends.region, 0, np.full(size // 8, number, np.uint64).tobytes())
            ends.channel.write(ends.region, size, number.to_bytes(8, "little"))
            ends.channel.post()
        ends.channel.flush()
        watcher.join(20)
        assert not watcher.is_alive()
        assert torn == []


def test_a_queue_that_would_overflow_waits_instead() -> None:
    with connected(send_max=8) as ends:
        for number in range(1_000):
            ends.channel.write(ends.region, 8 * number, number.to_bytes(8, "little"))
            assert ends.channel.outstanding <= 8
        ends.channel.flush()
        written = np.frombuffer(bytes(ends.block.view(0, 8_000)), np.uint64)
        np.testing.assert_array_equal(written, np.arange(1_000))


def test_a_batch_is_one_post_and_its_last_completion_retires_it() -> None:
    with connected() as ends:
        for number in range(20):
            ends.channel.write(ends.region, 8 * number, number.to_bytes(8, "little"))
        assert ends.channel.outstanding == 20
        ends.channel.flush()
        assert ends.channel.outstanding == 0


def test_a_wrong_key_is_a_typed_failure_and_the_channel_says_it_again() -> None:
    with connected() as ends:
        wrong = replace(ends.region, key=ends.region.key ^ 0x5500)
        with pytest.raises(AccessError, match="READ: the completion says REM_ACCESS_ERR"):
            ends.channel.read_now(wrong, 0, 8)
        with pytest.raises(AccessError):
            ends.channel.write(ends.region, 0, b"more")
        assert bytes(ends.block.view(0, 8)) == bytes(8)


def test_bytes_beyond_the_region_are_refused_by_both_sides() -> None:
    with connected(4096) as ends:
        with pytest.raises(LocalError, match=r"bytes 4090\.\.4098 are not within the 4096"):
            ends.channel.write(ends.region, 4090, bytes(8))
        with pytest.raises(AccessError):  # a peer that believes the region to be larger
            ends.channel.read_now(replace(ends.region, size_bytes=8192), 4092, 8)


def test_memory_that_may_only_be_read_is_only_read() -> None:
    with connected(4096, writable=False) as ends:
        assert ends.channel.read_now(ends.region, 0, 8) == bytes(8)
        ends.channel.write(ends.region, 0, b"x")
        with pytest.raises(AccessError):
            ends.channel.flush()
        assert bytes(ends.block.view(0, 1)) == b"\0"


def test_a_peer_that_is_gone_shows_after_the_retries() -> None:
    with connected() as ends:
        ends.other.close()
        ends.channel.write(ends.region, 0, b"anybody?")
        with pytest.raises(PeerLostError, match="RETRY_EXC_ERR"):
            ends.channel.flush()


def test_one_failure_flushes_the_rest_and_is_the_one_that_is_told() -> None:
    with connected() as ends:
        wrong = replace(ends.region, key=ends.region.key ^ 0x5500)
        for number in range(10):
            ends.channel.write(wrong if number == 3 else ends.region, 8 * number, b"12345678")
        with pytest.raises(AccessError):
            ends.channel.flush()
        assert bytes(ends.block.view(0, 24)) == 3 * b"12345678"
        assert bytes(ends.block.view(24, 56)) == bytes(56)


def test_the_probe_says_what_the_device_does() -> None:
    device = Device(choice())
    try:
        found = probe(device)
    finally:
        device.close()
    assert found["WRITE order"].startswith(f"kept in {ORDER_ROUNDS} of {ORDER_ROUNDS}")
    assert found["atomics"] in {"none", "among its own verbs", "with the processor, too"}
    assert int(found["READs at once"]) > 0


def test_a_device_that_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match=r"--device: 'mlx9' is not allowed; allowed: \w+"):
        Device(DeviceChoice("mlx9"))
    with pytest.raises(InputError, match=r"--gid-index: 5000 is not allowed; allowed: 0 to"):
        Device(DeviceChoice(choice().name, 5000))
