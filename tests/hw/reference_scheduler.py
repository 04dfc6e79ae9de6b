"""The scheduler's loop once more, in the plainest Python over blink.common.policy: what lock-step decisions must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blink.common import policy
from blink.common.events import Event
from blink.common.policy import Action, Pending
from blink.common.states import SlotStatus
from blink.frontend.slot_tracker import SlotTracker
from blink.hw.native.lockstep import Arrival, Cancel, Claimed, StepDecision
from blink.hw.native.settings import NativeSettings

Row = tuple[Event, int, int, int, int]


@dataclass
class Running:
    """A claimed request."""

    arrival: Arrival
    slot: int
    blocks: list[int]
    count: int = 0


class ReferenceScheduler:
    """Lock-step with operations at step numbers, as blink.hw.native.lockstep describes it."""

    def __init__(self, settings: NativeSettings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.tracker = SlotTracker()
        self.free = list(range(settings.kv_block_count - 1, -1, -1))
        self.fresh: dict[int, Arrival] = {}
        self.waiting: list[Pending] = []
        self.arrivals: dict[int, Arrival] = {}  # by slot
        self.slot_of: dict[int, int] = {}
        self.running: dict[int, Running] = {}
        self.cancelled: set[int] = set()
        self.ended: list[int] = []
        self.step = self.launches = 0
        self.after_prefill = False
        self.rows: list[Row] = []

    def run(self, operations: Sequence[Arrival | Cancel]) -> list[StepDecision]:
        """Every iteration until all is over."""
        left = sorted(operations, key=lambda operation: operation.at_step)
        decisions, until = [], 0
        while left or self.arrivals:
            until = max(until, self.step)
            due = [operation for operation in left if operation.at_step <= until]
            left = left[len(due) :]
            self.apply(due)
            decision = self.iterate()
            decisions.append(decision)
            if decision.action is Action.IDLE and not self.arrivals and left:
                until = left[0].at_step
        return decisions

    def apply(self, operations: Sequence[Arrival | Cancel]) -> None:
        """Arrivals, then cancels."""
        for operation in operations:
            if isinstance(operation, Arrival):
                slot = self.tracker.acquire()
                assert slot is not None
                self.arrivals[slot] = self.fresh[slot] = operation
                self.slot_of[operation.request_id] = slot
        for operation in operations:
            if isinstance(operation, Cancel) and operation.request_id in self.slot_of:
                self.cancelled.add(self.slot_of[operation.request_id])

    def iterate(self) -> StepDecision:
        """Boundary, decision, graph, recycling."""
        number, self.rows, self.ended = self.step, [], []
        self.boundary()
        decision = policy.decide(
            len(self.running), self.waiting, len(self.free), self.limits.window - self.launches, self.after_prefill,
            self.limits, self.settings.prefill_table,
        )  # fmt: skip
        claimed: list[Claimed] = []
        graph, members = None, ()
        if decision.action is Action.PREFILL:
            claimed, graph = self.prefill(decision.claim_count)
            members = tuple(claim.slot for claim in claimed)
        elif decision.action is Action.DECODE:
            members = tuple(sorted(self.running))
            graph = self.decode()
        elif decision.action is Action.RELAUNCH:
            self.launches = 0
            self.rows.append((Event.RELAUNCHED, -1, -1, -1, -1))
        for slot in self.ended:
            self.tracker.release(slot)
            del self.slot_of[self.arrivals.pop(slot).request_id]
            self.cancelled.discard(slot)
        return StepDecision(number, decision.action, decision.blocked, tuple(claimed), graph, members, tuple(self.rows))

    def boundary(self) -> None:
        """Rejects, then aborts, each in the order of slots."""
        queued = {prompt.slot for prompt in self.waiting}
        for slot in sorted(set(self.fresh) | (queued & self.cancelled)):
            arrival = self.arrivals[slot]
            if slot in self.cancelled:
                self.waiting = [prompt for prompt in self.waiting if prompt.slot != slot]
                self.end(Event.REJECT, slot, 0, SlotStatus.CANCELLED)
            else:
                prompt = Pending(arrival.request_id, slot, arrival.prompt_tokens, arrival.output_tokens_max)
                self.waiting = policy.arrival_order([*self.waiting, prompt])
        self.fresh = {}
        for slot in sorted(set(self.running) & self.cancelled):
            self.end(Event.ABORT, slot, self.running[slot].count, SlotStatus.CANCELLED)
            policy.return_blocks(self.free, self.running.pop(slot).blocks)

    def end(self, event: Event, slot: int, count: int, status: SlotStatus) -> None:
        """A request ends by a cancel."""
        request_id = self.arrivals[slot].request_id
        self.rows.append((Event.CANCEL_SEEN, slot, request_id, -1, status))
        self.rows.append((event, slot, request_id, count, status))
        self.ended.append(slot)

    def prefill(self, count: int) -> tuple[list[Claimed], policy.GraphShape]:
        """Pause, claim, prefill, first tokens, resume."""
        paused = [self.running[slot] for slot in sorted(self.running)]
        for one in paused:
            self.rows.append((Event.PAUSE, one.slot, one.arrival.request_id, one.count, 0))
        prompts, self.waiting = self.waiting[:count], self.waiting[count:]
        entered = []
        for prompt in prompts:
            need = policy.kv_blocks_needed(prompt.prompt_tokens, prompt.output_tokens_max, self.limits.block_tokens)
            entered.append(Running(self.arrivals[prompt.slot], prompt.slot, policy.take_blocks(self.free, need)))
            self.rows.append((Event.CLAIM, prompt.slot, prompt.request_id, 0, 0))
        longest = max(prompt.prompt_tokens for prompt in prompts)
        graph = self.settings.prefill_table.choose(count, longest)
        claimed = [Claimed(one.arrival.request_id, one.slot, tuple(one.blocks)) for one in entered]
        self.graph_rows()
        for one in entered:
            self.token(one, Event.FIRST_TOKEN, Event.FINISH_AT_PREFILL)
        for one in paused:
            self.rows.append((Event.RESUME, one.slot, one.arrival.request_id, one.count, 0))
        self.after_prefill = True
        return claimed, graph

    def decode(self) -> policy.GraphShape:
        """One token for each."""
        longest = max(one.arrival.prompt_tokens + one.count for one in self.running.values())
        graph = self.settings.decode_table.choose(len(self.running), longest)
        self.graph_rows()
        for slot in sorted(self.running):
            self.token(self.running[slot], Event.TOKEN, Event.FINISH)
        self.after_prefill = False
        return graph

    def graph_rows(self) -> None:
        """One graph is a step."""
        self.rows += [(Event.GRAPH_LAUNCHED, -1, -1, -1, -1), (Event.GRAPH_DONE, -1, -1, -1, -1)]
        self.step += 1
        self.launches += 1

    def token(self, one: Running, going_on: Event, last: Event) -> None:
        """One token more; perhaps the last."""
        one.count += 1
        arrival = one.arrival
        status = policy.end_status(
            one.count, arrival.eos_at, arrival.output_tokens_max, self.settings.output_capacity_tokens
        )
        self.rows.append((last if status else going_on, one.slot, arrival.request_id, one.count, status))
        if status:
            self.running.pop(one.slot, None)
            policy.return_blocks(self.free, one.blocks)
            self.ended.append(one.slot)
        else:
            self.running[one.slot] = one
