"""Both sides of a ring over fake verbs: hello, takeover, recovery and lock-step without a device."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from blink.common.errors import InputError
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT
from blink.conform.backend import NativeRdma, Sim
from blink.conform.lockstep import Compared, compare_script, random_scripts
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.verbs import attach, binding, device, loop
from blink.hw.verbs.attach import Attachment, Door
from blink.hw.verbs.device import Device
from blink.hw.verbs.failure import ConnectionFailedError, ControlLostError, NoCompletionError
from blink.hw.verbs.frames import FrameSocket
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import HostBlock, RingHost
from blink.hw.verbs.probe import check_order
from blink.hw.verbs.ring import VerbsRing
from blink.hw.verbs.running import RemoteRunning
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler, scenario_of, small_settings
from tests.rdma.fake import FakeWorld

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """Every device that is opened is a fake one."""
    made = FakeWorld()
    monkeypatch.setattr(device, "load", lambda: made.binding)
    return made


@pytest.fixture
def host() -> Iterator[RingHost]:
    """A ring's side."""
    instance = Instance(load_library(), small_settings())
    block = HostBlock(instance.config, instance.library.dtypes, instance.base)
    opened = Device()
    made = RingHost(opened, block, Identity("01", "digest"), ("127.0.0.1", 0), lambda frame: {"clean": True})
    yield made
    made.close()
    opened.close()
    instance.close()


def door(host: RingHost, **changes: str) -> Door:
    """To it."""
    return Door(*host.address, Identity(**{"boot_id": "", "settings": "digest", **changes}), attempts=2)


def test_in_lock_step_every_decision_is_the_simulators() -> None:
    tally = Compared()
    for script in random_scripts(seed=11, count=25):
        difference = compare_script(("sim", "native-rdma"), (Sim().stepper, NativeRdma().stepper), script, tally)
        assert difference is None, "\n".join(difference.lines())
    assert {"claim", "pause", "resume", "finish", "relaunched", "cancel_seen", "reject"} <= set(tally.kinds)


def test_a_run_over_a_loop_completes() -> None:
    scenario, requests = build_load(scenario_of(workload={"requests": 25}))
    result = loop.serve(scenario, requests, time_scale=0.0)
    assert result.counters["wrong_tokens"] == 0
    assert result.requests["outcome"].tolist() == [Outcome.COMPLETED] * 25


def test_what_is_asked_beside_the_verbs_is_answered(host: RingHost) -> None:
    attachment = door(host).open(Device())
    assert host.peer is not None
    assert attachment.clocks.shared
    ring = VerbsRing(attachment, small_settings())
    assert RemoteRunning(ring).stop(how=1)  # type: ignore[arg-type]
    assert (ring.header_epoch, ring.heartbeat()) == (0, 0)
    assert len(ring.read_descriptors()) == 64 * SLOT_COUNT
    ring.close()


def test_a_status_read_that_is_under_way_is_not_waited_for(host: RingHost, world: FakeWorld) -> None:
    attachment = door(host).open(Device())
    ring = VerbsRing(attachment, small_settings())
    world.held = True
    assert not ring.look_for_status(1_000)
    assert not ring.look_for_status(1_000)  # the same READ
    world.serve()
    assert ring.look_for_status(1_000)
    assert ring.read_status().tolist() == [0] * SLOT_COUNT
    assert not ring.look_for_status(1_000)  # the next one
    world.held = False
    world.serve()
    assert ring.state()["started"] == 0  # others come and go meanwhile
    assert ring.look_for_status(1_000)
    ring.close()


def test_another_machines_clock_is_compared(host: RingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "machine_id", lambda: "elsewhere")
    attachment = door(host).open(Device())
    assert not attachment.clocks.shared
    assert abs(attachment.clocks.offset_ns) <= attachment.clocks.error_ns + 1_000_000
    attachment.close()


def test_a_frontend_that_lives_keeps_the_ring_and_one_that_does_not_answer_loses_it(host: RingHost) -> None:
    first = door(host).open(Device())
    with pytest.raises(InputError, match="is alive"):
        door(host).open(Device())
    first._over = True  # it answers no more
    first._thread.join()
    second = door(host, boot_id="01").open(Device())
    assert second.hello.life == 1
    assert len(host.refused) == 1
    with pytest.raises(ConnectionFailedError):  # its queue pair has no partner any more
        first.channel.read_now(first.region("header"), 0, 8)
    first.close()
    second.close()


