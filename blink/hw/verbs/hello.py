"""What both sides say to each other before the first verb, and when one of them refuses. No I/O here.

The frontend begins: what it takes the ring to be, and the address of its queue pair. The ring's side answers with the
same, the keys of its memory, and the layout of what it keeps beside the ring; or with why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common.layout import layout_hash
from blink.common.states import SLOT_COUNT
from blink.hw.verbs.frames import Frame
from blink.hw.verbs.memory import RemoteRegion
from blink.hw.verbs.queue_pair import QueuePairAddress

VERSION = 1
NAME = "blink-rdma"
_TEXT_MAX = 256
_NUMBER_MAX = 1 << 64
_FIELDS_MAX = 256


class HelloError(Exception):
    """What was said is no hello, or one that this side refuses."""


class NotNowError(HelloError):
    """This side is refused for the moment: a later try may find it otherwise."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a frontend and a ring must agree on. `boot_id` "" of a frontend that has not seen the ring before.

    `settings` is a digest of what the scheduler was created with: areas, capacities, limits.
    """

    boot_id: str
    settings: str
    layout: str = f"{layout_hash():016x}"
    slots: tuple[int, int] = (0, SLOT_COUNT)  # first, count

    def plain(self) -> Frame:
        """For JSON."""
        return {
            "hello": NAME, "version": VERSION, "layout_hash": self.layout, "boot_id": self.boot_id,
            "slots": list(self.slots), "settings": self.settings,
        }  # fmt: skip


def identity_of(frame: Frame) -> Identity:
    """What the other side takes the ring to be. Raises HelloError if it speaks something else, or another version."""
    if frame.get("hello") != NAME:
        raise HelloError(f"hello: {_shown(frame.get('hello'))} is not {NAME!r}")
    version = frame.get("version")
    if version != VERSION:
        raise HelloError(f"version: the other side speaks {_shown(version)}, this one {VERSION}")
    slots = frame.get("slots")
    if not isinstance(slots, list) or len(slots) != 2:
        raise HelloError(f"slots: {_shown(slots)} is no [first, count]")
    return Identity(
        boot_id=_text(frame, "boot_id"),
        settings=_text(frame, "settings"),
        layout=_text(frame, "layout_hash"),
        slots=(_number("slots", slots[0]), _number("slots", slots[1])),
    )


def disagreement(ring: Identity, frontend: Identity) -> str | None:
    """Why a ring refuses a frontend, both values named; None if it does not."""
    pairs = [
        ("layout_hash", ring.layout, frontend.layout),
        ("settings", ring.settings, frontend.settings),
        ("slots", _range(ring.slots), _range(frontend.slots)),
    ]
    if frontend.boot_id:
        pairs.append(("boot_id", ring.boot_id, frontend.boot_id))
    for name, ours, theirs in pairs:
        if ours != theirs:
            return f"{name}: the ring has {ours}, the frontend {theirs}"
    return None


@dataclass(frozen=True, slots=True)
class RingHello:
    """The ring's answer. `life` counts the frontends before this one: 0 finds a fresh ring, any other recovers it (E2).

    `machine` tells whether both sides read the same clock. `structures` are the layouts of state and trace records.
    `record_offset_ns` is what the clock of trace records shows more than the monotonic one of the ring's side.
    """

    identity: Identity
    pair: QueuePairAddress
    regions: dict[str, RemoteRegion]
    structures: dict[str, np.dtype[np.void]]
    backend: str
    life: int
    machine: str
    trace_capacity: int
    record_offset_ns: int
    found: dict[str, str]  # by the probe of the ring's adapter

    def plain(self) -> Frame:
        """For JSON."""
        return {
            **self.identity.plain(),
            "pair": self.pair.plain(),
            "regions": {name: [one.address, one.size_bytes, one.key] for name, one in self.regions.items()},
            "structures": {name: plain_dtype(dtype) for name, dtype in self.structures.items()},
            "backend": self.backend,
            "life": self.life,
            "machine": self.machine,
            "trace_capacity": self.trace_capacity,
            "record_offset_ns": self.record_offset_ns,
            "found": self.found,
        }


def ring_hello_of(frame: Frame) -> RingHello:
    """The ring's answer. Raises HelloError with its reason if it refuses, or if it is none."""
    if "refused" in frame:
        kind = NotNowError if frame.get("again") is True else HelloError
        raise kind(_text(frame, "refused", 4 * _TEXT_MAX))
    identity = identity_of(frame)
    regions = {name: _region(name, value) for name, value in _object(frame, "regions").items()}
    structures = {name: _dtype(name, value) for name, value in _object(frame, "structures").items()}
    found = {name: str(value)[:_TEXT_MAX] for name, value in _object(frame, "found").items()}
    return RingHello(
        identity=identity,
        pair=pair_of(frame),
        regions=regions,
        structures=structures,
        backend=_text(frame, "backend"),
        life=_number("life", frame.get("life")),
        machine=_text(frame, "machine"),
        trace_capacity=_number("trace_capacity", frame.get("trace_capacity")),
        record_offset_ns=_signed("record_offset_ns", frame.get("record_offset_ns")),
        found=found,
    )


