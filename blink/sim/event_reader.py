"""The token reader with every READ as events of its own: posted, captured, completed, in any order and at any age.

TokenPath computes many polls at once and so assumes that READs behave. Here nothing is computed ahead: whatever has not
happened when the frontend dies never does. It drives the same TokenReader, and Recovery after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from blink.common.events import Event, Phase
from blink.common.faults import FaultCounts, FaultKind
from blink.common.layout import U64
from blink.common.ledger import Ledger
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT
from blink.frontend.recovery import Left, Recovery
from blink.frontend.token_reader import News, PollSchedule, TokenReader
from blink.sim.clock import Clock
from blink.sim.faults import Read, ReadTrouble, Script, play
from blink.sim.token_path import ReadCosts

Stretch = Generator[int, None, bool]
"""A part of a script that says at its end whether there was news."""


class EventReader:
    """Polls while something is expected: tokens, completions, or the fence of an old frontend's slots.

    `look` is called once a cycle and says whether the ring is still worth reading; `idle` once nothing is expected.
    """

    def __init__(
        self,
        env: Clock,
        ring: Ring,
        reader: TokenReader,
        schedule: PollSchedule,
        read: ReadCosts,
        by_slot: dict[int, Request],
        recorder: Recorder,
        trouble: ReadTrouble,
        ledger: Ledger,
        counts: FaultCounts,
        *,
        epoch: int,
    ) -> None:
        self._env, self._ring, self._reader, self._schedule, self._read = env, ring, reader, schedule, read
        self._by_slot, self._rec, self._trouble, self._ledger, self._counts = by_slot, recorder, trouble, ledger, counts
        self._epoch = epoch
        self.recovery: Recovery | None = None
        self.recycle: Callable[[list[int]], None] = lambda slots: None
        self.recycle_left: Callable[[list[Left]], None] = lambda left: None
        self.completed: Callable[[Request], None] = lambda request: None
        self.look: Callable[[], bool] = lambda: True
        self.idle: Callable[[], None] = lambda: None
        self.cancelled_count = 0
        self._running = False
        self._last_ns = [0] * SLOT_COUNT

    # --- what the rest of the frontend asks ---

    def watch(self, slot: int, generation: int) -> None:
        """A prompt was posted into `slot`."""
        self._reader.watch(slot, generation)
        self.wake()

    def wake(self) -> None:
        """Something is expected: poll, if it is not done already."""
        if not self._running:
            self._running = True
            play(self._env, self._cycles())

    def handed_over(self, slot: int) -> int:
        """Tokens of the slot that its client has."""
        return self._reader.handed_over(slot)

    def last_token_ns(self, slot: int) -> int:
        """When the slot's last tokens were handed over."""
        return self._last_ns[slot]

    @property
    def expects(self) -> bool:
        """Whether anything is still to come from the ring."""
        return self._reader.watched_count > 0 or bool(self.recovery and not self.recovery.done)

    # --- cycles ---

    def _cycles(self) -> Script:
        quiet = 0
        while self.expects:
            yield self._env.now + self._schedule.gap_ns(quiet)
            before = self._reader.watched_count
            seen = yield from self._cycle()
            quiet = 0 if seen or before != self._reader.watched_count else quiet + 1
            if not self.look():
                self._running = False
                return
        self._running = False
        self.idle()

    def _cycle(self) -> Stretch:
        """READs, what they show, and the recycling once none of them is in flight; True if there was news."""
        reads, trouble = self._trouble.draw(self._env.now)
        if trouble is not None:
            self._counts.add("status READs stale" if trouble is FaultKind.STALE_READS else "status READs out of order")
        ended: list[int] = []
        left: dict[int, Left] = {}
        seen = False
        for time_ns, what, read in _steps(reads):
            if time_ns > self._env.now:
                yield time_ns
            if what == 0:
                self._rec.reader.add(event=Event.STATUS_READ, t_ns=self._env.now, phase=Phase.POSTED)
            elif what < 3:
                self._capture(read, what - 1)
            else:
                self._rec.reader.add(event=Event.STATUS_READ, t_ns=self._env.now, phase=Phase.DONE)
                yield self._env.now + self._read.status_ns - self._read.status_done_ns
                assert read.words is not None
                seen = (yield from self._digest(read.words, ended, left)) or seen
        self._recycle(ended, list(left.values()))
        return seen

    def _capture(self, read: Read, half: int) -> None:
        """Each slot is captured at its own moment: the two halves of the array stand for that."""
        middle = SLOT_COUNT // 2
        if read.words is None:
            read.words = self._ring.ctl.copy()
        if half:
            read.words[middle:] = self._ring.ctl[middle:]

    def _digest(self, words: U64, ended: list[int], left: dict[int, Left]) -> Stretch:
        """What a completed READ shows, and the READ of the tokens that it announces; True if there was news."""
        if self.recovery is not None:
            left.update((found.slot, found) for found in self.recovery.completed(words))
        news = self._reader.on_status(words)
        if news is None:
            return False
        yield self._env.now + news.slots.size * self._read.slot_ns + self._read.tokens_ns
        self._hand_over(news, ended)
        self._reader.on_tokens(news)
        return True

    def _hand_over(self, news: News, ended: list[int]) -> None:
        now = self._env.now
        columns = (news.slots, news.token_from, news.token_count, news.completed, news.status)
        for slot, start, count, completed, status in zip(*(column.tolist() for column in columns), strict=True):
            request = self._by_slot[slot]
            if count > start:
                self._rec.reader.add(
                    event=Event.TOKENS_READ, t_ns=now, slot=slot, generation=request.generation, epoch=self._epoch,
                    request_id=request.request_id, token_from=start, token_count=count,
                )  # fmt: skip
                if request.cancelled_ns is None:
                    self._last_ns[slot] = now
                    self._ledger.deliver(request.request_id, start, count)
            if completed:
                ended.append(slot)
                self._end(request, status, count)

    def _end(self, request: Request, status: int, token_count: int) -> None:
        request.status = status
        if request.cancelled_ns is not None:
            self.cancelled_count -= 1
            return
        request.answered(status, token_count, self._last_ns[request.slot])
        self.completed(request)

    def _recycle(self, ended: list[int], left: list[Left]) -> None:
        """T10: no READ of these slots is in flight now."""
        for slot in ended:
            self._reader.forget(slot)
        if ended:
            self.recycle(ended)
        if left:
            self.recycle_left(left)


def _steps(reads: list[Read]) -> list[tuple[int, int, Read]]:
    """(time, what, READ) in the order of time: 0 posted, 1 and 2 captured, 3 done."""
    steps = [
        (time_ns, what, index)
        for index, read in enumerate(reads)
        for what, time_ns in enumerate((read.posted_ns, *read.captured_ns, read.done_ns))
    ]
    return [(time_ns, what, reads[index]) for time_ns, what, index in sorted(steps)]