def test_a_frontend_keeps_the_ring_though_the_rings_side_is_held_up(
    host: RingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks, is held up for a minute, and only then looks for the answer, which has long come."""
    first = door(host).open(Device())
    attached, here, now_s = host._attached, threading.current_thread(), [time.monotonic()]
    assert attached is not None

    def a_minute_later() -> float:
        if threading.current_thread() is here:
            if len(now_s) > 1:
                select.select([attached.control], [], [], 30)
            now_s.append(now_s[-1] + 60)
        return now_s[-1]

    with monkeypatch.context() as patched, host._lock:  # as when it greets: the door's thread reads nothing meanwhile
        patched.setattr(time, "monotonic", a_minute_later)
        assert host._is_alive(attached)
    first.close()


def test_a_frontend_that_is_held_up_does_not_take_that_for_its_peers_silence(
    host: RingHost, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = door(host).open(Device())
    first._over = True
    first._thread.join()
    world.held = True
    began_ns, held_up_s = time.monotonic_ns(), [1]
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic_ns", lambda: began_ns + 10**9 * sum(held_up_s))
        patched.setattr(time, "monotonic", lambda: began_ns / 1e9 + sum(held_up_s))
        first._look()  # nothing has come for a second: it READs a word
        for _ in range(2):
            held_up_s.append(100)
            first._look()
            assert first.channel.failure is None
        world.serve()
        first._look()
        assert first.channel.outstanding == 0
        for _ in range(10):
            held_up_s.append(100)
            first._look()
        assert isinstance(first.channel.failure, NoCompletionError)  # there is a bound
    first.close()


def test_a_ring_whose_side_is_closed_is_lost_and_not_to_be_had(host: RingHost) -> None:
    attachment = door(host).open(Device())
    there = host.address
    host.close()
    with pytest.raises(ConnectionFailedError):
        attachment.channel.read_now(attachment.region("header"), 0, 8)
    with pytest.raises(ConnectionFailedError, match="--connect 127"):
        Door(*there, Identity("", "digest"), attempts=2).open_patiently(Device())
    with pytest.raises(ConnectionFailedError):
        attachment.ask({"ask": "now"})
    attachment.close()


@pytest.mark.parametrize("side", [0, 1], ids=["the ring's side", "the frontend's"])
def test_an_adapter_that_finds_no_way_for_a_moment_is_tried_again(side: int, host: RingHost, world: FakeWorld) -> None:
    """An address that cannot be resolved just after a link has come up: neither a traceback nor the end."""
    world.unreachable = {side}
    opened, pairs, regions = Device(), len(world.pairs), len(world.regions)
    with pytest.raises(ConnectionFailedError, match=r"cannot connect \(Failed to modify QP state to RTR"):
        door(host).open(opened)
    assert len(world.regions) == regions
    attachment = door(host, boot_id="01").open_patiently(opened)
    assert attachment.channel.read_now(attachment.region("header"), 0, 8) is not None
    attachment.close()
    host.drop()
    assert len(world.pairs) == pairs


def test_a_connection_whose_clocks_cannot_be_compared_leaves_nothing_behind(
    host: RingHost, world: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_vain(attachment: Attachment) -> None:
        raise ControlLostError("now", "no answer within 5 s")

    regions = len(world.regions)
    with monkeypatch.context() as patched, pytest.raises(ControlLostError):
        patched.setattr(Attachment, "_compare_clocks", in_vain)
        door(host).open(Device())
    assert len(world.regions) == regions
    door(host).open(Device()).close()  # nobody says that the first one lives


def test_records_of_another_clock_are_shifted_by_what_the_ring_says(
    host: RingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostBlock, "record_offset_ns", -7)
    attachment = door(host).open(Device())
    assert RemoteRunning(VerbsRing(attachment, small_settings())).record_ns(50) == 43
    attachment.close()


def test_a_takeover_in_the_middle_of_a_look_does_not_end_the_door(host: RingHost) -> None:
    first = door(host).open(Device())
    attached = host._attached
    assert attached is not None
    attached.control.close()  # as the greeting's thread does, before the door's thread has seen it
    assert host._ready(0.0) == []
    time.sleep(0.4)  # the door's thread looks again, and the door is open
    second = door(host).open_patiently(Device())
    assert second.channel.read_now(second.region("header"), 0, 8) is not None
    first.close()
    second.close()


def test_memory_that_an_adapter_does_not_take_is_said(host: RingHost, world: FakeWorld) -> None:
    world.refuses_memory = True
    with pytest.raises(InputError, match=r"--device fake0: it registers no \d+ bytes of memory .* \(ulimit -l\)"):
        door(host).open(Device())


def test_a_device_that_cannot_be_opened_is_said(world: FakeWorld) -> None:
    def refused(name: str) -> None:
        raise OSError("Permission denied")

    made = world.binding
    made.classes["Context"] = refused
    with pytest.raises(InputError, match=r"--device fake0: it cannot be opened \(Permission denied\)"):
        Device(binding=made)


def test_a_probe_ends_where_nothing_arrives(world: FakeWorld) -> None:
    world.held = True
    with pytest.raises(InputError, match=r"--device fake0: .* nothing arrived within 0\.1 s"):
        check_order(Device(), limit_s=0.1)


def test_a_stranger_at_the_door_is_refused_and_the_next_one_is_served(host: RingHost) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\0\0\0\2{}"):
        with socket.create_connection(host.address) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            end = FrameSocket(stranger)
            assert "refused" in end.receive(5)
    with socket.create_connection(host.address):  # one who says nothing keeps nobody waiting
        attachment = door(host).open_with(device.ANY_DEVICE)
        attachment.close()


def test_without_a_binding_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ImportError("not here")

    monkeypatch.setattr(binding, "DISTRIBUTION_FOLDERS", ())
    monkeypatch.setattr(binding.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(binding.abi3_binding, "load_package", absent)
    with pytest.raises(InputError, match=r"RDMA needs pyverbs or ibverbs for this interpreter .* python3-pyverbs"):
        binding.load.__wrapped__()
    monkeypatch.setenv("BLINK_VERBS", "mlx5")
    with pytest.raises(InputError, match="BLINK_VERBS: 'mlx5' is not allowed; allowed: pyverbs, ibverbs"):
        binding.load.__wrapped__()
