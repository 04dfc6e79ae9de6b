"""The compiled scheduler as a backend: it runs in a process of its own over memory that a keeper holds."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.layout import STATE_MASK
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.common.states import SlotState
from blink.common.trace import Ints, TraceFooter
from blink.frontend.recovery import HeartbeatWatch
from blink.frontend.submission import Submission
from blink.frontend.token_reader import News
from blink.hw.native.driver import EVIDENCE
from blink.hw.native.frontend_child import RowSender, ServingFrontend, Setup
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.memory import SharedBlock
from blink.hw.native.records import RecordReader
from blink.hw.native.run import monotonic_ns
from blink.hw.native.tokens import seed_of
from blink.hw.ring import Tokens
from blink.perf.plant import Plant
from blink.serve.backend import Finish, Job, Stats, count_states, finish_of
from blink.serve.bounds import bounds_of
from blink.serve.keeper import Hello, Order, load, settings_digest
from blink.serve.keeper_link import KeeperLink, default_socket
from blink.serve.log import Log
from blink.serve.options import Options
from blink.serve.stub import StubText

GAP_MIN_NS, GAP_MAX_NS = 100_000, 500_000
"""Between two polls while something is expected; it doubles while nothing is new."""
HEART_BOUND_NS = 5_000_000_000
FIRST_NUMBER_SHIFT = 32
"""Request ids of the n-th server on a ring begin at n << 32: none is used twice."""
START_LIMIT_S, END_LIMIT_S = 60.0, 15.0


class _NoRows:
    """A TraceWriter for a server without a trace."""

    def write(self, columns: Mapping[str, Ints], count: int) -> None: ...

    def close(self, footer: TraceFooter | None) -> None: ...

    def abort(self) -> None: ...


class _Forgetful(list[I64]):
    """A server does not keep every gap that ever was."""

    def append(self, _: I64) -> None: ...


class _Live:
    """A job in the ring or before it."""

    __slots__ = ("job", "key", "request", "text")

    def __init__(self, job: Job, request: Request, key: int, text: list[int]) -> None:
        self.job, self.request, self.key, self.text = job, request, key, text


class LiveFrontend(ServingFrontend):
    """The frontend of the native drills, with prompts that clients sent and tokens that go to them."""

    def __init__(self, setup: Setup, instance: Instance, link: KeeperLink, recorder: Recorder, text: StubText) -> None:
        self._live: dict[int, _Live] = {}
        self._text = text
        self.before_tokens: Callable[[], None] = lambda: None
        super().__init__(setup, instance, link, recorder)
        self._gaps = _Forgetful()

    def submit(self, live: _Live) -> None:
        """Queue a job."""
        self._live[live.job.number] = live
        self.receive(live.request)

    def give_up(self, job: Job) -> None:
        """Its client is gone."""
        live = self._live.pop(job.number, None)
        if live is not None and live.request.outcome is Outcome.UNFINISHED:
            self.cancel(live.request)

    @property
    def live_count(self) -> int:
        """Jobs whose clients wait."""
        return len(self._live)

    def _submission(self, request: Request) -> Submission:
        job = self._live[request.request_id].job
        prompt = np.array(job.prompt, np.uint32)
        self._seeds[request.request_id] = seed_of(request.request_id, prompt)
        sampling = job.sampling
        return Submission(
            request.request_id, request.prompt_tokens, request.output_tokens_max, sampling.temperature,
            sampling.top_p, sampling.top_k, (sampling.seed or 0) & 0xFFFF_FFFF, prompt.tobytes(),
        )  # fmt: skip

    def _check(self, news: News, count: I64, tokens: Tokens) -> None:
        """The stub's tokens become the job's text; one that is wrong becomes wrong text."""
        before = self.counters.wrong_tokens
        self.before_tokens()
        super()._check(news, count, tokens)
        wrong = self.counters.wrong_tokens - before
        for slot, start, end in zip(
            news.slots.tolist(), news.token_from.tolist(), news.token_count.tolist(), strict=True
        ):
            live = self._live.get(self._by_slot[slot].request_id)
            if live is not None and end > start:
                if not start:
                    self._tell_times(live.job, live.request)
                errors = [int(wrong > 0 and self._wrong[slot] > 0)] * (end - start)
                given = self._text.piece(live.key, start, errors) if wrong else live.text[start:end]
                live.job.take(given, None)

    def _tell_times(self, job: Job, request: Request) -> None:
        for name in ("published_ns", "claimed_ns", "stored_ns"):
            time_ns = getattr(request, name)
            if time_ns >= 0:
                setattr(job, name, time_ns + self._start_ns)

    def _tell(self, request: Request, now_ns: int) -> None:
        live = self._live.pop(request.request_id, None)
        if live is not None and request.outcome is not Outcome.CANCELLED:
            live.job.take((), Finish.ERROR if request.status < 0 else finish_of(request.status))

    def _recycle(self, slots: list[int]) -> None:
        super()._recycle(slots)
        for slot in slots:  # the generation that ended is still named by records that are under way
            self._by_life.pop((slot, self.slots.generation(slot) - 2), None)


class NativeBackend:
    """A Backend over a ring that a keeper holds."""

    name = "native"

    def __init__(
        self, scenario: Scenario, text: StubText, end: socket.socket, hello: Hello, block: SharedBlock, order: Order
    ) -> None:
        plant = Plant.of(scenario)
        self.bounds = bounds_of(scenario, plant)
        _, settings = load(order)
        recover = hello.life > 0
        self._end, self._link = end, KeeperLink(end, traced=hello.traced)
        self._instance = instance = Instance.attach(load_library(), settings, block)
        epoch = instance.header_epoch
        if recover:
            instance.settings = replace(settings, frontend_epoch=epoch + 1)
        frontend = scenario.frontend
        setup = Setup(
            library=instance.library.path, settings=settings, start_ns=hello.start_ns,
            reads_max=frontend.token_reads_per_poll_max, burst_max=frontend.submissions_per_burst_max,
            ring_dead_after_ns=HEART_BOUND_NS, seed=scenario.seed, recover=recover,
        )  # fmt: skip
        sink = RowSender(self._link) if hello.traced else _NoRows()
        recorder = Recorder(sink, reads_each=True, initial_rows=1 << 10, evidence=EVIDENCE)
        recorder.submitter = recorder.reader
        self._frontend = LiveFrontend(setup, instance, self._link, recorder, text)
        self._records: RecordReader | None = None
        if not hello.traced:
            self._frontend._rec = None  # nobody reads the rows
            self._records = RecordReader(None, self._frontend.request_of, hello.start_ns)
            self._frontend.before_tokens = self._drain
        self._text, self._traced = text, hello.traced
        self.first_number = hello.life << FIRST_NUMBER_SHIFT
        self.keeper_pid = hello.pid
        self._watch = HeartbeatWatch(HEART_BOUND_NS)
        self._quiet = 0
        self._stats = Stats(
            batch_max=plant.limits.batch_max, kv_blocks=settings.kv_block_count, window=plant.limits.window
        )
        if recover:
            self._frontend.recover(epoch, -1)
            self._frontend.flush()

    # --- jobs ---

    def submit(self, job: Job) -> None:
        """See Backend."""
        key = self._text.key(job)
        eos_at = self._text.eos_at(job, key)
        sent_ns = job.arrived_ns - self._frontend._start_ns
        request = Request(job.number, -1, len(job.prompt), eos_at, job.output_tokens_max, sent_ns)
        self._frontend.submit(_Live(job, request, key, self._text.text(key, min(eos_at, job.output_tokens_max))))
        self._quiet = 0

    def cancel(self, job: Job) -> None:
        """See Backend."""
        self._frontend.give_up(job)
        self._quiet = 0

    # --- turns ---

    def turn(self) -> int | None:
        """See Backend: one burst, one poll."""
        frontend = self._frontend
        busy = frontend.post()
        busy = frontend.poll() or busy
        self._drain()
        if self._traced:
            frontend.flush()
        if not frontend.expects:
            self._watch.rest()
            return None
        self._quiet = 0 if busy else self._quiet + 1
        return monotonic_ns() + min(GAP_MAX_NS, GAP_MIN_NS << min(self._quiet, 8))

    def _drain(self) -> None:
        """Records of the scheduler: they tell when it claimed a request, and when its first token was stored."""
        if self._records is not None and (records := self._instance.drain()).size:
            self._records.take(records)

    # --- the state of things ---

    def slot_states(self) -> bytes:
        """See Backend: as the ring is now."""
        words = np.frombuffer(self._instance.read_status(), np.uint64)
        return (words & np.uint64(STATE_MASK)).astype(np.uint8).tobytes()

    def stats(self) -> Stats:
        """See Backend; it also looks whether keeper and scheduler are well."""
        frontend, stats, state = self._frontend, self._stats, self._instance.state()
        states = self.slot_states()
        stats.slots = count_states(states)
        running = (SlotState.PREFILL_PROCESSING, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)
        stats.running = sum(stats.slots[one.label] for one in running)
        stats.waiting = max(0, frontend.live_count - stats.running)
        stats.kv_share = state.get("kv_blocks_used", 0) / max(1, stats.kv_blocks)
        stats.window_used, stats.relaunches = state.get("launches", -1), state.get("relaunches", 0)
        counters = frontend.counters
        stats.poll_count = counters.status_reads + counters.idle_status_reads
        stats.recovering, stats.wrong_tokens = frontend.slots.recovering_count, counters.wrong_tokens
        stats.note = self._trouble(state)
        return stats

    def _trouble(self, state: dict[str, int]) -> str:
        if not self._link.is_alive():
            return "the keeper of the ring is gone, and the scheduler with it"
        if state.get("failed"):
            return "a graph was overdue: the scheduler launches nothing any more"
        beat = self._instance.library.heartbeat_ns(self._instance.base)
        if self._frontend.expects and not self._watch.look(beat, monotonic_ns()):
            return "the scheduler's heart stands still"
        return ""

    def close(self, *, complete: bool) -> None:
        """See Backend: what was cancelled leaves the ring, then the keeper ends."""
        frontend = self._frontend
        due_ns = monotonic_ns() + 5_000_000_000
        while frontend.expects and monotonic_ns() < due_ns and self._link.is_alive():
            self.turn()
        frontend.flush()
        idle = frontend.counters.idle_status_reads
        self._link.send("bye", frontend.slot_counts(), idle, complete and not frontend.expects)
        self._end.settimeout(END_LIMIT_S)
        with contextlib.suppress(OSError):
            self._end.recv(64)  # the keeper is done, with the trace, too
        self._end.close()
        self._instance.close()


# --- finding a keeper, or starting one ---


def open_native(options: Options, scenario: Scenario, text: StubText, log: Log, port: int) -> NativeBackend:
    """The backend over the ring that is there already, or over a new one. Raises InputError."""
    load_library()
    path = options.ring or default_socket(port)
    overrides = [*(("--seed", f"seed={options.seed}") for _ in range(options.seed is not None))]
    overrides += [("--set", text) for text in options.overrides]
    trace = str(options.trace.absolute()) if options.trace else ""
    order = Order(str(path), options.scenario, overrides, options.time_scale, options.linger, trace)
    end = _connect(path)
    if end is None:
        _start(order)
        end = _connect(path)
    if end is None:
        raise InputError(f"--ring {path}: the keeper of the ring did not answer")
    hello, block = _greeted(end, path)
    if hello.digest != settings_digest(load(order)[1]):
        end.close()
        raise InputError(
            f"--ring {path}: a ring of another scenario lives there (process {hello.pid}); end it, or use another path"
        )
    if hello.life:
        log.say("took over a ring whose server had died", keeper=hello.pid, life=hello.life)
    return NativeBackend(scenario, text, end, hello, block, order)


def _connect(path: Path) -> socket.socket | None:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        end.close()
        return None
    except OSError as error:
        end.close()
        raise InputError(f"--ring {path}: {error.strerror or error}") from None
    return end


def _greeted(end: socket.socket, path: Path) -> tuple[Hello, SharedBlock]:
    end.settimeout(START_LIMIT_S)
    try:
        data, fds, _, _ = socket.recv_fds(end, 4096, 1)
    except OSError:
        data, fds = b"", []
    end.settimeout(None)
    if not data or not fds:
        end.close()
        raise InputError(f"--ring {path}: another server uses this ring; end it, or use another path")
    hello = msgspec.msgpack.decode(data, type=Hello)
    return hello, SharedBlock(hello.size_bytes, fds[0])


def _start(order: Order) -> None:
    """Start a keeper that outlives this process. Raises InputError with what it says if it cannot."""
    command = [sys.executable, "-m", "blink.serve.keeper", msgspec.json.encode(order).decode()]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as pipe:
        said = pipe.readline().decode(errors="replace").strip()
    if said != "up":
        raise InputError(f"the keeper of the ring did not start: {said or 'it said nothing'}")
