"""What needs no device: pools, staging, batches and failures, over fake verbs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.hw.native.memory import SharedBlock
from blink.hw.verbs import channel as channel_module
from blink.hw.verbs.channel import SIGNAL_EVERY, Channel
from blink.hw.verbs.device import Device, DeviceChoice
from blink.hw.verbs.failure import (
    AccessError,
    ConnectionFailedError,
    FlushedError,
    LocalError,
    NoCompletionError,
    PeerLostError,
    failure_of,
)
from blink.hw.verbs.memory import Registration, register
from blink.hw.verbs.trace_tail import TraceTail
from blink.hw.verbs.work import StagingRing, WorkPool
from tests.rdma.fake import ENUMS, FakeWorld


def test_a_pool_is_never_overdrawn_and_retires_in_order() -> None:
    pool = WorkPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="all 3 work requests are under way"):
        pool.take()
    pool.retire(1)
    assert (pool.outstanding, pool.free) == (1, 2)
    for number in (0, 1, 3):
        with pytest.raises(ValueError, match=f"work request {number} is not under way"):
            pool.retire(number)
    with pytest.raises(ValueError, match="a pool of 0"):
        WorkPool(0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_places_of_staging_never_overlap(sizes: list[int], choose: object) -> None:
    staging, live = StagingRing(1024), dict[int, range]()
    done = 0
    for number, size in enumerate(sizes):
        while (place := staging.place(size, number)) is None:
            assert live, "nothing is under way, and there is no room"
            del live[done]
            done += 1
            staging.release(done)
        taken = range(place, place + size)
        assert taken.stop <= 1024
        assert all(taken.stop <= other.start or other.stop <= taken.start for other in live.values())
        live[number] = taken


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=30))
def test_the_tail_of_a_trace_names_every_record_once(steps: list[int]) -> None:
    tail, head, seen = TraceTail(10, 32), 0, list[int]()
    for step in steps:
        head += step
        pieces = tail.pieces(head, 4)
        for start, size in pieces:
            assert start % 32 == size % 32 == 0
            assert start + size <= 320
            seen += [start // 32 + at for at in range(size // 32)]
        tail.advance(sum(size for _, size in pieces))
        head = min(head, tail.taken + 10)
    assert seen == [number % 10 for number in range(tail.taken)]


class Fake:
    """A channel and the memory at its other end, on a fake adapter."""

    def __init__(self, *, held: bool = False, **options: int) -> None:
        self.world = FakeWorld(held=held)
        self.device = Device(binding=self.world.binding)
        self.block = SharedBlock(1 << 16)
        self._kept: Registration = register(self.device, self.block.address, 1 << 16, writable=True)
        self.region = self._kept.region
        self.channel = Channel(self.device, limit_s=0.3, **options)
        self.other = Channel(self.device)
        self.channel.connect(self.other.address)

    def close(self) -> None:
        """Give everything back."""
        self.channel.close()
        self.other.close()
        self._kept.close()
        self.device.close()
        self.block.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    """One that does everything at once."""
    found = Fake()
    yield found
    found.close()


def test_a_completion_queue_never_overflows() -> None:
    fake = Fake(send_max=5)
    for number in range(2_000):
        fake.channel.write(fake.region, 8 * (number % 4096), number.to_bytes(8, "little"))
        if number % 7 == 0:
            assert fake.channel.read_now(fake.region, 8 * (number % 4096), 8) == number.to_bytes(8, "little")
    fake.channel.flush()
    assert fake.world.overflowed == 0
    fake.close()


def test_a_batch_is_posted_in_one_call_and_long_ones_leave_completions_on_the_way(fake: Fake) -> None:
    for number in range(SIGNAL_EVERY + 4):
        fake.channel.write(fake.region, 8 * number, number.to_bytes(8, "little"))
    assert fake.world.post_calls == 1
    fake.channel.flush()
    assert fake.world.post_calls == 2
    written = np.frombuffer(bytes(fake.block.view(0, 8 * (SIGNAL_EVERY + 4))), np.uint64)
    np.testing.assert_array_equal(written, np.arange(SIGNAL_EVERY + 4))


def test_inline_data_of_one_batch_have_places_of_their_own() -> None:
    fake = Fake(held=True)
    for number in range(3):
        fake.channel.write(fake.region, 8 * number, bytes([number + 1]) * 8)
    fake.channel.post()
    fake.channel.write(fake.region, 24, b"next one")  # over the first one's place: its data have left
    fake.world.serve()
    assert bytes(fake.block.view(0, 24)) == b"".join(bytes([number + 1]) * 8 for number in range(3))
    fake.close()


def test_what_does_not_come_back_is_given_up_after_the_bound() -> None:
    fake = Fake(held=True)
    with pytest.raises(NoCompletionError, match=r"READ: nothing came back within 0\.3 s"):
        fake.channel.read_now(fake.region, 0, 8)
    with pytest.raises(NoCompletionError):  # and for ever after
        fake.channel.write(fake.region, 0, b"x")
    fake.close()


def test_a_pause_of_this_process_is_not_taken_for_the_adapters_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held up for a minute after each look, and what it waits for has come at the third."""
    fake, looks, reap, began = Fake(held=True), list[int](), Channel.reap, time.monotonic()
    answered_at = 3

    def held_up(channel: Channel) -> None:
        looks.append(answered_at)
        if len(looks) == answered_at:
            fake.world.serve()
        reap(channel)

    monkeypatch.setattr(Channel, "reap", held_up)
    monkeypatch.setattr(time, "monotonic", lambda: began + 60 * len(looks))
    assert fake.channel.read_now(fake.region, 0, 8) == bytes(8)
    answered_at = 100
    with pytest.raises(NoCompletionError):
        fake.channel.read_now(fake.region, 0, 8)
    assert len(looks) < 10
    fake.close()


