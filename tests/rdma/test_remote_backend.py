"""The server's backend over a ring on another host, on fake verbs: jobs, a connection that fails, a lost ring."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from blink.cli import main
from blink.common.checker import check_trace
from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.frontend.openai.bodies import Sampling
from blink.frontend.tokenizer import open_tokenizer
from blink.hw.cuda.copier import Copier
from blink.hw.native.library import load_library
from blink.hw.verbs import attach, device, gpu_block
from blink.hw.verbs.attach import Remote
from blink.hw.verbs.device import ANY_DEVICE, Device
from blink.hw.verbs.gpu_block import GpuMemory
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import Exported, HostBlock, RingHost
from blink.serve.attach import frontend_maker
from blink.serve.backend import Finish, Job
from blink.serve.device_kept import DeviceKept
from blink.serve.kept import Kept, open_kept
from blink.serve.log import Log
from blink.serve.plan import Order, Plan, plan_of
from blink.serve.remote import RemoteBackend
from blink.serve.remote_order import remote_digest, remote_order
from tests.hw.cuda_help import GPU_MARKS
from tests.hw.native_help import needs_compiler
from tests.rdma.fake import FakeWorld
from tests.shared import ROOT

pytestmark = needs_compiler
SCENARIO = str(ROOT / "scenarios" / "ci-tiny.toml")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    """Every device that is opened is a fake one; reconnecting does not take long."""
    made = FakeWorld()
    monkeypatch.setattr(device, "load", lambda: made.binding)
    monkeypatch.setattr(attach, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(attach, "WAIT_MAX_S", 0.05)
    return made


class Side:
    """The ring's side, in this process. `where` is a backend, or what takes an adapter to a ring in GPU memory."""

    def __init__(self, world: FakeWorld, where: str = "native") -> None:
        backend = "native" if where == "native" else "cuda"
        self.order: Order = remote_order(backend, SCENARIO, "stub", None, None, (), 0.1)
        self.plan: Plan = plan_of(self.order)
        self._kept: Kept | DeviceKept
        if where in list(GpuMemory):
            self._kept = DeviceKept(self.order, self.plan, GpuMemory(where), lambda text: None)
            reach_gpu_memory(world, self._kept)
        else:
            self._kept = open_kept(self.order, self.plan, lambda text: None)
        self._kept.scheduler.wait_until_up()
        self._device = Device()
        self._address = ("127.0.0.1", 0)
        self.open()

    def relay(self) -> None:
        """Trace records of a scheduler on a GPU reach the frontend's memory through this side's process."""
        if self._kept.relays:
            self._kept.drain()

    def open(self) -> None:
        """Let frontends come."""
        identity = Identity("0b", remote_digest(self.order, self.plan))
        self.host = RingHost(self._device, self._exported(), identity, self._address, lambda frame: {})
        self._address = self.host.address

    def _exported(self) -> Exported:
        if isinstance(self._kept, DeviceKept):
            return self._kept.exported
        block, dtypes = self._kept.shared, load_library().dtypes
        config = np.frombuffer(bytes(block.view(0, dtypes["config"].itemsize)), dtypes["config"])
        return HostBlock(config, dtypes, block.address, self.order.backend)

    @property
    def remote(self) -> Remote:
        """For a frontend."""
        return Remote(self.host.address, ANY_DEVICE)

    def close(self) -> None:
        """Give everything back."""
        self.host.close()
        self._kept.close()
        self._device.close()


def reach_gpu_memory(world: FakeWorld, kept: DeviceKept) -> None:
    """The fake adapter copies from and to the block of the GPU by its copy engine."""
    ring = kept._ring
    begin, copier = ring.base, Copier(ring.cuda)
    end = begin + int(ring.config["total_bytes"][0])

    def copy(target: int, source: int, size_bytes: int) -> None:
        if begin <= source < end:
            ctypes.memmove(target, copier.get(source, size_bytes), size_bytes)
        elif begin <= target < end:
            copier.put(target, ctypes.string_at(source, size_bytes))
        else:
            ctypes.memmove(target, source, size_bytes)

    world.copy, world.dma_buf_base = copy, begin


