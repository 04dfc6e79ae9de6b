"""What can go wrong with a connection, as types. After any of these the connection is of no use: reconnect (E2)."""

from __future__ import annotations

from typing import Any


class ConnectionFailedError(Exception):
    """The connection to the ring has failed. `what` was being done."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why = what, why


class PeerLostError(ConnectionFailedError):
    """The other side answers no more: the retries of the adapter are used up."""


class AccessError(ConnectionFailedError):
    """The other side refuses the key, the range or the kind of access."""


class LocalError(ConnectionFailedError):
    """This side's own memory, queue or length is wrong."""


class FlushedError(ConnectionFailedError):
    """The queue pair was in error already: whatever was posted after the first error comes back undone."""


class NoCompletionError(ConnectionFailedError):
    """Nothing came back within the stated bound, which is longer than all retries of the adapter together."""


class ControlLostError(ConnectionFailedError):
    """The connection by which both sides said hello has ended: the other side's process is gone, or has let go."""


_KINDS: dict[str, type[ConnectionFailedError]] = {
    "LOC_LEN_ERR": LocalError,
    "LOC_QP_OP_ERR": LocalError,
    "LOC_PROT_ERR": LocalError,
    "LOC_ACCESS_ERR": LocalError,
    "WR_FLUSH_ERR": FlushedError,
    "REM_INV_REQ_ERR": AccessError,
    "REM_ACCESS_ERR": AccessError,
    "REM_OP_ERR": AccessError,
    "RETRY_EXC_ERR": PeerLostError,
    "RNR_RETRY_EXC_ERR": PeerLostError,
    "REM_ABORT_ERR": PeerLostError,
    "RESP_TIMEOUT_ERR": PeerLostError,
}
"""By the names of ibv_wc_status, without their prefix."""


def failure_of(enums: Any, status: int, vendor: int, what: str) -> ConnectionFailedError:
    """The failure that a work completion's status (ibv_wc_status) stands for. `enums` are the binding's constants."""
    for name, kind in _KINDS.items():
        if getattr(enums, f"IBV_WC_{name}", None) == status:
            return kind(what, f"the completion says {name} (status {status}, vendor {vendor:#x})")
    return LocalError(what, f"the completion has status {status} (vendor {vendor:#x})")
