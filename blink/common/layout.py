"""The memory of the ring: byte offsets and bit fields, with pack and unpack over any writable buffer.

Little-endian throughout, no implicit padding. The C/C++ header of `kernels/` is generated from the tables here
(`blink/common/header.py`), so that no second copy of an offset exists.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blink.common.crc32c import crc32c
from blink.common.states import SLOT_COUNT, SlotState, SlotStatus

LAYOUT_VERSION = 1
MAGIC = int.from_bytes(b"BLINKRNG", "little")

Buffer = Any  # bytearray, mmap, memoryview or a uint8 array: whatever struct can write into
U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class BitField:
    """A field of a 64-bit word: `bits` bits from bit `shift`."""

    name: str
    shift: int
    bits: int

    @property
    def mask(self) -> int:
        """The field's mask, before the shift."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a structure: a struct format character at a byte offset."""

    name: str
    offset: int
    code: str

    @property
    def size_bytes(self) -> int:
        """Width of the field."""
        return struct.calcsize("<" + self.code)


def bit_fields(*widths: tuple[str, int]) -> tuple[BitField, ...]:
    """Fields packed from the lowest bit up; they must fill the 64-bit word exactly."""
    fields, shift = [], 0
    for name, bits in widths:
        fields.append(BitField(name, shift, bits))
        shift += bits
    if shift != 64:
        raise ValueError(f"bit fields cover {shift} bits, a word has 64")
    return tuple(fields)


CTL_FIELDS = bit_fields(
    ("state", 4), ("status", 4), ("epoch", 8), ("generation", 24), ("token_count", 20), ("reserved", 4)
)
PULSE_FIELDS = bit_fields(("generation", 24), ("step", 40))
CANCEL_FIELDS = bit_fields(("generation", 24), ("reason", 8), ("reserved", 32))

STATUS_FIELDS = (Field("ctl", 0, "Q"), Field("pulse", 8, "Q"))
STATUS_STRIDE_BYTES = 16
STATUS_ARRAY_BYTES = SLOT_COUNT * STATUS_STRIDE_BYTES

DESCRIPTOR_FIELDS = (
    Field("request_id", 0x00, "Q"),
    Field("generation", 0x08, "I"),
    Field("epoch", 0x0C, "I"),
    Field("prompt_offset", 0x10, "I"),
    Field("prompt_tokens", 0x14, "I"),
    Field("output_offset", 0x18, "I"),
    Field("output_capacity", 0x1C, "I"),
    Field("output_tokens_max", 0x20, "I"),
    Field("temperature", 0x24, "f"),
    Field("top_p", 0x28, "f"),
    Field("top_k", 0x2C, "I"),
    Field("seed", 0x30, "I"),
    Field("crc32c", 0x34, "I"),
    Field("cancel", 0x38, "Q"),
)
DESCRIPTOR_STRIDE_BYTES = 64
DESCRIPTOR_ARRAY_BYTES = SLOT_COUNT * DESCRIPTOR_STRIDE_BYTES
CRC_COVERS_BYTES = 0x34
CANCEL_OFFSET_BYTES = 0x38

HEADER_FIELDS = (
    Field("magic", 0x00, "Q"),
    Field("layout_version", 0x08, "I"),
    Field("slot_count", 0x0C, "I"),
    Field("layout_hash", 0x10, "Q"),
    Field("boot_id", 0x18, "Q"),
    Field("frontend_epoch", 0x20, "Q"),
    Field("heartbeat", 0x28, "Q"),
    Field("stop", 0x30, "Q"),
    Field("reserved", 0x38, "Q"),
)
HEADER_BYTES = 64
_HEADER = {field.name: field.offset for field in HEADER_FIELDS}
FRONTEND_EPOCH_OFFSET_BYTES = _HEADER["frontend_epoch"]
HEARTBEAT_OFFSET_BYTES = _HEADER["heartbeat"]

