"""The package `ibverbs` under the names of pyverbs: for interpreters that the distribution's pyverbs is not made for.

One wheel for every version of Python; it needs libibverbs of the distribution and no compiler. It does not say what
a device does about atomics and pages, so the probe does not know these two.
"""

from __future__ import annotations

import importlib
import ipaddress
from types import SimpleNamespace
from typing import Any

PORT_ACTIVE, LINK_ETHERNET = 4, 2
_QPS_INIT, _QPS_RTR, _QPS_RTS = 1, 2, 3
_MASKS = ("STATE", "PKEY_INDEX", "PORT", "ACCESS_FLAGS", "AV", "PATH_MTU", "DEST_QPN", "RQ_PSN", "MAX_DEST_RD_ATOMIC",
          "MIN_RNR_TIMER", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "SQ_PSN", "MAX_QP_RD_ATOMIC")  # fmt: skip


def enums(package: Any) -> Any:
    """Constants by the names of ibv_*, from the package's own enumerations. The masks say nothing here, and are 0."""
    found: dict[str, int] = {
        "IBV_PORT_ACTIVE": PORT_ACTIVE, "IBV_LINK_LAYER_ETHERNET": LINK_ETHERNET, "IBV_QPS_INIT": _QPS_INIT,
        "IBV_QPS_RTR": _QPS_RTR, "IBV_QPS_RTS": _QPS_RTS, "IBV_ATOMIC_NONE": 0, "IBV_ATOMIC_HCA": 1,
        "IBV_ATOMIC_GLOB": 2, "IBV_QPT_RC": int(package.QPType.RC),
    }  # fmt: skip
    for prefix, kind in (
        ("IBV_ACCESS_", package.AccessFlags),
        ("IBV_SEND_", package.SendFlags),
        ("IBV_WR_", package.WROpcode),
        ("IBV_WC_", package.WCStatus),
    ):
        found |= {prefix + name: int(value) for name, value in kind.__members__.items()}
    return SimpleNamespace(**found, **{f"IBV_QP_{name}": 0 for name in _MASKS})


def classes(package: Any) -> dict[str, Any]:
    """What blink.hw.verbs.binding.Binding holds, over the package. Raises ImportError without libibverbs."""
    return {
        "Context": lambda name: _Context(package, name),
        "get_device_list": lambda: [
            SimpleNamespace(name=_name(device).encode()) for device in package.get_device_list()
        ],
        "PD": lambda context: context.raw.alloc_pd(),
        "MR": lambda domain, size, access, address: domain.reg_mr(address, size, access),
        "DmaBufMR": lambda domain, size, access, dmabuf, offset: domain.reg_dmabuf_mr(
            offset, size, offset, dmabuf, access
        ),
        "CQ": lambda context, entries: _Queue(context.raw.create_cq(entries)),
        "QP": lambda domain, wanted: _Pair(package, domain, wanted),
        "QPCap": lambda **limits: SimpleNamespace(**limits),
        "QPInitAttr": lambda **wanted: SimpleNamespace(**wanted),
        "QPAttr": SimpleNamespace,
        "AHAttr": lambda **way: SimpleNamespace(**way),
        "GlobalRoute": lambda **route: SimpleNamespace(**route),
        "GID": lambda text: text,
        "SGE": package.SGE,
        "SendWR": lambda **request: _Request(package, **request),
    }


def load_package() -> Any:
    """The package. Raises ImportError."""
    return importlib.import_module("ibverbs")


def _name(device: Any) -> str:
    name = device.name
    return name.decode() if isinstance(name, bytes) else str(name)


class _Context:
    def __init__(self, package: Any, name: str) -> None:
        self.raw = next(device for device in package.get_device_list() if _name(device) == name).open()

    def query_port(self, port: int) -> Any:
        return self.raw.query_port(port)

    def query_device(self) -> Any:
        return SimpleNamespace(
            max_qp_rd_atom=int(self.raw.query_device().max_qp_rd_atom), atomic_caps=-1, page_size_cap=0
        )

    def query_gid(self, port: int, index: int) -> Any:
        return SimpleNamespace(gid=ipaddress.IPv6Address(bytes(self.raw.query_gid(port, index).raw)).exploded)

    def close(self) -> None:
        self.raw.close()


class _Queue:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def poll(self, most: int) -> tuple[int, list[Any]]:
        found = self.raw.poll(most)
        return len(found), found

    def close(self) -> None:
        self.raw.close()


class _Request:
    """A work request, in a chain by `next_wr`."""

    def __init__(self, package: Any, *, wr_id: int, num_sge: int, sg: list[Any], opcode: int, send_flags: int) -> None:
        self._package, self._fixed = package, {"wr_id": wr_id, "sg_list": sg, "opcode": opcode}
        self.send_flags = send_flags
        self.next_wr: _Request | None = None

    def set_wr_rdma(self, key: int, address: int) -> None:
        self._fixed |= {"rkey": key, "remote_addr": address}

    def set_wr_atomic(self, key: int, address: int, expected: int, new: int) -> None:
        self._fixed |= {"rkey": key, "remote_addr": address, "compare_add": expected, "swap": new}

    def made(self) -> Any:
        """As the package takes it."""
        return self._package.SendWR(send_flags=self.send_flags, **self._fixed)


class _Pair:
    def __init__(self, package: Any, domain: Any, wanted: Any) -> None:
        self._package, cap = package, wanted.cap
        self.raw = domain.create_qp(
            package.QPInitAttr(
                wanted.scq.raw, wanted.rcq.raw, max_send_wr=cap.max_send_wr, max_recv_wr=cap.max_recv_wr,
                max_inline_data=cap.max_inline_data,
            )
        )  # fmt: skip
        self.qp_num = int(self.raw.qp_num)

    def modify(self, wanted: Any, mask: int) -> None:
        if wanted.qp_state == _QPS_INIT:
            self.raw.to_init(wanted.port_num, wanted.qp_access_flags, wanted.pkey_index)
        elif wanted.qp_state == _QPS_RTR:
            way = wanted.ah_attr
            peer = self._package.QPInfo(
                wanted.dest_qp_num, wanted.rq_psn, way.dlid, ipaddress.IPv6Address(way.gr.dgid).packed, way.port_num,
                wanted.path_mtu,
            )  # fmt: skip
            self.raw.to_rtr(
                peer, way.gr.sgid_index, wanted.path_mtu, hop_limit=way.gr.hop_limit,
                min_rnr_timer=wanted.min_rnr_timer, max_dest_rd_atomic=wanted.max_dest_rd_atomic,
            )  # fmt: skip
        else:
            self.raw.to_rts(
                wanted.sq_psn, timeout=wanted.timeout, retry_cnt=wanted.retry_cnt, rnr_retry=wanted.rnr_retry,
                max_rd_atomic=wanted.max_rd_atomic,
            )  # fmt: skip

    def post_send(self, first: _Request) -> None:
        chain: list[Any] = []
        request: _Request | None = first
        while request is not None:
            chain.append(request.made())
            request = request.next_wr
        self.raw.post_send(chain)

    def close(self) -> None:
        self.raw.close()
