"""Verbs without a device: queue pairs of one process that copy memory when they are posted to, or when told to.

It has what blink/hw/verbs/binding.py asks of pyverbs. Statuses are those of ibv_wc_status.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from blink.hw.verbs.binding import Binding

ENUMS = SimpleNamespace(
    IBV_PORT_ACTIVE=4, IBV_LINK_LAYER_ETHERNET=2, IBV_QPT_RC=2, IBV_QPS_INIT=1, IBV_QPS_RTR=2, IBV_QPS_RTS=3,
    IBV_QP_STATE=1, IBV_QP_PKEY_INDEX=1 << 4, IBV_QP_PORT=1 << 5, IBV_QP_ACCESS_FLAGS=1 << 3, IBV_QP_AV=1 << 7,
    IBV_QP_PATH_MTU=1 << 8, IBV_QP_DEST_QPN=1 << 20, IBV_QP_RQ_PSN=1 << 12, IBV_QP_MAX_DEST_RD_ATOMIC=1 << 17,
    IBV_QP_MIN_RNR_TIMER=1 << 15, IBV_QP_TIMEOUT=1 << 9, IBV_QP_RETRY_CNT=1 << 10, IBV_QP_RNR_RETRY=1 << 11,
    IBV_QP_SQ_PSN=1 << 16, IBV_QP_MAX_QP_RD_ATOMIC=1 << 13, IBV_ACCESS_LOCAL_WRITE=1, IBV_ACCESS_REMOTE_WRITE=2,
    IBV_ACCESS_REMOTE_READ=4, IBV_ACCESS_REMOTE_ATOMIC=8, IBV_SEND_SIGNALED=2, IBV_SEND_INLINE=8, IBV_WR_RDMA_WRITE=0,
    IBV_WR_RDMA_READ=4, IBV_WR_ATOMIC_CMP_AND_SWP=5, IBV_WC_SUCCESS=0, IBV_WC_LOC_PROT_ERR=4, IBV_WC_WR_FLUSH_ERR=5,
    IBV_WC_REM_ACCESS_ERR=10, IBV_WC_RETRY_EXC_ERR=12, IBV_ATOMIC_NONE=0, IBV_ATOMIC_HCA=1, IBV_ATOMIC_GLOB=2,
)  # fmt: skip


class FakeWorld:
    """One adapter. With `held` nothing is done before `serve`. `overflowed` counts completions that found no room.

    `copy(target, source, size)` moves the bytes; `dma_buf_base` is where the only dma-buf stands in truth.
    """

    def __init__(self, *, held: bool = False) -> None:
        self.held, self.overflowed, self.post_calls = held, 0, 0
        self.regions: dict[int, MR] = {}
        self.pairs: dict[int, QP] = {}
        self.next_key, self.next_number = 100, 16
        self.joins, self.unreachable = 0, set[int]()  # which joins, counted from 0, find no way to the peer
        self.refuses_memory = False
        self.copy: Callable[[int, int, int], object] = ctypes.memmove
        self.dma_buf_base = 0

    def serve(self, most: int = 1 << 30) -> None:
        """Do what was posted, in the order of each queue pair."""
        for pair in list(self.pairs.values()):
            while pair.posted and most:
                pair.carry_out(pair.posted.popleft())
                most -= 1

    @property
    def binding(self) -> Binding:
        """In place of pyverbs."""
        classes: dict[str, Any] = {
            "Context": lambda name: SimpleNamespace(
                query_port=lambda port: SimpleNamespace(state=4, link_layer=2, gid_tbl_len=2, active_mtu=5, lid=0),
                query_device=lambda: SimpleNamespace(max_qp_rd_atom=16, atomic_caps=1, page_size_cap=0xFFFF_F000),
                query_gid=lambda port, index: SimpleNamespace(gid=f"0000:0000:0000:0000:0000:ffff:0a00:000{index}"),
                close=lambda: None,
            ),
            "get_device_list": lambda: [SimpleNamespace(name=b"fake0")],
            "PD": lambda context: SimpleNamespace(close=lambda: None),
            "MR": lambda domain, size, access, address: MR(self, size, access, address),
            "DmaBufMR": lambda domain, size, access, dmabuf, offset: MR(self, size, access, offset, self.dma_buf_base),
            "CQ": lambda context, entries: CQ(self, entries),
            "QP": lambda domain, wanted: QP(self, wanted),
            "QPCap": lambda **limits: SimpleNamespace(**limits),
            "QPInitAttr": lambda **wanted: SimpleNamespace(**wanted),
            "QPAttr": SimpleNamespace,
            "AHAttr": lambda **way: SimpleNamespace(**way),
            "GlobalRoute": lambda **route: SimpleNamespace(**route),
            "GID": lambda text: text,
            "SGE": lambda address, size, key: SimpleNamespace(address=address, size=size, key=key),
            "SendWR": SendWR,
        }
        return Binding(ENUMS, classes)


class MR:
    """Some registered memory; it begins at `base` + `address`."""

    def __init__(self, world: FakeWorld, size: int, access: int, address: int, base: int = 0) -> None:
        if world.refuses_memory:
            raise OSError("Failed to register a MR. Errno: 12, Cannot allocate memory")
        self._world, self.size, self.access, self.address, self.base = world, size, access, address, base
        world.next_key += 1
        self.lkey = self.rkey = world.next_key
        world.regions[self.rkey] = self

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes lie within."""
        return self.address <= address and address + size <= self.address + self.size

    def close(self) -> None:
        """Take the key back."""
        self._world.regions.pop(self.rkey, None)