GENERATION_NONE = 0xFF_FFFF
"""In a cancel word: no cancel. Never a real generation, so generations run modulo this number."""
EPOCH_MODULUS = 1 << 8
TOKEN_COUNT_MAX = (1 << 20) - 1
CANCEL_NONE = GENERATION_NONE

_CTL = {field.name: field for field in CTL_FIELDS}
STATE_MASK = _CTL["state"].mask
STATUS_SHIFT = _CTL["status"].shift
STATUS_MASK = _CTL["status"].mask
EPOCH_SHIFT = _CTL["epoch"].shift
EPOCH_MASK = _CTL["epoch"].mask
GENERATION_SHIFT = _CTL["generation"].shift
GENERATION_MASK = _CTL["generation"].mask
TOKEN_COUNT_SHIFT = _CTL["token_count"].shift
TOKEN_COUNT_MASK = _CTL["token_count"].mask
TOKEN_COUNT_ONE = 1 << TOKEN_COUNT_SHIFT


def next_generation(generation: int) -> int:
    """The generation after a recycle: exactly one more, modulo 2^24 - 1."""
    return (generation + 1) % GENERATION_NONE


class Ctl(NamedTuple):
    """The unpacked control word. `reserved` is zero in version 1."""

    state: int
    status: int = 0
    epoch: int = 0
    generation: int = 0
    token_count: int = 0

    def pack(self) -> int:
        """The 64-bit word. Raises ValueError if a field does not fit its bits."""
        return pack_word(CTL_FIELDS, (self.state, self.status, self.epoch, self.generation, self.token_count, 0))

    @classmethod
    def unpack(cls, word: int) -> Ctl:
        """The fields of a 64-bit word."""
        return cls(
            word & STATE_MASK,
            word >> STATUS_SHIFT & STATUS_MASK,
            word >> EPOCH_SHIFT & EPOCH_MASK,
            word >> GENERATION_SHIFT & GENERATION_MASK,
            word >> TOKEN_COUNT_SHIFT & TOKEN_COUNT_MASK,
        )


def pack_word(fields: Iterable[BitField], values: Iterable[int]) -> int:
    """A 64-bit word of its fields. Raises ValueError if one does not fit its bits."""
    word = 0
    for field, value in zip(fields, values, strict=True):
        if not 0 <= value <= field.mask:
            raise ValueError(f"{field.name} = {value} does not fit {field.bits} bits (0 to {field.mask})")
        word |= value << field.shift
    return word


def pack_pulse(generation: int, step: int) -> int:
    """The diagnostic word of a slot. `step` wraps at 2^40."""
    return pack_word(PULSE_FIELDS, (generation, step & PULSE_FIELDS[1].mask))


def pack_cancel(generation: int, reason: int = 0) -> int:
    """The cancel word that asks the gpu to end `generation` of a slot."""
    return pack_word(CANCEL_FIELDS, (generation, reason, 0))


def cancel_generation(word: int) -> int:
    """The generation that a cancel word names, GENERATION_NONE if none."""
    return word & CANCEL_FIELDS[0].mask


class Descriptor(NamedTuple):
    """What the gpu needs to know of one request; 64 bytes, written by the frontend in one WRITE while it owns the slot.

    Offsets and capacities are in tokens of the prompt and output areas.
    """

    request_id: int
    generation: int
    epoch: int
    prompt_offset: int
    prompt_tokens: int
    output_offset: int
    output_capacity: int
    output_tokens_max: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


_BODY = struct.Struct("<" + "".join(f.code for f in DESCRIPTOR_FIELDS[:-2]))
_TAIL = struct.Struct("<IQ")
_CRC = struct.Struct("<I")
_WORD = struct.Struct("<Q")


