"""Units. Time is an integer number of nanoseconds everywhere; sizes are bytes; lengths are tokens."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def ns_from_s(seconds: float) -> int:
    """Nearest integer nanosecond of a time in seconds."""
    return round(seconds * NS_PER_S)


def transfer_ns(size_bytes: int, bandwidth_bytes_per_s: int) -> int:
    """Time to move `size_bytes` at a bandwidth, rounded up so that nothing is free."""
    return -(-size_bytes * NS_PER_S // bandwidth_bytes_per_s)