class CQ:
    """A completion queue that drops, and counts, what it has no room for."""

    def __init__(self, world: FakeWorld, entries: int) -> None:
        self._world, self._entries = world, entries
        self.waiting: deque[Any] = deque()

    def add(self, number: int, status: int) -> None:
        """One more."""
        if len(self.waiting) >= self._entries:
            self._world.overflowed += 1
            return
        self.waiting.append(SimpleNamespace(wr_id=number, status=status, vendor_err=0))

    def poll(self, most: int) -> tuple[int, list[Any]]:
        """As pyverbs does."""
        found = [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]
        return len(found), found

    def close(self) -> None:
        """Nothing is left."""


class SendWR:
    """A work request; a chain by `next_wr`."""

    def __init__(self, wr_id: int, num_sge: int, sg: list[Any], opcode: int, send_flags: int) -> None:
        self.wr_id, self.element, self.opcode, self.send_flags = wr_id, sg[0], opcode, send_flags
        self.next_wr: SendWR | None = None
        self.inlined: bytes | None = None

    def set_wr_rdma(self, key: int, address: int) -> None:
        """Where to."""
        self.key, self.address = key, address

    def set_wr_atomic(self, key: int, address: int, expected: int, new: int) -> None:
        """Where, and what."""
        self.set_wr_rdma(key, address)
        self.expected, self.new = expected, new


class QP:
    """A queue pair; its peer is found by number."""

    def __init__(self, world: FakeWorld, wanted: Any) -> None:
        self._world, self._queue, self._limit = world, wanted.scq, wanted.cap.max_send_wr
        world.next_number += 1
        self.qp_num = world.next_number
        world.pairs[self.qp_num] = self
        self.posted: deque[SendWR] = deque()
        self.peer, self.is_broken = -1, False

    def modify(self, attributes: Any, mask: int) -> None:
        """Towards ready."""
        if mask & ENUMS.IBV_QP_DEST_QPN:
            joins, self._world.joins = self._world.joins, self._world.joins + 1
            if joins in self._world.unreachable:
                raise OSError("Failed to modify QP state to RTR. Errno: 110, Connection timed out")
            self.peer = attributes.dest_qp_num

    def post_send(self, first: SendWR) -> None:
        """A chain."""
        self._world.post_calls += 1
        request: SendWR | None = first
        while request is not None:
            if len(self.posted) >= self._limit:
                raise RuntimeError("the send queue is full")
            if request.send_flags & ENUMS.IBV_SEND_INLINE:
                request.inlined = ctypes.string_at(request.element.address, request.element.size)
            self.posted.append(request)
            request = request.next_wr
        if not self._world.held:
            self._world.serve()

    def carry_out(self, request: SendWR) -> None:
        """One request of the queue, with its completion."""
        status = ENUMS.IBV_WC_WR_FLUSH_ERR if self.is_broken else self._status(request)
        if status == ENUMS.IBV_WC_SUCCESS:
            self._move(request)
        if status or request.send_flags & ENUMS.IBV_SEND_SIGNALED:
            self._queue.add(request.wr_id, status)
        self.is_broken = self.is_broken or status != ENUMS.IBV_WC_SUCCESS

    def _status(self, request: SendWR) -> int:
        if self.peer not in self._world.pairs:
            return int(ENUMS.IBV_WC_RETRY_EXC_ERR)
        local = self._world.regions.get(request.element.key)
        if request.inlined is None and (
            local is None or not local.holds(request.element.address, request.element.size)
        ):
            return int(ENUMS.IBV_WC_LOC_PROT_ERR)
        region = self._world.regions.get(request.key)
        needed = {0: ENUMS.IBV_ACCESS_REMOTE_WRITE, 4: ENUMS.IBV_ACCESS_REMOTE_READ, 5: ENUMS.IBV_ACCESS_REMOTE_ATOMIC}
        good = region is not None and region.access & needed[request.opcode]
        if not good or region is None or not region.holds(request.address, request.element.size):
            return int(ENUMS.IBV_WC_REM_ACCESS_ERR)
        return int(ENUMS.IBV_WC_SUCCESS)

    def _move(self, request: SendWR) -> None:
        element = request.element
        there = self._world.regions[request.key].base + request.address
        if request.opcode == ENUMS.IBV_WR_RDMA_WRITE:
            data = request.inlined or ctypes.string_at(element.address, element.size)
            staged = ctypes.create_string_buffer(data, element.size)
            self._world.copy(there, ctypes.addressof(staged), element.size)
        elif request.opcode == ENUMS.IBV_WR_RDMA_READ:
            self._world.copy(element.address, there, element.size)
        else:
            word = ctypes.c_uint64.from_address(there)
            ctypes.c_uint64.from_address(element.address).value = word.value
            if word.value == request.expected:
                word.value = request.new

    def close(self) -> None:
        """What was posted and not done never is."""
        self._world.pairs.pop(self.qp_num, None)
        self.posted.clear()