def pack_descriptor(descriptor: Descriptor, buffer: Buffer, offset_bytes: int = 0) -> None:
    """Write 64 bytes with their checksum and an empty cancel word into `buffer`.

    Raises struct.error if a field does not fit its width.
    """
    d = descriptor
    body = _BODY.pack(
        d.request_id,
        d.generation,
        d.epoch,
        d.prompt_offset,
        d.prompt_tokens,
        d.output_offset,
        d.output_capacity,
        d.output_tokens_max,
        d.temperature,
        d.top_p,
        d.top_k,
        d.seed,
    )
    view = memoryview(buffer).cast("B")
    view[offset_bytes : offset_bytes + CRC_COVERS_BYTES] = body
    _TAIL.pack_into(view, offset_bytes + CRC_COVERS_BYTES, crc32c(body), CANCEL_NONE)


def unpack_descriptor(buffer: Buffer, offset_bytes: int = 0) -> Descriptor:
    """The fields of the 64 bytes at `offset_bytes`, whatever their checksum says."""
    return Descriptor(*_BODY.unpack_from(buffer, offset_bytes))


def descriptor_is_whole(buffer: Buffer, offset_bytes: int = 0) -> bool:
    """Whether the checksum of the descriptor at `offset_bytes` matches its body."""
    body = bytes(memoryview(buffer).cast("B")[offset_bytes : offset_bytes + CRC_COVERS_BYTES])
    (crc,) = _CRC.unpack_from(buffer, offset_bytes + CRC_COVERS_BYTES)
    return bool(crc == crc32c(body))


def read_word(buffer: Buffer, offset_bytes: int) -> int:
    """An aligned little-endian 64-bit word of `buffer`."""
    (word,) = _WORD.unpack_from(buffer, offset_bytes)
    return int(word)


def write_word(buffer: Buffer, offset_bytes: int, word: int) -> None:
    """Store an aligned little-endian 64-bit word into `buffer`."""
    _WORD.pack_into(buffer, offset_bytes, word)


def ctl_words(status_array: Buffer) -> U64:
    """The control words of all slots as a (SLOT_COUNT,) uint64 view of the 64 KiB status array; writes go through."""
    return np.frombuffer(status_array, dtype="<u8")[0::2]


def cancel_words(descriptor_array: Buffer) -> U64:
    """The cancel words of all slots as a (SLOT_COUNT,) uint64 view of the 256 KiB descriptor array."""
    words = DESCRIPTOR_STRIDE_BYTES // 8
    return np.frombuffer(descriptor_array, dtype="<u8")[CANCEL_OFFSET_BYTES // 8 :: words]


def header_words(boot_id: int, frontend_epoch: int = 0) -> bytes:
    """The 64-byte ring header at start."""
    codes = "<" + "".join(f.code for f in HEADER_FIELDS)
    return struct.pack(codes, MAGIC, LAYOUT_VERSION, SLOT_COUNT, layout_hash(), boot_id, frontend_epoch, 0, 0, 0)


def canonical_layout() -> str:
    """The layout as text, one fact a line: what `layout_hash` is taken over."""
    lines = [f"version {LAYOUT_VERSION} slots {SLOT_COUNT} little-endian"]
    for name, bits in (("ctl", CTL_FIELDS), ("pulse", PULSE_FIELDS), ("cancel", CANCEL_FIELDS)):
        lines += [f"{name}.{field.name} {field.shift} {field.bits}" for field in bits]
    for name, fields in (
        ("status", STATUS_FIELDS),
        ("descriptor", DESCRIPTOR_FIELDS),
        ("header", HEADER_FIELDS),
    ):
        lines += [f"{name}.{field.name} {field.offset} {field.code}" for field in fields]
    lines += [f"state {state.value} {state.label}" for state in SlotState]
    lines += [f"status {status.value} {status.label}" for status in SlotStatus]
    return "\n".join(lines) + "\n"


def layout_hash() -> int:
    """A 64-bit hash of everything that both sides must agree on; it stands in the ring header and in every trace."""
    return int.from_bytes(hashlib.blake2b(canonical_layout().encode(), digest_size=8).digest(), "little")
