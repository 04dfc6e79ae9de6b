"""CRC-32C (Castagnoli), the checksum of a descriptor. RFC 3720, appendix B.4."""

from __future__ import annotations

from struct import iter_unpack

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


def _shifted(table: tuple[int, ...]) -> tuple[int, ...]:
    """The same bytes with one more zero byte behind them."""
    return tuple(value >> 8 ^ _TABLE[value & 0xFF] for value in table)


_TABLE_1 = _shifted(_TABLE)
_TABLE_2 = _shifted(_TABLE_1)
_TABLE_3 = _shifted(_TABLE_2)


def crc32c(data: bytes) -> int:
    """The CRC-32C of `data` as an unsigned 32-bit number, four bytes at a time."""
    value, whole = 0xFFFF_FFFF, len(data) & ~3
    for (word,) in iter_unpack("<I", data[:whole]):
        value ^= word
        value = (
            _TABLE_3[value & 0xFF] ^ _TABLE_2[value >> 8 & 0xFF] ^ _TABLE_1[value >> 16 & 0xFF] ^ _TABLE[value >> 24]
        )
    for byte in data[whole:]:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFF_FFFF
