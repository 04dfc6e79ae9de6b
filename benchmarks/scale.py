"""How large the benchmarks are: as documented, or with BLINK_BENCH_TINY=1 so small that CI runs them every time."""

from __future__ import annotations

import os

TINY = os.environ.get("BLINK_BENCH_TINY", "") not in ("", "0")


def scaled(full: int, tiny: int) -> int:
    """The size of a benchmark."""
    return tiny if TINY else full
