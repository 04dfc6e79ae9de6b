"""What a request has in common with others that came before: for routers that care."""

from __future__ import annotations

import numpy as np

from blink.common.results import I64
from blink.workload.requests import NO_PARENT, Requests


def affinities(load: Requests) -> I64:
    """A number a request: the same for prompts that begin with the same block, else for those of one session."""
    found = np.arange(len(load), dtype=np.int64)
    for index in np.flatnonzero(load.parent != NO_PARENT).tolist():
        found[index] = found[load.parent[index]]  # a parent comes before its children
    if load.prefixes is not None:
        known = [load.prefixes.affinity(index) for index in range(len(load))]
        # Behind the sessions' own numbers.
        found = np.array([own if k is None else k + len(load) for own, k in zip(found.tolist(), known, strict=True)])
    return found.astype(np.int64)
