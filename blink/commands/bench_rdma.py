"""`blink bench rdma`: what verbs cost on a device, as a table and as profiles for the twin."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from blink.commands.verbs_options import add_device_options, device_choice
from blink.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from blink.hw.verbs.bench import Costs

ROUNDS_MAX = 1_000_000


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    rdma = kinds.add_parser(
        "rdma",
        help="one-sided verbs on an RDMA device",
        description="Measure latency by size, message rate, the READ of 64 KiB and the gain of a burst, through a loop "
        "within the adapter or, with --connect, to another host on which `blink bench rdma --listen` runs.",
    )
    add_device_options(rdma)
    side = rdma.add_mutually_exclusive_group()
    side.add_argument("--connect", metavar="HOST:PORT", help="measure to another host")
    side.add_argument("--listen", metavar="HOST:PORT", help="be that other host, until Ctrl-C")
    rdma.add_argument("--rounds", metavar="N", default="1000", help="of each measurement (default: 1000)")
    rdma.add_argument("--out", metavar="FILE", help="write a link profile for the twin")
    rdma.add_argument("--dpu-out", metavar="FILE", help="write a DPU profile with what a verb costs this processor")
    rdma.add_argument(
        "--base-link", metavar="NAME", default="separate-dpu", help="whose way from the client the link profile has"
    )
    rdma.add_argument(
        "--base-dpu", metavar="NAME", default="bluefield-3", help="what the DPU profile has from elsewhere"
    )
    rdma.add_argument("--json", metavar="FILE", help="write the rows to a file, too")
    rdma.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Measure, print, write. Nothing is written if a measurement fails."""
    from blink.hw.verbs.bench import measure, target
    from blink.hw.verbs.device import Device
    from blink.hw.verbs.failure import ConnectionFailedError
    from blink.hw.verbs.frames import parse_address
    from blink.perf.link import LinkProfile

    rounds = options.rounds
    if not rounds.isdecimal() or not 1 <= int(rounds) <= ROUNDS_MAX:
        raise InputError(f"--rounds: {rounds!r} is not allowed; allowed: a whole number from 1 to {ROUNDS_MAX}")
    base = LinkProfile.load(options.base_link)
    elsewhere = parse_address("--connect", options.connect) if options.connect else None
    listen = parse_address("--listen", options.listen) if options.listen else None
    with ExitStack() as stack:
        device = Device(device_choice(options))
        stack.callback(device.close)
        address = elsewhere or stack.enter_context(target(device, listen or ("127.0.0.1", 0)))
        if listen is not None:
            print(f"ready on {address[0]}:{address[1]}, device {device.name}", file=sys.stderr, flush=True)
            threading.Event().wait()
        try:
            costs = measure(device, address, int(rounds), _say())
        except ConnectionFailedError as error:
            raise InputError(str(error)) from None
    _show(costs, "to another host" if elsewhere else "through a loop within the adapter")
    _write(options, costs, base)
    return 0


def _say() -> Callable[[str], None]:
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _show(costs: Costs, way: str) -> None:
    from rich.console import Console
    from rich.table import Table

    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what")
    for name in ("n", "P50 us", "P99 us", "max us"):
        table.add_column(name, justify="right")
    for row in costs.rows:
        times = [f"{value / 1000:,.2f}" for value in (row.p50_ns, row.p99_ns, row.max_ns)]
        table.add_row(row.what, f"{row.count:,}", *times)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"device {costs.device}, {way}, {costs.rounds:,} rounds")
    console.print(table)
    console.print(
        f"8 bytes: {costs.write_rate_per_s:,.0f} WRITEs/s, {costs.read_rate_per_s:,.0f} READs/s; one way "
        f"{costs.latency_ns / 1000:,.2f} us and {costs.bandwidth_bytes_per_s / 1e6:,.0f} MB/s; a burst in one WRITE "
        f"{costs.burst_gain:.1f} times as fast as apart"
    )


def _write(options: argparse.Namespace, costs: Costs, base: object) -> None:
    from blink.hw.verbs.link_profile import dpu_toml, link_toml
    from blink.perf.dpu import DpuProfile
    from blink.perf.link import LinkProfile
    from blink.report.rundir import put, to_json

    assert isinstance(base, LinkProfile)
    if options.out:
        path = Path(options.out)
        text = link_toml(costs, base, path.stem)
        put(path, lambda part: part.write_text(text, encoding="utf-8"))
        LinkProfile.load(str(path))  # what the twin will read
    if options.dpu_out:
        DpuProfile.load(options.base_dpu)
        path = Path(options.dpu_out)
        dpu_text = dpu_toml(costs, options.base_dpu, path.stem)
        put(path, lambda part: part.write_text(dpu_text, encoding="utf-8"))
        DpuProfile.load(str(path))
    if options.json:
        rows = to_json({"device": costs.device, "rows": [row.to_json() for row in costs.rows]})
        put(Path(options.json), lambda part: part.write_text(rows, encoding="utf-8"))
