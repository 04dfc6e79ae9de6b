"""One scheduler over one block of memory, seen from the host: its structures and its ring."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from blink.common.layout import DESCRIPTOR_ARRAY_BYTES, FRONTEND_EPOCH_OFFSET_BYTES, U64, read_word
from blink.common.states import SLOT_COUNT
from blink.frontend.operations import Region, Write
from blink.hw.native.library import Library, address_of
from blink.hw.native.memory import Memory, SharedBlock
from blink.hw.native.settings import NativeSettings
from blink.hw.native.tokens import Tokens
from blink.hw.ring import Records

Config = np.ndarray[Any, np.dtype[np.void]]
SALVAGE_RECORDS = 2 * SLOT_COUNT
"""More than a scheduler writes between two commits."""


def planned(library: Library, settings: NativeSettings) -> Config:
    """The scheduler's Config (kernels/include/blink/block.h) of these settings, with the offsets of its areas."""
    config = np.zeros(1, library.dtypes["config"])
    for name, value in settings.fields().items():
        config[name] = value
    library.plan(address_of(config))
    return config


def create(library: Library, settings: NativeSettings, config: Config, base: int) -> None:
    """A fresh ring and a fresh scheduler in zeroed host memory of `total_bytes` at an address."""
    ctypes.memmove(base, config.tobytes(), config.nbytes)
    shapes = np.array(settings.shapes(), np.uint32).tobytes()
    ctypes.memmove(base + int(config["shapes_offset"][0]), shapes, len(shapes))
    library.create(base)
    durations = settings.durations
    prefill_ns, decode_ns = durations.prefill_ns.astype(np.uint64), durations.decode_ns.astype(np.uint64)
    library.set_durations(base, address_of(prefill_ns), address_of(decode_ns))


def carry_out(library: Library, base: int, write: Write) -> None:
    """A WRITE into the ring of a block that starts at a host address. Status and descriptors are whole words."""
    if write.data is None:
        raise ValueError("a real ring needs the bytes of every WRITE")
    if write.region is Region.STATUS:
        function, count = library.write_status, write.size_bytes // 8
    elif write.region is Region.DESCRIPTOR:
        function, count = library.write_descriptors, write.size_bytes // 8
    elif write.region is Region.HEADER:
        library.set_epoch(base, int.from_bytes(write.data, "little"))
        return
    elif write.region is Region.PROMPT:
        function, count = library.write_prompt, write.size_bytes
    else:
        raise ValueError(f"the frontend does not write the {write.region.value} area")
    function(base, write.offset_bytes, bytes(write.data), count)


