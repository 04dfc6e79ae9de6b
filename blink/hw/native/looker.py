"""Trace records of a block whose drain is another process's: a second reader, which takes none away."""

from __future__ import annotations

import numpy as np

from blink.hw.native.instance import Instance
from blink.hw.native.library import address_of
from blink.hw.ring import Records

_MOST = 1 << 12


class Looker:
    """Sees each record once, in order, from its making on. One that looks too rarely misses some."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._next = np.array([instance.state()["trace_head"]], np.uint64)
        self._records = np.empty(_MOST, instance.library.dtypes["record"])

    def look(self) -> Records:
        """Records since the last look, at most _MOST. They are overwritten by the next look."""
        library, base = self._instance.library, self._instance.base
        count = library.look(base, address_of(self._next), address_of(self._records), _MOST)
        return self._records[:count]
