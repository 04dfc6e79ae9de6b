"""One ring of a native drill: its memory, its scheduler, its trace, and the frontend that serves it now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from blink.common.events import NOTHING, Event
from blink.common.layout import EPOCH_MODULUS, GENERATION_NONE, STATE_MASK
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.trace import Ints
from blink.hw.native.frontend_process import FrontendProcess
from blink.hw.native.instance import Instance
from blink.hw.native.library import address_of
from blink.hw.native.process import SchedulerProcess
from blink.hw.native.records import RecordReader
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import TakenRing


class Export(Protocol):
    """Another way from the frontend's process to a ring than the memory that it inherits."""

    @property
    def opener(self) -> Callable[[NativeSettings], TakenRing]:
        """What opens it there; it is pickled."""

    def drop(self) -> None:
        """The frontend is gone: from here on nothing of it arrives."""

    def close(self) -> None:
        """Nobody reaches the ring this way any more."""


@dataclass(slots=True)
class DrillRing:
    """The ring, all that stands around it, and how far its frontend is. `close` it."""

    instance: Instance
    scheduler: SchedulerProcess
    recorder: Recorder
    records: RecordReader
    trace: Path
    owners: dict[tuple[int, int], Request]  # (slot, generation) -> request, as the frontend posted it
    frontend: FrontendProcess | None = None
    standby: FrontendProcess | None = None
    restarting: tuple[int, int] | None = None  # t_ns and epoch of a restart whose WRITE may not have happened
    started: bool = False  # the frontend's epoch is in the ring
    ready: bool = False
    scheduler_dead: bool = False
    told: bool = False  # its frontend was told to leave
    export: Export | None = None
    last_word: tuple[str, dict[str, int]] | None = None  # of a frontend that has left: why, and its counts of slots

    @property
    def is_served(self) -> bool:
        """Whether a frontend serves it and its scheduler lives, as far as this process knows."""
        return self.ready and not self.scheduler_dead and self.last_word is None

    @property
    def busy_count(self) -> int:
        """Slots that are not empty, as they are in the ring now."""
        return int(np.count_nonzero(self.instance.read_status() & np.uint64(STATE_MASK)))

    # --- its trace ---

    def take_rows(self, requests: list[Request], count: int, columns: dict[str, Ints]) -> None:
        """Rows that the frontend sent for its part of the trace; `requests` by id."""
        stream = self.recorder.reader
        rows = stream.reserve(count)
        for name, values in columns.items():
            if name != "seq":
                stream.columns[name][rows] = values
        self._name_recycled(columns, rows)
        prompts = np.flatnonzero(columns["event"] == Event.PROMPT_POSTED)
        if not prompts.size:
            return
        lives = zip(*(columns[name][prompts].tolist() for name in ("slot", "generation", "request_id")), strict=True)
        for slot, generation, request_id in lives:
            self.owners[slot, generation] = requests[request_id]

    def _name_recycled(self, columns: dict[str, Ints], rows: slice) -> None:
        """A frontend that finds a damaged descriptor does not know whose it is; the host saw it posted."""
        ids = columns.get("request_id", np.array(NOTHING))
        for at in np.flatnonzero((columns["event"] == Event.RECYCLE) & (ids == NOTHING)).tolist():
            ended = (int(columns["generation"][at]) - 1) % GENERATION_NONE
            owner = self.owners.get((int(columns["slot"][at]), ended))
            if owner is not None:
                self.recorder.reader.columns["request_id"][rows.start + at] = owner.request_id

    def restarted(self) -> None:
        """The new epoch is in the ring: the trace says so, at the time before its WRITE."""
        assert self.restarting is not None
        t_ns, epoch = self.restarting
        self.recorder.reader.add(event=Event.RESTARTED, t_ns=t_ns, epoch=epoch % EPOCH_MODULUS)
        self.restarting, self.started = None, True

    # --- its scheduler ---

    def slow_down(self, factor: int) -> None:
        """Every graph takes so many times as long as in the settings; 1: as long."""
        durations = self.instance.settings.durations
        scaled = [factor * part.astype(np.uint64) for part in (durations.prefill_ns, durations.decode_ns)]
        self.instance.library.set_durations(self.instance.base, *(address_of(part) for part in scaled))

    def set_config(self, name: str, value: int) -> None:
        """A field that the scheduler reads at every step: the graph that never ends, the time limit."""
        offset = self.instance.library.dtypes["config"].fields[name][1]  # type: ignore[index]
        self.instance.block.view(offset, 8)[:] = value.to_bytes(8, "little")

    # --- its end ---

    def close_frontends(self) -> None:
        """End the one that serves and the one that stands by."""
        for process in (self.frontend, self.standby):
            if process is not None:
                process.close()
        self.frontend = self.standby = None

    def close(self) -> None:
        """End the scheduler and give the memory back."""
        if self.export is not None:
            self.export.close()
        self.scheduler.kill()
        self.instance.close()