class Instance:
    """The block with a fresh ring and a fresh scheduler. `close` it; `run` or `step` make it go.

    Transport of the frontend, too: WRITEs and READs keep their order through release stores and acquire loads of the
    library, on x86 and on Arm.
    """

    backend = "native"

    def __init__(
        self,
        library: Library,
        settings: NativeSettings,
        *,
        copies: int = 1,
        memory: Callable[[int], Memory] = SharedBlock,
    ) -> None:
        """`memory` gives so many zero bytes: by default shared memory without a name."""
        self.library, self.settings = library, settings
        self.config = planned(library, settings)
        self.block = memory(copies * int(self.config["total_bytes"][0]))
        self.base = self.block.address
        create(library, settings, self.config, self.base)
        self._words = np.zeros(SLOT_COUNT, np.uint64)

    @classmethod
    def attach(cls, library: Library, settings: NativeSettings, block: SharedBlock) -> Self:
        """The instance in a block that another process has made: nothing in it changes."""
        instance = cls.__new__(cls)
        instance.library, instance.settings, instance.block, instance.base = library, settings, block, block.address
        dtype = library.dtypes["config"]
        instance.config = np.frombuffer(bytes(block.view(0, dtype.itemsize)), dtype)
        instance._words = np.zeros(SLOT_COUNT, np.uint64)
        return instance

    @property
    def shared(self) -> SharedBlock:
        """The block, for another process to map."""
        assert isinstance(self.block, SharedBlock)
        return self.block

    def close(self) -> None:
        """Give the memory back."""
        self.block.close()

    # --- structures ---

    def read(self, name: str, structure: str, count: int = 1) -> Records:
        """A copy of `count` structures that stand at an offset of the configuration."""
        dtype = self.library.dtypes[structure]
        view = self.block.view(int(self.config[name][0]), count * dtype.itemsize)
        return np.frombuffer(bytes(view), dtype)

    def state(self) -> dict[str, int]:
        """The scheduler's state by field, as it is now."""
        found = self.read("state_offset", "state")[0]
        return {name: int(found[name]) for name in found.dtype.names or ()}

    def words(self, name: str, offset_bytes: int, count: int) -> Tokens:
        """A copy of `count` u32 words, so far behind an offset of the configuration."""
        return np.frombuffer(bytes(self.block.view(int(self.config[name][0]) + offset_bytes, 4 * count)), np.uint32)

    @property
    def report_bytes(self) -> int:
        """Size of the report in front of its lists."""
        return self.library.dtypes["report"].itemsize

    def step(self, now_ns: int) -> int:
        """One iteration of the scheduler in this process, at a virtual time; the code of what it did."""
        return int(self.library.step(self.base, now_ns))

    def drain(self, most: int = 1 << 16) -> Records:
        """Trace records that are complete and were not drained before, at most `most`."""
        records = np.empty(most, self.library.dtypes["record"])
        return records[: self.library.drain(self.base, address_of(records), most)]

    def salvage(self) -> Records:
        """Records of a scheduler that was killed: complete, but no longer committed. Call after the last `drain`.

        A record stands before the store that it tells of, so whatever a frontend has seen of that store is here. Places
        that were reserved and never filled hold nothing, as the trace does not wrap in so short a life.
        """
        head, dtype = self.state()["trace_head"], self.library.dtypes["record"]
        left = min(SALVAGE_RECORDS, int(self.config["trace_capacity"][0]) - head)
        view = self.block.view(int(self.config["trace_offset"][0]) + head * dtype.itemsize, left * dtype.itemsize)
        records = np.frombuffer(bytes(view), dtype)
        return records[(records["t_ns"] > 0) & (records["what"] > 0)]

    # --- the frontend's operations ---

    def write(self, write: Write) -> None:
        """Carry out a WRITE."""
        carry_out(self.library, self.base, write)

    def read_status(self) -> U64:
        """A READ of the status array: (SLOT_COUNT,) control words. The array is overwritten by the next READ."""
        self.library.read_status(self.base, address_of(self._words))
        return self._words

    @property
    def header_epoch(self) -> int:
        """The frontend's epoch in the ring header."""
        offset = int(self.config["ring_header_offset"][0]) + FRONTEND_EPOCH_OFFSET_BYTES
        return read_word(self.block.view(offset, 8), 0)

    def heartbeat(self) -> int:
        """The scheduler's heartbeat in the ring header."""
        return int(self.library.heartbeat_ns(self.base))

    def read_descriptors(self) -> bytes:
        """A READ of the descriptor array."""
        return bytes(self.block.view(int(self.config["descriptors_offset"][0]), DESCRIPTOR_ARRAY_BYTES))

    def read_tokens(self, offset: np.ndarray[Any, np.dtype[np.int64]], count: np.ndarray[Any, Any]) -> Tokens:
        """READs of ranges of the output area, in tokens, one after another."""
        out = np.empty(int(count.sum()), np.uint32)
        self.library.read_tokens(self.base, offset.size, address_of(offset), address_of(count), address_of(out))
        return out

    def set_eos(self, slot: int, eos_at: int) -> None:
        """See Ring."""
        self.library.set_eos(self.base, slot, min(eos_at, (1 << 32) - 1))
