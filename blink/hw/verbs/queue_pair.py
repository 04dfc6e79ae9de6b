"""An RC queue pair and its way from creation to ready, on either side of a connection."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from blink.hw.verbs.device import PORT, Device

TIMEOUT_EXPONENT = 14
"""The adapter waits 4.096 us * 2**14 = 67 ms for an answer before it sends again."""
RETRIES = 6
"""How often it sends again. Never 7: Soft-RoCE takes that as for ever. A dead peer shows after about half a second."""
_RNR_TIMER = 12  # 0.64 ms; nobody receives here, so it never runs
_HOP_LIMIT = 64


@dataclass(frozen=True, slots=True)
class QueuePairAddress:
    """What the other side must know. `mtu` is ibv_mtu's number, `lid` of InfiniBand alone."""

    number: int
    first_psn: int
    gid: str
    lid: int
    mtu: int

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class QueuePair:
    """A reliable connection, at most `send_max` work requests in its send queue; `queue` gets their completions.

    The first packet sequence number is drawn anew for each: a packet of an old connection is none of this one.
    """

    def __init__(self, device: Device, queue: Any, send_max: int, inline_bytes: int) -> None:
        self._device = device
        binding, enums = device.binding, device.enums
        self.inline_bytes = inline_bytes
        try:
            self.raw = self._made(queue, send_max)
        except Exception:  # a device that carries less inside a work request carries nothing there
            if not inline_bytes:
                raise
            self.inline_bytes = 0
            self.raw = self._made(queue, send_max)
        self._psn = int.from_bytes(os.urandom(3), "little")
        attributes = binding.QPAttr()
        attributes.qp_state, attributes.pkey_index, attributes.port_num = enums.IBV_QPS_INIT, 0, PORT
        attributes.qp_access_flags = remote_access(enums)
        self.raw.modify(
            attributes, enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT | enums.IBV_QP_ACCESS_FLAGS
        )

    def _made(self, queue: Any, send_max: int) -> Any:
        binding, enums = self._device.binding, self._device.enums
        cap = binding.QPCap(
            max_send_wr=send_max, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=self.inline_bytes
        )
        wanted = binding.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=queue, rcq=queue, cap=cap, sq_sig_all=0)
        return binding.QP(self._device.domain, wanted)

    @property
    def address(self) -> QueuePairAddress:
        """For the other side."""
        device = self._device
        return QueuePairAddress(
            int(self.raw.qp_num), self._psn, device.gid, int(device.port.lid), int(device.port.active_mtu)
        )

    def connect(self, peer: QueuePairAddress) -> None:
        """Become ready to answer and to send. The peer's must have been created; it need not be ready to answer."""
        device, enums = self._device, self._device.enums
        attributes = device.binding.QPAttr()
        attributes.qp_state = enums.IBV_QPS_RTR
        attributes.path_mtu = min(peer.mtu, int(device.port.active_mtu))
        attributes.dest_qp_num, attributes.rq_psn = peer.number, peer.first_psn
        attributes.max_dest_rd_atomic, attributes.min_rnr_timer = device.read_depth, _RNR_TIMER
        attributes.ah_attr = self._way_to(peer)
        self.raw.modify(
            attributes,
            enums.IBV_QP_STATE | enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU | enums.IBV_QP_DEST_QPN | enums.IBV_QP_RQ_PSN
            | enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER,
        )  # fmt: skip
        attributes = device.binding.QPAttr()
        attributes.qp_state, attributes.timeout = enums.IBV_QPS_RTS, TIMEOUT_EXPONENT
        attributes.retry_cnt = attributes.rnr_retry = RETRIES
        attributes.sq_psn, attributes.max_rd_atomic = self._psn, device.read_depth
        self.raw.modify(
            attributes,
            enums.IBV_QP_STATE | enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT | enums.IBV_QP_RNR_RETRY
            | enums.IBV_QP_SQ_PSN | enums.IBV_QP_MAX_QP_RD_ATOMIC,
        )  # fmt: skip

    def _way_to(self, peer: QueuePairAddress) -> Any:
        binding = self._device.binding
        route = binding.GlobalRoute(dgid=binding.GID(peer.gid), sgid_index=self._device.gid_index, hop_limit=_HOP_LIMIT)
        is_global = int(self._device.is_ethernet)
        return binding.AHAttr(gr=route, is_global=is_global, dlid=peer.lid, port_num=PORT)

    def destroy(self) -> None:
        """Nothing of this connection takes effect any more, at either end, once this returns."""
        self.raw.close()


def remote_access(enums: Any, *, write: bool = True) -> int:
    """What a peer may do. Relaxed ordering is never asked for: T1 rests on WRITEs that arrive in order."""
    access: int = enums.IBV_ACCESS_REMOTE_READ
    if write:
        access |= enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE | enums.IBV_ACCESS_REMOTE_ATOMIC
    return access
