"""Faults on the way to a ring: every one ends within its bound, as a typed failure, and the next frontend recovers.

The stated bound is COMPLETION_LIMIT_S: no operation waits longer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blink.common.faults import Fault, FaultKind, Moment
from blink.common.layout import STATE_MASK
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT, SlotState
from blink.frontend.operations import Region, Write
from blink.hw.native import drill as native
from blink.hw.native.instance import Instance
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import TakenRing
from blink.hw.verbs.attach import Door
from blink.hw.verbs.channel import COMPLETION_LIMIT_S
from blink.hw.verbs.device import Device
from blink.hw.verbs.failure import AccessError, ConnectionFailedError, FlushedError, PeerLostError
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import HostBlock, RingHost
from blink.hw.verbs.ring import VerbsRing, open_ring
from tests.hw.native_help import needs_compiler, scenario_of
from tests.hw.test_native_faults import MIDDLE, queue_case
from tests.rdma.ends import choice
from tests.rdma.far_ring import FarRing
from tests.rdma.forked import ForkedFrontend
from tests.rdma.lives import Lives

pytestmark = [pytest.mark.rdma, needs_compiler]
SLACK_S = 3.0
"""What a machine under emulation may add to a bound."""
SLOW = scenario_of(limits={"batch_max": 2, "prefill_batch_max": 1, "output_capacity_tokens": 16})
"""Two at a time: most of forty requests wait in the ring."""
TIME_SCALE = 1.0


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    """A ring in another process whose frontends are made here."""
    far = FarRing(SLOW, TIME_SCALE)
    device = Device(choice())
    yield Lives(far, device, tmp_path / "trace.ndjson")
    far.close()
    device.close()


def fails_within(kind: type[Exception] | tuple[type[Exception], ...], action: Any) -> ConnectionFailedError:
    """Run it until it raises; that is of this kind and within the bound."""
    begun = time.monotonic()
    with pytest.raises(kind) as caught:
        while time.monotonic() < begun + 60:
            action()
    assert time.monotonic() - begun < COMPLETION_LIMIT_S + SLACK_S
    assert isinstance(caught.value, ConnectionFailedError)
    return caught.value


def test_restarted_frontends_leak_nothing_and_repeat_nothing_and_the_fence_holds(lives: Lives) -> None:
    files = []
    for _ in range(2):
        lives.begin()
        lives.send(20)
        lives.turn()  # some of these are served
        with lives.paused_scheduler():
            lives.send(20)
            lives.frontend.post()  # these wait in the ring
            lives.crash()
            gc.collect()
            files.append(len(list(Path("/proc/self/fd").iterdir())))
            lives.begin()  # the epoch is in the ring before the scheduler goes on
        lives.crash()
    lives.begin()
    sent = lives.send(10)
    lives.finish()
    assert lives.outcomes(sent) == {Outcome.COMPLETED}
    assert lives.all_is_free()
    assert len(set(files)) == 1
    assert lives.frontend.counters.wrong_tokens == 0
    verdict = lives.verdict()
    assert (verdict.code, verdict.violations) == (0, ())
    assert verdict.coverage["statuses"]["fenced"] >= 40
    assert verdict.coverage["system"]["frontend restart"] == 4
    assert lives.ring is not None
    lives.ring.close()


class Delay:
    """Holds back the control words of a frontend, as a frontend does that is stopped in the middle of a burst."""

    def __init__(self, ring: VerbsRing) -> None:
        self._write, self.held = ring.write, list[Write]()
        ring.write = self.write  # type: ignore[method-assign]

    def write(self, write: Write) -> None:
        """A WRITE of the frontend."""
        if write.region is Region.STATUS:
            self.held.append(write)
        else:
            self._write(write)

    def release(self, ring: VerbsRing) -> None:
        """It goes on."""
        for write in self.held:
            self._write(write)
        ring.flush()


def held_up(lives: Lives) -> tuple[VerbsRing, Delay]:
    """A frontend that stops between descriptor and control word; it answers nobody, and its connection stays."""
    lives.begin()
    old = lives.ring
    assert old is not None
    delay = Delay(old)
    lives.send(1)
    lives.frontend.post()
    old.flush()
    lives.crash(close=False)
    old.attachment._over = True
    old.attachment._thread.join()
    return old, delay


def test_a_delayed_write_of_an_old_connection_does_not_land(lives: Lives) -> None:
    old, delay = held_up(lives)
    lives.begin()
    fails_within((PeerLostError, FlushedError), lambda: delay.release(old))
    lives.send(3)
    lives.finish()
    assert lives.all_is_free()
    assert lives.verdict().code == 0
    old.close()
    assert lives.ring is not None
    lives.ring.close()


def leave_the_old_connection_alive(host: type[RingHost]) -> None:
    """The mutant: the old frontend is dead, so nothing of it can arrive any more."""
    from blink.hw.verbs import host as module

    kept: list[Any] = []
    module._Attached.end = lambda self: kept.append(self)  # type: ignore[method-assign]


def test_the_mutant_that_leaves_the_old_connection_alive_is_caught(tmp_path: Path) -> None:
    far = FarRing(SLOW, change=leave_the_old_connection_alive)
    device = Device(choice())
    lives = Lives(far, device, tmp_path / "trace.ndjson")
    old, delay = held_up(lives)
    lives.begin()
    delay.release(old)  # it lands in a slot that was read as empty and is on the new free list
    time.sleep(0.1)
    taken = [slot for slot, word in enumerate(far.say("words").tolist()) if word & STATE_MASK != SlotState.EMPTY]
    assert len(taken) == 1  # and the frontend does not know of it
    assert lives.frontend.slot_counts()["free"] == SLOT_COUNT
    verdict = lives.verdict()
    assert verdict.code == 2
    assert "I9" in {violation.invariant for violation in verdict.violations}, verdict.violations
    old.close()
    assert lives.ring is not None
    lives.ring.close()
    far.close()
    device.close()


def test_a_peer_that_is_killed_in_the_middle_of_a_write_shows_within_the_bound(lives: Lives) -> None:
    lives.begin()
    lives.send(20, output_tokens=16)
    lives.turn()
    ring = lives.ring
    assert ring is not None
    prompt = Write(Region.PROMPT, 1 << 16, 400_000, bytes(400_000))
    ring.write(prompt)
    ring._channel.post()  # it is under way
    lives._far.kill()

    def go_on() -> None:
        ring.write(prompt)
        ring.flush()
        ring.read_status()

    failure = fails_within(ConnectionFailedError, go_on)
    again = fails_within(type(failure), ring.read_status)
    assert again is failure
    begun = time.monotonic()
    with pytest.raises(ConnectionFailedError, match="--connect 127"):
        replace(lives._far.door(), attempts=3).open_patiently(lives._device)
    assert time.monotonic() - begun < 15  # the tries end
    ring.close()


def test_an_idle_frontend_learns_that_its_peer_is_gone(lives: Lives) -> None:
    lives.begin()
    ring = lives.ring
    assert ring is not None
    lives._far.kill()
    due = time.monotonic() + COMPLETION_LIMIT_S + SLACK_S
    while ring.attachment.channel.failure is None and time.monotonic() < due:
        time.sleep(0.02)
    assert ring.attachment.channel.failure is not None
    ring.close()


def test_a_wrong_key_harms_nobody_but_its_user(lives: Lives) -> None:
    lives.begin()
    ring = lives.ring
    assert ring is not None
    status = ring._regions[Region.STATUS]
    ring._regions[Region.STATUS] = replace(status, key=status.key ^ 0x100)
    lives.send(5)
    with pytest.raises(AccessError):
        lives.turn()
    assert not any(word & STATE_MASK for word in lives._far.say("words").tolist())
    lives.crash()
    lives.begin()
    lives.send(5)
    lives.finish()
    assert lives.all_is_free()
    assert lives.ring is not None
    lives.ring.close()


# --- drills, with the frontend killed for real ---


class VerbsExport:
    """How a drill's frontends reach its rings over verbs."""

    def __init__(self, device: Device, instance: Instance) -> None:
        block = HostBlock(instance.config, instance.library.dtypes, instance.base)
        self._host = RingHost(device, block, Identity("1", "drill"), ("127.0.0.1", 0), lambda frame: {})

    @property
    def opener(self) -> Any:
        """See Export."""
        return partial(opened, Door(*self._host.address, Identity("", "drill")))

    def drop(self) -> None:
        """See Export."""
        self._host.drop()

    def close(self) -> None:
        """See Export."""
        self._host.close()


def opened(door: Door, settings: NativeSettings) -> TakenRing:
    """In the frontend's process."""
    return open_ring(door, choice(), settings)


@pytest.mark.parametrize("moment", [Moment.WRITES, Moment.RECOVERY])
def test_a_drill_over_verbs_kills_its_frontend_and_finds_nothing_wrong(
    moment: Moment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "FrontendProcess", ForkedFrontend)
    case = queue_case(Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 1_000_000, moment=moment))
    device = Device(choice())
    try:
        found = native.drill(case, tmp_path, export=partial(VerbsExport, device))
    finally:
        device.close()
    assert found.judge() == []
    assert found.counts["frontend crash"] >= 1
    assert found.counts["requests failed by a frontend crash"] > 0
    assert found.lives[0].slots == {"free": SLOT_COUNT, "in_use": 0, "recovering": 0}
    assert len(found.lives) == 1