@pytest.mark.parametrize("size", [8, 2048])
def test_what_the_other_thread_reaps_first_is_no_failure(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pool, or staging, are full; before this thread waits for a completion the other one has taken them all."""
    fake = Fake(held=True, send_max=4, write_staging_bytes=8192)
    post = Channel.post

    def post_and_be_overtaken(channel: Channel) -> None:
        post(channel)
        fake.world.serve()
        channel.reap_if_free()

    monkeypatch.setattr(Channel, "post", post_and_be_overtaken)
    for number in range(20):
        fake.channel.write(fake.region, size * number, bytes([number]) * size)
    fake.channel.flush()
    assert bytes(fake.block.view(0, 20 * size)) == b"".join(bytes([number]) * size for number in range(20))
    fake.close()


def test_the_other_thread_goes_away_where_this_one_is_at_work(fake: Fake) -> None:
    fake.channel.write(fake.region, 0, b"12345678")
    fake.channel.post()
    calls = fake.world.post_calls
    with fake.channel._lock:
        fake.channel.reap_if_free()  # a lock that was waited for would never come
        assert fake.channel.look(fake.region) is None
    assert (fake.channel.outstanding, fake.world.post_calls) == (1, calls)
    fake.channel.flush()


def test_the_last_of_the_pool_is_taken_once(fake: Fake) -> None:
    """A look is a request like any other: with it under way the pool has one place less."""
    small = Channel(fake.device, send_max=2, limit_s=0.3)
    small.connect(fake.other.address)
    fake.world.held = True
    small.write(fake.region, 0, b"12345678")
    small.post()
    assert small.look(fake.region) is not None
    with pytest.raises(NoCompletionError):  # not an overflow
        small.write(fake.region, 8, b"12345678")
    small.close()


def test_a_queue_that_is_closed_is_not_polled(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.channel.close()
    monkeypatch.setattr(fake.channel._queue, "poll", None)
    fake.channel.reap_if_free()
    with pytest.raises(LocalError, match="the connection is closed"):
        fake.channel.reap()


def test_an_adapter_that_is_gone_is_a_typed_failure(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(most: int) -> None:
        raise OSError("no such device")

    fake.channel.write(fake.region, 0, b"12345678")
    monkeypatch.setattr(fake.channel._queue, "poll", gone)
    with pytest.raises(LocalError, match="WRITE: the adapter gives no completions"):
        fake.channel.flush()


def test_a_look_is_not_posted_into_a_batch_that_is_being_made(fake: Fake) -> None:
    fake.channel.write(fake.region, 0, b"12345678")
    assert fake.channel.look(fake.region) is None
    fake.channel.flush()
    number = fake.channel.look(fake.region)
    assert number is not None
    fake.channel.reap_if_free()
    assert fake.channel.outstanding == 0


def test_a_failure_is_told_once_for_all_and_the_flushed_rest_does_not_hide_it() -> None:
    fake = Fake(held=True)
    for number in range(6):
        fake.channel.write(fake.region, 8 * number, b"12345678")
    fake.channel.post()
    fake._kept.close()  # the key is wrong from here on
    fake.world.serve()
    with pytest.raises(AccessError, match="WRITE: the completion says REM_ACCESS_ERR"):
        fake.channel.flush()
    assert fake.world.overflowed == 0
    fake.close()


def test_the_kinds_of_failures() -> None:
    kinds = {4: LocalError, 5: FlushedError, 10: AccessError, 12: PeerLostError, 99: LocalError}
    for status, kind in kinds.items():
        found = failure_of(ENUMS, status, 7, "READ")
        assert type(found) is kind
        assert isinstance(found, ConnectionFailedError)
        assert "READ: " in str(found)


def test_pieces_that_the_staging_cannot_hold_are_waited_for(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "WRITE_STAGING_BYTES", 4096)
    small = Channel(fake.device, write_staging_bytes=4096, read_staging_bytes=4096)
    small.connect(fake.other.address)
    data = np.random.default_rng(3).bytes(50_000)
    small.write(fake.region, 0, data)
    assert small.read_now(fake.region, 0, 50_000) == data
    small.close()


def test_a_device_is_chosen_by_name_and_by_its_best_address() -> None:
    binding = FakeWorld().binding
    with pytest.raises(InputError, match="--device: 'mlx5_0' is not allowed; allowed: fake0"):
        Device(DeviceChoice("mlx5_0"), binding)
    with pytest.raises(InputError, match=r"--gid-index: 9 is not allowed; allowed: 0 to 1, as device fake0 has"):
        Device(DeviceChoice(None, 9), binding)
    device = Device(DeviceChoice("fake0", 1), binding)
    assert device.gid.endswith("0001")
    assert Device(binding=binding).gid_index == 0  # of equals the first
