"""`blink backend`: a ring and its scheduler for a frontend on another host, reached by RDMA."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from blink.commands.serve import ENGINES, number
from blink.commands.verbs_options import add_device_options, device_choice
from blink.common.errors import InputError
from blink.common.optional import need

if TYPE_CHECKING:
    from blink.serve.remote_ring import Offer

BACKENDS = ("native", "cuda")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "backend",
        help="the ring's side of two hosts, joined by RDMA",
        description="Run a scheduler over a ring that a frontend on another host reaches by one-sided RDMA: there, "
        "`blink serve --transport rdma --connect HOST:PORT` with the same scenario. Ctrl-C or SIGTERM ends it.",
    )
    verb.add_argument("scenario", metavar="SCENARIO", help="scenario TOML file")
    verb.add_argument(
        "--backend",
        choices=BACKENDS,
        default="native",
        help="native: on this host's CPU (the default); cuda: on its GPU",
    )
    verb.add_argument(
        "--listen",
        metavar="HOST:PORT",
        required=True,
        help="where frontends say hello over TCP; port 0: any that is free",
    )
    verb.add_argument(
        "--memory",
        choices=("host", "dma-buf", "peermem"),
        default="host",
        help="of --backend cuda: where the ring stands, pinned host memory (the default) or the GPU's, and how the "
        "adapter reaches it there",
    )
    add_device_options(verb)
    verb.add_argument(
        "--engine", choices=("stub", "torch"), help="as for blink serve (default: torch with cuda, else stub)"
    )
    verb.add_argument("--model", metavar="NAME", help="of --engine torch, as for blink serve")
    verb.add_argument("--time-scale", metavar="X", default="1", help="as for blink serve (default: 1)")
    verb.add_argument("--seed", metavar="N", help="seed in place of the scenario's")
    verb.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override an option of the scenario"
    )
    verb.add_argument("--log-json", action="store_true", help="logs as lines of JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Keep the ring until a signal. 0; 1 if the scheduler failed."""
    need("msgspec", "blink backend", "serve")
    from blink.serve.remote_ring import offer

    return offer(_checked(options))


def _checked(options: argparse.Namespace) -> Offer:
    from blink.hw.verbs.frames import parse_address
    from blink.hw.verbs.gpu_block import GpuMemory
    from blink.serve.remote_order import remote_order
    from blink.serve.remote_ring import Offer

    if options.memory != "host" and options.backend != "cuda":
        raise InputError(f"--memory {options.memory}: allowed with --backend cuda")
    memory = None if options.memory == "host" else GpuMemory(options.memory)
    engine = options.engine or ENGINES[options.backend][0]
    order = remote_order(
        options.backend, options.scenario, engine, options.model, options.seed, tuple(options.set),
        float(number("time-scale", options.time_scale)),
    )  # fmt: skip
    address = parse_address("--listen", options.listen)
    return Offer(order, address, device_choice(options), memory, options.log_json)
