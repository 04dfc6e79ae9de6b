"""CRC-32C (Castagnoli), the checksum of a descriptor. RFC 3720, appendix B.4."""

from __future__ import annotations

_POLYNOMIAL = 0x82F6_3B78  # 0x1EDC6F41 with its bits reversed


def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of `data` as an unsigned 32-bit number."""
    value = 0xFFFF_FFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFF_FFFF
