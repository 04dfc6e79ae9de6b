"""Submitting prompts: slots, space, descriptors and control words of a whole burst in a few WRITEs (T1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from blink.common.layout import (
    DESCRIPTOR_ARRAY_BYTES,
    DESCRIPTOR_STRIDE_BYTES,
    STATUS_ARRAY_BYTES,
    STATUS_STRIDE_BYTES,
    Ctl,
    Descriptor,
    pack_descriptor,
    write_word,
)
from blink.common.states import SlotState
from blink.frontend.operations import TOKEN_BYTES, Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.slot_tracker import SlotTracker


class Submission(NamedTuple):
    """A tokenized request that waits for a slot. `tokens` are u32 ids, or None where only the length matters."""

    request_id: int
    prompt_tokens: int
    output_tokens_max: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    tokens: bytes | None = None


class Burst(NamedTuple):
    """What one posting submits: the requests with their descriptors, and its WRITEs in posting order."""

    submitted: list[tuple[Submission, int, Descriptor]]  # request, slot, descriptor
    writes: list[Write]


class Submitter:
    """A queue of submissions and the postings that empty it, first come first served.

    The WRITEs of a burst are ordered: all prompts, all descriptors, all control words (T1 asks for that order on one
    reliable connection, for every slot of the burst). Prompts lie side by side in the prompt area and neighbouring
    slots share one WRITE of descriptors and one of status words. The latter covers the `pulse` words in between, which
    is allowed: the frontend owns those slots while they are empty, and the gpu writes `pulse` only in slots it owns.
    """

    def __init__(
        self, slots: SlotTracker, prompts: PromptArea, output_capacity: int, *, epoch: int = 0, burst_max: int = 64
    ) -> None:
        self._slots = slots
        self._prompts = prompts
        self._output_capacity = output_capacity
        self._epoch = epoch
        self._burst_max = burst_max
        self._queue: deque[Submission] = deque()
        # Staging for submission alone; retrieval has buffers of its own.
        self._status_staging = bytearray(STATUS_ARRAY_BYTES)
        self._descriptor_staging = bytearray(DESCRIPTOR_ARRAY_BYTES)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, submission: Submission) -> None:
        """Queue a request behind all others."""
        self._queue.append(submission)

    def withdraw(self, request_id: int) -> bool:
        """Drop a request that still waits; False if it is not (or no longer) in the queue."""
        for submission in self._queue:
            if submission.request_id == request_id:
                self._queue.remove(submission)
                return True
        return False

    def post(self) -> Burst | None:
        """Give slots and space to as many requests from the head of the queue as there are; None if there are none."""
        submitted: list[tuple[Submission, int, Descriptor]] = []
        while self._queue and len(submitted) < self._burst_max and self._slots.free_count:
            head = self._queue[0]
            offset = self._prompts.allocate(head.prompt_tokens)
            if offset is None:
                break
            self._queue.popleft()
            slot = self._slots.acquire()
            assert slot is not None  # free_count said so
            submitted.append((head, slot, self._stage(head, slot, offset)))
        return Burst(submitted, list(self._writes(submitted))) if submitted else None

    def _stage(self, submission: Submission, slot: int, prompt_offset: int) -> Descriptor:
        generation = self._slots.generation(slot)
        descriptor = Descriptor(
            request_id=submission.request_id,
            generation=generation,
            epoch=self._epoch,
            prompt_offset=prompt_offset,
            prompt_tokens=submission.prompt_tokens,
            output_offset=slot * self._output_capacity,
            output_capacity=self._output_capacity,
            output_tokens_max=submission.output_tokens_max,
            temperature=submission.temperature,
            top_p=submission.top_p,
            top_k=submission.top_k,
            seed=submission.seed,
        )
        pack_descriptor(descriptor, self._descriptor_staging, slot * DESCRIPTOR_STRIDE_BYTES)
        ctl = Ctl(SlotState.PREFILL_PENDING, epoch=self._epoch % 256, generation=generation)
        write_word(self._status_staging, slot * STATUS_STRIDE_BYTES, ctl.pack())
        return descriptor

    def _writes(self, submitted: list[tuple[Submission, int, Descriptor]]) -> Iterator[Write]:
        yield from _prompt_writes(submitted)
        runs = list(_runs(sorted(slot for _, slot, _ in submitted)))
        for region, staging, stride in (
            (Region.DESCRIPTOR, self._descriptor_staging, DESCRIPTOR_STRIDE_BYTES),
            (Region.STATUS, self._status_staging, STATUS_STRIDE_BYTES),
        ):
            for first, count in runs:
                start, size = first * stride, count * stride
                if region is Region.STATUS:
                    size -= 8  # up to the last control word: its pulse need not be touched
                yield Write(region, start, size, bytes(staging[start : start + size]))


def _prompt_writes(submitted: list[tuple[Submission, int, Descriptor]]) -> Iterator[Write]:
    """One WRITE for each contiguous stretch of the prompt area."""
    stretch: list[tuple[Submission, int, Descriptor]] = []
    for item in submitted:
        if stretch and stretch[-1][2].prompt_offset + stretch[-1][0].prompt_tokens != item[2].prompt_offset:
            yield _stretch_write(stretch)
            stretch = []
        stretch.append(item)
    if stretch:
        yield _stretch_write(stretch)


def _stretch_write(stretch: list[tuple[Submission, int, Descriptor]]) -> Write:
    size = TOKEN_BYTES * sum(submission.prompt_tokens for submission, _, _ in stretch)
    parts = [submission.tokens for submission, _, _ in stretch if submission.tokens is not None]
    data = b"".join(parts) if len(parts) == len(stretch) else None
    return Write(Region.PROMPT, stretch[0][2].prompt_offset * TOKEN_BYTES, size, data)


def _runs(slots: list[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of each run of neighbouring slots; `slots` ascends."""
    first = count = 0
    for slot in slots:
        if count and slot == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = slot, 1
    if count:
        yield first, count
