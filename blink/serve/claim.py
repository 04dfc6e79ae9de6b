"""One keeper a ring: a lock on a file beside the ring's socket, for as long as the keeper lives.

Without it, two keepers that load a model at the same time would take the socket from each other.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from blink.common.errors import InputError

WAIT_S = 15.0
"""For a keeper that is ending: one that gives a GPU back takes a moment."""
_LOOK_S = 0.05


class Claim:
    """The claim to the ring of a socket; `release` it. The kernel does if this process dies."""

    def __init__(self, ring: Path, wait_s: float = WAIT_S) -> None:
        """Raises InputError if another keeper keeps it for so long, or if there can be no file."""
        self._path = ring.with_name(f"{ring.name}.lock")
        due = time.monotonic() + wait_s
        try:
            while (fd := self._locked()) is None:
                if time.monotonic() > due:
                    raise InputError(
                        f"--ring {ring}: another keeper of this ring is starting or ending; try again in a moment"
                    )
                time.sleep(_LOOK_S)
        except OSError as error:
            raise InputError(f"--ring {ring}: {error.strerror or error}") from None
        self._fd = fd

    def _locked(self) -> int | None:
        """The file, locked; None if it is another's now."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current(fd):  # else whoever had it took it away in between
                return fd
        except BlockingIOError:
            pass
        os.close(fd)
        return None

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))  # noqa: PTH116
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Another keeper may come."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
