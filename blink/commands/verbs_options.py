"""Options of every command that uses an RDMA device."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.hw.verbs.device import DeviceChoice


def add_device_options(verb: argparse.ArgumentParser, condition: str = "") -> None:
    """Which adapter, and which of its addresses. `condition` begins the help of options that need another one."""
    verb.add_argument("--device", metavar="NAME", help=f"{condition}RDMA device (default: the first)")
    verb.add_argument(
        "--gid-index",
        metavar="N",
        help=f"{condition}address of the device, by index (default: the first of RoCE v2 over IPv4, if it has one)",
    )


def device_choice(options: argparse.Namespace) -> DeviceChoice:
    """What was asked for. Raises InputError."""
    from blink.hw.verbs.device import DeviceChoice

    index = options.gid_index
    if index is not None and not index.isdecimal():
        raise InputError(f"--gid-index: {index!r} is not allowed; allowed: a whole number from 0")
    return DeviceChoice(options.device, None if index is None else int(index))
