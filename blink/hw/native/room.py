"""One layout for many schedulers: settings whose areas have room for those of others, configurations within them."""

from __future__ import annotations

from dataclasses import replace

from blink.common.policy import GraphShape, GraphTable
from blink.hw.native.instance import Config, planned
from blink.hw.native.library import Library
from blink.hw.native.settings import Durations, NativeSettings

_LAYOUT = ("total_bytes", "blocks_per_place")
"""With the offsets, the fields that a configuration within another takes from it."""


def larger(one: NativeSettings, other: NativeSettings) -> NativeSettings:
    """Settings whose areas hold those of either. They are for a layout: their limits are not those of a scheduler."""
    limits = replace(
        one.limits,
        batch_max=max(one.limits.batch_max, other.limits.batch_max),
        prefill_batch_max=max(one.limits.prefill_batch_max, other.limits.prefill_batch_max),
        block_tokens=min(one.limits.block_tokens, other.limits.block_tokens),
    )
    prefill = _both(one.prefill_table, other.prefill_table)
    decode = _both(one.decode_table, other.decode_table)
    return replace(
        one,
        limits=limits,
        prefill_table=prefill,
        decode_table=decode,
        durations=Durations.none(prefill, decode),
        kv_block_count=max(one.kv_block_count, other.kv_block_count),
        prompt_area_tokens=max(one.prompt_area_tokens, other.prompt_area_tokens),
        output_capacity_tokens=max(one.output_capacity_tokens, other.output_capacity_tokens),
        trace_capacity=max(one.trace_capacity, other.trace_capacity),
    )


def _both(one: GraphTable, other: GraphTable) -> GraphTable:
    """The union of the axes, under a largest shape that holds every shape of either."""
    tables = (one, other)
    batches = tuple(sorted({*one.batches, *other.batches}))
    sequences = tuple(sorted({*one.sequences, *other.sequences}))
    largest = GraphShape(
        one.kind,
        max(batches[-1], *(table.fallback.batch for table in tables)),
        max(sequences[-1], *(table.fallback.sequence for table in tables)),
    )
    return GraphTable(one.kind, batches, sequences, max(one.tokens_max, other.tokens_max), largest)


def has_room(room: NativeSettings, settings: NativeSettings) -> bool:
    """Whether areas made for `room` hold those of `settings`."""
    both = larger(room, settings)
    return (both.fields(), both.shapes()) == (room.fields(), room.shapes())


def planned_within(library: Library, room: NativeSettings, settings: NativeSettings) -> Config:
    """The Config of `settings` in the layout of `room`. Raises ValueError if the areas are too small for them."""
    if not has_room(room, settings):
        raise ValueError("these settings need more room")
    config, layout = planned(library, settings), planned(library, room)
    for name in config.dtype.names or ():
        if name.endswith("_offset") or name in _LAYOUT:
            config[name] = layout[name]
    return config
