"""One-sided operations over a queue pair: WRITE, READ and compare-and-swap, posted in batches, retired in order."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from typing import Any

from blink.hw.verbs.device import Device
from blink.hw.verbs.failure import ConnectionFailedError, LocalError, NoCompletionError, failure_of
from blink.hw.verbs.memory import LocalMemory, RemoteRegion
from blink.hw.verbs.patience import Patience
from blink.hw.verbs.queue_pair import QueuePair, QueuePairAddress
from blink.hw.verbs.work import StagingRing, WorkPool

SEND_MAX = 256
"""Work requests under way at most: the size of send queue, completion queue and pool."""
SIGNAL_EVERY = 32
"""Of the requests of a long batch, every so many leaves a completion, so that the pool empties while the rest runs."""
INLINE_BYTES = 64
"""Up to so many bytes travel in the work request itself: a control word, a cancel word, a descriptor."""
WRITE_STAGING_BYTES = 4 << 20
READ_STAGING_BYTES = 4 << 20
APART_BYTES = 64 << 10
"""Behind the staging of READs, at the place `apart`: for one READ that is under way while others come and go."""
COMPLETION_LIMIT_S = 5.0
"""The stated bound: no operation waits longer. All retries of the adapter take half a second, up to four times that."""
_REAP_MAX = 32
_WORD_BYTES = 8


class Channel:
    """The posting end of one connection. `close` it.

    WRITEs take effect in the order of the calls: one queue pair, no relaxed ordering. Data of WRITEs and of READs are
    staged apart. Operations gather in a batch that `post` hands to the adapter at once. After a failure every call
    raises it again. May be used from two threads, one of which uses `reap_if_free` alone.
    """

    def __init__(
        self, device: Device, *, send_max: int = SEND_MAX, inline_bytes: int = INLINE_BYTES,
        write_staging_bytes: int = WRITE_STAGING_BYTES, read_staging_bytes: int = READ_STAGING_BYTES,
        limit_s: float = COMPLETION_LIMIT_S,
    ) -> None:  # fmt: skip
        binding, self._enums = device.binding, device.enums
        self._binding, self._limit_s = binding, limit_s
        self._queue = binding.CQ(device.context, send_max)
        self._pair = QueuePair(device, self._queue, send_max, inline_bytes)
        self._pool = WorkPool(send_max)
        # Behind the staging: what is sent inline, until it is posted, and the word that `look` brings.
        self._inline_at, self._look_at = write_staging_bytes, write_staging_bytes + inline_bytes * SIGNAL_EVERY
        self._out = LocalMemory(device, self._look_at + _WORD_BYTES)
        self._in = LocalMemory(device, read_staging_bytes + APART_BYTES)
        self._staging = StagingRing(write_staging_bytes)
        self._closed = False
        self._posted = 0  # requests that the adapter has
        self._batch: list[Any] = []
        self._bytes_out_max = write_staging_bytes // 4
        self._lock = threading.Lock()
        self._what = "connecting"
        self.failure: ConnectionFailedError | None = None
        self.completed_ns = time.monotonic_ns()  # when something last came back
        self.read_bytes_max = self.apart = read_staging_bytes

    @property
    def address(self) -> QueuePairAddress:
        """For the other side's hello."""
        return self._pair.address

    def connect(self, peer: QueuePairAddress) -> None:
        """Join the queue pair of the other side."""
        self._pair.connect(peer)
        self.completed_ns = time.monotonic_ns()

    @property
    def outstanding(self) -> int:
        """Work requests that are under way or in the batch."""
        return self._pool.outstanding

    # --- operations: each joins the batch ---

    def write(self, region: RemoteRegion, offset_bytes: int, data: bytes) -> None:
        """WRITE some bytes. Pieces of more than the staging holds go one after another, in order."""
        self._inside(region, offset_bytes, len(data), "WRITE")
        for start in range(0, len(data), self._bytes_out_max):
            self._write_piece(region, offset_bytes + start, data[start : start + self._bytes_out_max])

    def _write_piece(self, region: RemoteRegion, offset_bytes: int, data: bytes) -> None:
        number = self._take()
        if len(data) <= self._pair.inline_bytes:
            # The adapter's library copies it when the batch is posted; until then each of a batch has its own place.
            flags = self._enums.IBV_SEND_INLINE
            place = self._inline_at + self._pair.inline_bytes * len(self._batch)
        else:
            flags, place = 0, self._place(len(data), number)
        self._out.put(place, data)
        element = self._binding.SGE(self._out.address + place, len(data), self._out.key)
        request = self._request(number, self._enums.IBV_WR_RDMA_WRITE, element, flags)
        request.set_wr_rdma(region.key, region.address + offset_bytes)
        self._add(request)

    def _place(self, size_bytes: int, number: int) -> int:
        """In the staging of WRITEs; where it is full, completions are waited for."""
        while True:
            with self._lock:  # the other thread gives places back
                found, retired = self._staging.place(size_bytes, number), self._pool.retired
            if found is not None:
                return found
            if retired >= number:
                raise LocalError(self._what, "one request is larger than the staging")
            self.post()
            self._wait_past(retired)

    def read(self, region: RemoteRegion, offset_bytes: int, size_bytes: int, place: int) -> int:
        """READ some bytes to a place in the staging of READs; the number to `wait` for."""
        self._inside(region, offset_bytes, size_bytes, "READ")
        number = self._take()
        element = self._binding.SGE(self._in.address + place, size_bytes, self._in.key)
        request = self._request(number, self._enums.IBV_WR_RDMA_READ, element, 0)
        request.set_wr_rdma(region.key, region.address + offset_bytes)
        self._add(request)
        return number

    def compare_and_swap(self, region: RemoteRegion, offset_bytes: int, expected: int, new: int) -> int:
        """What an aligned 8-byte word was; it is `new` now if that is what was expected. Waits for it.

        Atomic against other verbs of the ring's adapter alone, so the protocol uses it nowhere.
        """
        self._inside(region, offset_bytes, 8, "compare-and-swap")
        if (region.address + offset_bytes) % 8:
            raise LocalError("compare-and-swap", f"the word at offset {offset_bytes} is not aligned to 8 bytes")
        number = self._take()
        element = self._binding.SGE(self._in.address, 8, self._in.key)
        request = self._request(number, self._enums.IBV_WR_ATOMIC_CMP_AND_SWP, element, 0)
        request.set_wr_atomic(region.key, region.address + offset_bytes, expected, new)
        self._add(request)
        self.wait(number)
        return int.from_bytes(self._in.get(0, 8), "little")

    def read_now(self, region: RemoteRegion, offset_bytes: int, size_bytes: int) -> bytes:
        """READ some bytes and wait for them."""
        parts = []
        for start in range(0, size_bytes, self.read_bytes_max):
            size = min(self.read_bytes_max, size_bytes - start)
            self.wait(self.read(region, offset_bytes + start, size, 0))
            parts.append(self._in.get(0, size))
        return b"".join(parts)

    def staged(self, place: int, size_bytes: int) -> bytes:
        """A copy of what READs brought."""
        return self._in.get(place, size_bytes)

    def _inside(self, region: RemoteRegion, offset_bytes: int, size_bytes: int, what: str) -> None:
        self._what = what
        if not 0 <= offset_bytes <= offset_bytes + size_bytes <= region.size_bytes:
            end = offset_bytes + size_bytes
            raise LocalError(what, f"bytes {offset_bytes}..{end} are not within the {region.size_bytes} of the region")

    def _request(self, number: int, opcode: int, element: Any, flags: int) -> Any:
        return self._binding.SendWR(wr_id=number, num_sge=1, sg=[element], opcode=opcode, send_flags=flags)

    # --- batches and completions ---

    def _take(self) -> int:
        """A number of the pool; where it is empty, the batch is posted and completions are waited for."""
        while True:
            self.check()
            with self._lock:  # the other thread takes numbers, too, and retires them
                if self._pool.free:
                    return self._pool.take()
                retired = self._pool.retired
            self.post()
            self._wait_past(retired)

    def _add(self, request: Any) -> None:
        self._batch.append(request)
        if len(self._batch) >= SIGNAL_EVERY:
            self.post()

    def post(self) -> None:
        """Hand the batch to the adapter in one call. Its last request leaves a completion, which retires them all."""
        batch = self._batch
        if not batch:
            return
        self._batch = []
        batch[-1].send_flags |= self._enums.IBV_SEND_SIGNALED
        for request, following in pairwise(batch):
            request.next_wr = following
        with self._lock:
            self.check()
            try:
                self._pair.raw.post_send(batch[0])
                self._posted += len(batch)
            except Exception as error:
                self.failure = LocalError(self._what, f"the adapter takes no work request ({error})")
                raise self.failure from None

    def reap(self) -> None:
        """Take what has completed, without waiting: at most a few entries. Raises the failure if there is one."""
        with self._lock:
            self._reap()
        self.check()

    def reap_if_free(self) -> None:
        """The same for the other thread: nothing if this one is at it, so that it never waits for that one's turn."""
        if self._lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self._lock.release()

    def _reap(self) -> None:
        if self._closed:
            return
        try:
            count, entries = self._queue.poll(_REAP_MAX)
        except Exception as error:  # of the adapter: it is gone, say
            self.fail(LocalError(self._what, f"the adapter gives no completions ({error})"))
            return
        for entry in entries if count > 0 else ():
            self.completed_ns = time.monotonic_ns()
            if entry.status != self._enums.IBV_WC_SUCCESS:
                # The first failure is the cause; those after it say that the queue was flushed.
                self.failure = self.failure or failure_of(self._enums, entry.status, entry.vendor_err, self._what)
            else:
                self._pool.retire(int(entry.wr_id))
        self._staging.release(self._pool.retired)

    def look(self, region: RemoteRegion) -> int | None:
        """For the other thread: READ a word, to see whether the peer answers; its number, None if this is not the time.

        It is not while a batch is made: requests are numbered in the order in which the adapter gets them.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._posted < self._pool.taken or not self._pool.free:
                return None
            number = self._pool.take()
            element = self._binding.SGE(self._out.address + self._look_at, _WORD_BYTES, self._out.key)
            request = self._request(number, self._enums.IBV_WR_RDMA_READ, element, self._enums.IBV_SEND_SIGNALED)
            request.set_wr_rdma(region.key, region.address)
            self._pair.raw.post_send(request)
            self._posted += 1
            return number
        except Exception as error:
            self.fail(LocalError("a look at the peer", str(error)))
            return None
        finally:
            self._lock.release()

    def give_up(self) -> None:
        """Nothing has come back for too long."""
        self.fail(NoCompletionError(self._what, f"nothing came back within {self._limit_s:g} s"))

    def check(self) -> None:
        """Raises the failure if there is one."""
        if self.failure is not None:
            raise self.failure

    def fail(self, failure: ConnectionFailedError) -> None:
        """Say from outside that the connection is of no use any more."""
        self.failure = self.failure or failure

    def wait(self, number: int) -> None:
        """Post the batch, and return once the request of this number is done. Raises what the completion says."""
        self.post()
        self._wait_past(number)

    def is_done(self, number: int) -> bool:
        """Whether the request of this number is done, without waiting. It must have been posted."""
        self.reap()
        return self._pool.retired > number

    def flush(self) -> None:
        """Everything that was asked for so far is done. The last request may leave no completion by itself: it does."""
        self.post()
        if self._pool.outstanding:
            self._wait_past(self._pool.taken - 1)

    def _wait_past(self, number: int) -> None:
        patience = Patience(self._limit_s)
        while True:
            is_last = patience.over()
            self.reap()
            if self._pool.retired > number:
                return
            if is_last:
                self.failure = NoCompletionError(self._what, f"nothing came back within {self._limit_s:g} s")
                raise self.failure
            os.sched_yield()

    def close(self) -> None:
        """Destroy the queue pair first: whatever was under way ends, here and at the other side."""
        self.fail(LocalError(self._what, "the connection is closed"))
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._pair.destroy()
            self._queue.close()
            self._out.close()
            self._in.close()
