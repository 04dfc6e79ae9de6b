"""What a request has in common with others that came before: for routers that care."""

from __future__ import annotations

import numpy as np

from blink.common.results import I64
from blink.workload.requests import NO_PARENT, Requests


def affinities(load: Requests) -> I64:
    """A number a request, the same for those of one session: the index of the session's first request."""
    found = np.arange(len(load), dtype=np.int64)
    for index in np.flatnonzero(load.parent != NO_PARENT).tolist():
        found[index] = found[load.parent[index]]  # a parent comes before its children
    return found