@pytest.fixture
def side(world: FakeWorld, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    """One; of another backend than native for tests that ask for it."""
    where = getattr(request, "param", "native")
    if where in list(GpuMemory):
        monkeypatch.setattr(attach, "IDLE_LOOK_S", 1e9)  # the GPU's context belongs to this thread
        monkeypatch.setattr(gpu_block, "PEERMEM", Path("/sys"))  # it is the fake adapter that reaches the memory
    made = Side(world, where)
    yield made
    made.close()


def backend(side: Side, trace: Path | None = None, **changes: str) -> RemoteBackend:
    """The server's."""
    order = replace_order(side.order, **changes)
    plan = plan_of(order)
    scenario = load_scenario(SCENARIO, [])
    make = frontend_maker(order, plan, scenario, open_tokenizer("bytes"))
    return RemoteBackend(side.remote, order, plan, make, trace, Log(as_json=False, requests=False))


def replace_order(order: Order, **changes: str) -> Order:
    """The order of a frontend whose command line differs."""
    import msgspec

    overrides = [("--set", f"{name}={value}") for name, value in changes.items()]
    return msgspec.structs.replace(order, backend="rdma", overrides=overrides)


class Answer:
    """What a job is told."""

    def __init__(self, number: int, tokens: int = 8) -> None:
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self.job = Job(number, [5, 6, 7], tokens, Sampling(ignore_eos=True), time.monotonic_ns(), self._take)

    def _take(self, tokens: Sequence[int], finish: Finish | None) -> None:
        assert self.finish is None
        self.tokens += tokens
        self.finish = finish


def turns(side: Side, made: RemoteBackend, answers: Sequence[Answer], limit_s: float = 20.0) -> None:
    """Until all are over."""
    due = time.monotonic() + limit_s
    while any(answer.finish is None for answer in answers):
        made.turn()
        side.relay()
        assert time.monotonic() < due, made.stats()
        time.sleep(0.0005)


PLACES = ["native", *(pytest.param(where, marks=GPU_MARKS) for where in ("cuda", *GpuMemory))]
"""Where a ring stands, and what takes an adapter to it."""


@pytest.mark.parametrize("side", PLACES, indirect=True)
def test_jobs_are_served_and_the_trace_conforms(side: Side, tmp_path: Path) -> None:
    made = backend(side, tmp_path / "trace.ndjson")
    answers = [Answer(number) for number in range(20)]
    for answer in answers:
        made.submit(answer.job)
    cancelled = Answer(20, tokens=100)
    made.submit(cancelled.job)
    made.turn()
    made.cancel(cancelled.job)
    turns(side, made, answers)
    assert {answer.finish for answer in answers} == {Finish.LENGTH}
    assert {len(answer.tokens) for answer in answers} == {8}
    assert made.name == f"{side.order.backend}-rdma"
    assert made.stats().wrong_tokens == 0
    # When it was claimed need not be known yet: the scheduler's records may come after so short an answer.
    assert answers[0].job.published_ns > answers[0].job.arrived_ns
    while made._frontend.expects:
        made.turn()
        side.relay()
    time.sleep(0.01)
    side.relay()
    made.close(complete=True)
    verdict = check_trace(tmp_path / "trace.ndjson")
    assert (verdict.code, verdict.violations) == (0, ())


def test_a_connection_that_fails_ends_its_jobs_and_the_next_one_recovers(side: Side, tmp_path: Path) -> None:
    made = backend(side, tmp_path / "trace.ndjson")
    first = [Answer(number, tokens=100) for number in range(4)]
    for answer in first:
        made.submit(answer.job)
    made.turn()
    side.host.drop()
    turns(side, made, first)
    assert Finish.ERROR in {answer.finish for answer in first}
    waiting = Answer(10)
    made.submit(waiting.job)
    turns(side, made, [waiting])
    assert (waiting.finish, len(waiting.tokens)) == (Finish.LENGTH, 8)
    assert side.host.life == 2
    made.close(complete=True)
    verdict = check_trace(tmp_path / "trace.ndjson")
    assert (verdict.code, verdict.violations) == (0, ())
    assert verdict.coverage["system"]["frontend restart"] == 1


def test_a_ring_that_does_not_come_back_breaks_the_server_and_answers_everybody(side: Side) -> None:
    made = backend(side)
    side.host.close()
    answer = Answer(0)
    made.submit(answer.job)
    turns(side, made, [answer])
    assert answer.finish is Finish.ERROR
    late = Answer(1)
    due = time.monotonic() + 20
    while not made.stats().note and time.monotonic() < due:
        made.turn()
        time.sleep(0.005)
    assert made.stats().note.startswith("the ring is lost: --connect 127.0.0.1:")
    made.submit(late.job)
    assert made.turn() is None
    assert late.finish is Finish.ERROR
    made.close(complete=False)
    side.open()


def test_a_scenario_that_differs_is_refused_with_what_to_look_at(side: Side) -> None:
    with pytest.raises(
        InputError, match=r"settings: the ring has \w+, the frontend \w+; both sides need the same scen"
    ):
        backend(side, **{"limits.batch_max": "8"})


def test_a_frontend_whose_hello_came_too_late_has_not_used_the_ring(side: Side, tmp_path: Path) -> None:
    """It has connected and gone away again, as on a slow machine; the trace still begins with a fresh ring."""
    identity = Identity("", remote_digest(side.order, side.plan))
    attach.Door(*side.host.address, identity).open_patiently(Device()).close()
    made, answer = backend(side, tmp_path / "trace.ndjson"), Answer(1 << 32)
    made.submit(answer.job)
    turns(side, made, [answer])
    while made._frontend.expects:
        made.turn()
    time.sleep(0.01)
    made.close(complete=True)
    assert side.host.life == 2
    verdict = check_trace(tmp_path / "trace.ndjson")
    assert (verdict.code, verdict.violations) == (0, ())


def test_a_trace_begins_with_a_fresh_ring(side: Side, tmp_path: Path) -> None:
    first, answer = backend(side), Answer(0)
    first.submit(answer.job)
    turns(side, first, [answer])
    first.close(complete=True)
    with pytest.raises(InputError, match="another frontend had this ring before"):
        backend(side, tmp_path / "trace.ndjson")
    made = backend(side)
    assert made.first_number == 2 << 32
    made.close(complete=True)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["backend", SCENARIO], "the following arguments are required: --listen"),
        (["backend", SCENARIO, "--listen", "7471"], "--listen: '7471' is not allowed; allowed: HOST:PORT"),
        (
            ["backend", SCENARIO, "--listen", "h:1", "--memory", "dma-buf"],
            "--memory dma-buf: allowed with --backend cuda",
        ),
        (["backend", SCENARIO, "--listen", "h:1", "--time-scale", "x"], "--time-scale: 'x' is not allowed"),
        (["backend", SCENARIO, "--listen", "h:1", "--device", "mlx9"], "--device: 'mlx9' is not allowed"),
        (["backend", "nowhere.toml", "--listen", "h:1"], "nowhere.toml"),
        (["serve", SCENARIO, "--transport", "rdma"], "--transport rdma: needs --connect HOST:PORT"),
        (["serve", SCENARIO, "--connect", "h:1"], "--connect: allowed with --transport rdma"),
        (["serve", SCENARIO, "--transport", "rdma", "--connect", "h:1", "--ring", "x"], "--ring: not allowed with"),
        (["conform", "--backends", "sim,rdma", SCENARIO], "allowed: sim, native, cuda, native-rdma"),
    ],
)
def test_wrong_options_are_said_in_one_line(command: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