def pair_of(frame: Frame) -> QueuePairAddress:
    """The address of the other side's queue pair."""
    pair = _object(frame, "pair")
    numbers = {name: _number(f"pair.{name}", pair.get(name)) for name in ("number", "first_psn", "lid", "mtu")}
    return QueuePairAddress(gid=_text(pair, "gid"), **numbers)


def plain_dtype(dtype: np.dtype[np.void]) -> list[list[Any]]:
    """[name, offset, width] of each field; all are unsigned and little-endian."""
    assert dtype.fields is not None
    return [[name, int(dtype.fields[name][1]), int(dtype.fields[name][0].itemsize)] for name in dtype.names or ()]


def _dtype(name: str, value: Any) -> np.dtype[np.void]:
    if not isinstance(value, list) or not 0 < len(value) <= _FIELDS_MAX:
        raise HelloError(f"structures.{name}: {_shown(value)} is no list of fields")
    names: list[str] = []
    formats: list[str] = []
    offsets: list[int] = []
    end = 0
    for field in value:
        good = isinstance(field, list) and len(field) == 3 and isinstance(field[0], str) and field[2] in (4, 8)
        if not good:
            raise HelloError(f"structures.{name}: {_shown(field)} is no field")
        offset = _number(f"structures.{name}", field[1], 1 << 16)
        names.append(field[0][:_TEXT_MAX])
        formats.append(f"<u{field[2]}")
        offsets.append(offset)
        end = max(end, offset + field[2])
    try:
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})
    except (TypeError, ValueError) as error:
        raise HelloError(f"structures.{name}: {error}") from None


def _region(name: str, value: Any) -> RemoteRegion:
    if not isinstance(value, list) or len(value) != 3:
        raise HelloError(f"regions.{name}: {_shown(value)} is no [address, bytes, key]")
    address, size, key = (_number(f"regions.{name}", number) for number in value)
    return RemoteRegion(address, size, key)


def _object(frame: Frame, name: str) -> dict[str, Any]:
    value = frame.get(name)
    if not isinstance(value, dict) or len(value) > _FIELDS_MAX:
        raise HelloError(f"{name}: {_shown(value)} is no object")
    return value


def _text(frame: Frame, name: str, most: int = _TEXT_MAX) -> str:
    value = frame.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise HelloError(f"{name}: {_shown(value)} is no text of at most {most} characters")
    return value


def _number(name: str, value: Any, most: int = _NUMBER_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        raise HelloError(f"{name}: {_shown(value)} is no whole number from 0")
    return value


def _signed(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _NUMBER_MAX:
        raise HelloError(f"{name}: {_shown(value)} is no whole number")
    return value


def _range(slots: tuple[int, int]) -> str:
    return f"slots {slots[0]}..{slots[0] + slots[1] - 1}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
