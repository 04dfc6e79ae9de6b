"""The ring's memory: bit fields at their extremes, packing over any buffer, the checksum."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common import layout
from blink.common.crc32c import crc32c
from blink.common.layout import Ctl, Descriptor
from blink.common.states import SLOT_COUNT, SlotState, SlotStatus

BUFFERS: dict[str, Callable[[int], Any]] = {
    "bytearray": bytearray,
    "numpy": lambda size: np.zeros(size, np.uint8),
    "mmap": lambda size: mmap.mmap(-1, size),
    "memoryview": lambda size: memoryview(bytearray(size)),
}
DESCRIPTOR = Descriptor(
    request_id=2**64 - 1,
    generation=0xFF_FFFE,
    epoch=255,
    prompt_offset=2**32 - 1,
    prompt_tokens=1024,
    output_offset=77,
    output_capacity=4096,
    output_tokens_max=512,
    temperature=0.5,
    top_p=0.25,
    top_k=40,
    seed=2**32 - 1,
)


@pytest.fixture(params=BUFFERS)
def make_buffer(request: pytest.FixtureRequest) -> Callable[[int], Any]:
    return BUFFERS[request.param]


def test_crc32c_known_vectors() -> None:
    assert crc32c(b"123456789") == 0xE306_9283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A91_36AA  # RFC 3720, appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8_AB43


def test_sizes_are_those_of_the_specification() -> None:
    assert layout.STATUS_STRIDE_BYTES == 16
    assert layout.STATUS_ARRAY_BYTES == 64 * 1024
    assert layout.DESCRIPTOR_STRIDE_BYTES == 64
    assert layout.DESCRIPTOR_ARRAY_BYTES == 256 * 1024


@pytest.mark.parametrize(
    ("fields", "stride"),
    [
        (layout.STATUS_FIELDS, layout.STATUS_STRIDE_BYTES),
        (layout.DESCRIPTOR_FIELDS, layout.DESCRIPTOR_STRIDE_BYTES),
        (layout.HEADER_FIELDS, layout.HEADER_BYTES),
    ],
)
def test_structures_have_no_padding_and_natural_alignment(fields: tuple[layout.Field, ...], stride: int) -> None:
    end = 0
    for field in fields:
        assert field.offset == end, field.name
        assert field.offset % field.size_bytes == 0, field.name
        end += field.size_bytes
    assert end == stride


@pytest.mark.parametrize("name", ["state", "status", "epoch", "generation", "token_count"])
def test_each_bit_field_alone_at_its_extreme(name: str) -> None:
    field = next(field for field in layout.CTL_FIELDS if field.name == name)
    ctl = Ctl(**{"state": 0, name: field.mask})
    assert ctl.pack() == field.mask << field.shift
    assert Ctl.unpack(ctl.pack()) == ctl
    with pytest.raises(ValueError, match=f"{name} = {field.mask + 1} does not fit {field.bits} bits"):
        Ctl(**{"state": 0, name: field.mask + 1}).pack()
    with pytest.raises(ValueError, match=f"{name} = -1 does not fit"):
        Ctl(**{"state": 0, name: -1}).pack()


def test_all_fields_at_once_leave_only_the_reserved_bits() -> None:
    assert Ctl(15, 15, 255, 2**24 - 1, 2**20 - 1).pack() == 2**60 - 1


def test_bit_fields_must_fill_the_word() -> None:
    with pytest.raises(ValueError, match="bit fields cover 63 bits"):
        layout.bit_fields(("a", 60), ("b", 3))


@given(
    st.integers(0, 15), st.integers(0, 15), st.integers(0, 255), st.integers(0, 2**24 - 1), st.integers(0, 2**20 - 1)
)
def test_control_word_round_trip(state: int, status: int, epoch: int, generation: int, count: int) -> None:
    ctl = Ctl(state, status, epoch, generation, count)
    assert Ctl.unpack(ctl.pack()) == ctl


def test_descriptor_round_trip_in_every_buffer(make_buffer: Callable[[int], Any]) -> None:
    buffer = make_buffer(3 * layout.DESCRIPTOR_STRIDE_BYTES)
    layout.pack_descriptor(DESCRIPTOR, buffer, layout.DESCRIPTOR_STRIDE_BYTES)
    assert layout.unpack_descriptor(buffer, layout.DESCRIPTOR_STRIDE_BYTES) == DESCRIPTOR
    assert bytes(memoryview(buffer)[:64]) == bytes(64), "the neighbour before is untouched"
    assert bytes(memoryview(buffer)[128:]) == bytes(64), "the neighbour after is untouched"
    word = layout.read_word(buffer, layout.DESCRIPTOR_STRIDE_BYTES + layout.CANCEL_OFFSET_BYTES)
    assert layout.cancel_generation(word) == layout.GENERATION_NONE


def test_any_flipped_bit_of_a_descriptor_is_noticed() -> None:
    buffer = bytearray(layout.DESCRIPTOR_STRIDE_BYTES)
    layout.pack_descriptor(DESCRIPTOR, buffer)
    for bit in range(8 * (layout.CRC_COVERS_BYTES + 4)):
        buffer[bit // 8] ^= 1 << bit % 8
        assert not layout.descriptor_is_whole(buffer), f"bit {bit}"
        buffer[bit // 8] ^= 1 << bit % 8
    buffer[layout.CANCEL_OFFSET_BYTES] ^= 1  # the cancel word stands outside the checksum on purpose
    assert layout.unpack_descriptor(buffer) == DESCRIPTOR


def test_descriptor_fields_that_do_not_fit_are_refused() -> None:
    too_large = Descriptor(2**64, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(struct.error):
        layout.pack_descriptor(too_large, bytearray(64))


def test_word_views_write_through(make_buffer: Callable[[int], Any]) -> None:
    status = make_buffer(layout.STATUS_ARRAY_BYTES)
    words = layout.ctl_words(status)
    assert words.shape == (SLOT_COUNT,)
    word = Ctl(SlotState.DECODE_COMPLETED, SlotStatus.STOP, 3, 9, 17).pack()
    words[SLOT_COUNT - 1] = word
    assert layout.read_word(status, layout.STATUS_ARRAY_BYTES - 16) == word
    layout.write_word(status, 16, 5)
    assert words[1] == 5
    assert words[0] == 0

    descriptors = make_buffer(layout.DESCRIPTOR_ARRAY_BYTES)
    cancels = layout.cancel_words(descriptors)
    assert cancels.shape == (SLOT_COUNT,)
    cancels[2] = layout.pack_cancel(7, reason=3)
    assert layout.read_word(descriptors, 2 * 64 + layout.CANCEL_OFFSET_BYTES) == 7 | 3 << 24


def test_words_are_little_endian() -> None:
    buffer = bytearray(16)
    layout.write_word(buffer, 8, 0x0102_0304_0506_0708)
    assert bytes(buffer[8:]) == bytes([8, 7, 6, 5, 4, 3, 2, 1])


def test_generations_run_modulo_one_less_than_all_ones() -> None:
    assert layout.next_generation(0) == 1
    assert layout.next_generation(layout.GENERATION_NONE - 1) == 0


def test_header_words_hold_what_both_sides_compare() -> None:
    header = layout.header_words(boot_id=5, frontend_epoch=2)
    assert len(header) == layout.HEADER_BYTES
    assert header[:8] == b"BLINKRNG"
    assert struct.unpack_from("<Q", header, 0x10) == (layout.layout_hash(),)
    assert struct.unpack_from("<QQ", header, 0x18) == (5, 2)


def test_layout_hash_depends_on_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout.layout_hash()
    moved = (layout.Field("ctl", 8, "Q"), layout.Field("pulse", 0, "Q"))
    monkeypatch.setattr(layout, "STATUS_FIELDS", moved)
    assert layout.layout_hash() != before
