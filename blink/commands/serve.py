"""`blink serve`: the OpenAI-compatible endpoint over a scenario."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink.commands.verbs_options import add_device_options, device_choice
from blink.common.errors import InputError
from blink.common.optional import need

if TYPE_CHECKING:
    from blink.hw.verbs.attach import Remote
    from blink.serve.options import Options

BACKENDS = ("sim", "native", "cuda")
ENGINES = {"sim": ("stub",), "native": ("stub", "torch"), "cuda": ("torch", "stub")}
"""Of each backend, the default first."""
_NUMBERS: dict[str, tuple[str, float, float, float, str]] = {
    "port": ("N", 8000, 0, 65535, "port to listen on; 0: any that is free"),
    "time-scale": ("X", 1.0, 0, 1e6, "every time of the model is multiplied by X; 0: as fast as it goes"),
    "open-max": ("N", 5120, 1, 1 << 20, "choices that may be open at once; more are refused with 429"),
    "body-max": ("BYTES", 4 << 20, 1024, 1 << 30, "size of a request's body at most"),
    "request-timeout": ("S", 600.0, 0.001, 1e6, "time from a request's arrival after which it is aborted"),
    "drain": ("S", 30.0, 0, 1e6, "time that open requests get to end after SIGTERM"),
    "linger": ("S", 60.0, 0, 1e6, "native and cuda: how long the ring waits for another server after this one died"),
    "failure-rate": ("SHARE", 0.0, 0, 1, "share of requests that fail on purpose"),
}
"""Option -> metavar, default, least, most, help."""
_WHOLE = ("port", "open-max", "body-max")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "serve",
        help="an OpenAI-compatible endpoint over a scenario",
        description="Serve /v1/completions and /v1/chat/completions over a scenario in real time, and show the ring at "
        "/. Ctrl-C or SIGTERM drains and stops.",
    )
    verb.add_argument("scenario", metavar="SCENARIO", help="scenario TOML file")
    verb.add_argument(
        "--backend",
        choices=BACKENDS,
        default="sim",
        help="sim: the simulated system in real time (the default); native: the compiled scheduler, its stub engine; "
        "cuda: the scheduler on a GPU, and a model",
    )
    verb.add_argument(
        "--engine",
        choices=("stub", "torch"),
        help="stub: text that anybody can compute, after the times of the twin; torch: a model answers (default: torch "
        "with --backend cuda, else stub)",
    )
    verb.add_argument(
        "--http", choices=("uvicorn", "granian"), default="uvicorn", help="what carries HTTP (default: uvicorn)"
    )
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    for name, (metavar, default, _, _, text) in _NUMBERS.items():
        shown = f"{text} (default: {default:g})"
        verb.add_argument(f"--{name}", metavar=metavar, default=None, help=shown)
    verb.add_argument("--seed", metavar="N", help="seed in place of the scenario's")
    verb.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override an option of the scenario"
    )
    verb.add_argument(
        "--model",
        metavar="NAME",
        help="name of the model (default: its profile's); with --engine torch the "
        "model itself: smollm2-135m, a folder in Hugging Face's layout, a GGUF file, or a model profile, which gets "
        "random weights",
    )
    verb.add_argument(
        "--tokenizer", metavar="NAME|DIR", help="bytes, smollm2, or a folder (default: the model's, else bytes)"
    )
    verb.add_argument("--save-tokenizer", metavar="DIR", help="write the tokenizer's folder there, for clients")
    verb.add_argument("--api-key", metavar="KEY", help="ask for this key (default: the variable BLINK_API_KEY)")
    verb.add_argument("--ttft", metavar="DELAY", help="time to first token in place of the model's; see docs/serve.md")
    verb.add_argument("--itl", metavar="DELAY", help="time between tokens in place of the model's")
    verb.add_argument(
        "--failure-kinds", metavar="KINDS", default="500", help="which failures, with commas between them"
    )
    verb.add_argument("--record", metavar="FILE", help="write every request and its response to this file")
    verb.add_argument("--replay", metavar="FILE", help="answer from such a file, at its times")
    verb.add_argument("--trace", metavar="FILE", help="write the ring's trace (.ndjson or .parquet) there at the end")
    verb.add_argument(
        "--ring", metavar="PATH", help="native and cuda: socket of the ring's keeper (default: one per port)"
    )
    verb.add_argument(
        "--otel", action="store_true", help="send a span for every request by OTLP (needs the extra otel)"
    )
    verb.add_argument(
        "--transport", choices=("rdma",), help="reach a ring on another host, which `blink backend` keeps there"
    )
    verb.add_argument("--connect", metavar="HOST:PORT", help="of --transport rdma: where the ring's side listens")
    add_device_options(verb, "of --transport rdma: ")
    verb.add_argument("--log-json", action="store_true", help="logs as lines of JSON")
    verb.add_argument("--log-requests", action="store_true", help="a line for every request")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Serve until a signal. 0: nothing was left open; 1: the drain limit ended requests, or the backend failed."""
    for module in ("uvicorn", "uvloop", "httptools", "msgspec"):
        need(module, "blink serve", "serve")
    from blink.serve.command import serve

    return serve(_checked(options))


def _checked(options: argparse.Namespace) -> Options:
    from blink.serve.options import Options

    values: dict[str, Any] = {
        name.replace("-", "_"): number(name, getattr(options, name.replace("-", "_"))) for name in _NUMBERS
    }
    if (options.ttft is None) != (options.itl is None):
        raise InputError("--ttft and --itl: give both, or neither")
    if options.record and options.replay:
        raise InputError("--record and --replay: give one of them")
    engines = ENGINES[options.backend] if options.transport is None else ("stub", "torch")
    engine = options.engine or engines[0]
    if engine not in engines:
        raise InputError(f"--engine {engine}: allowed with --backend native or cuda, not {options.backend}")
    if engine == "torch" and options.ttft is not None:
        raise InputError("--ttft and --itl: a model takes the time that it takes; allowed: with --engine stub")
    connect = _remote(options)
    return Options(
        **values,
        connect=connect,
        scenario=options.scenario,
        backend=options.backend,
        engine=engine,
        host=options.host,
        http=options.http,
        seed=options.seed,
        overrides=tuple(options.set),
        model=options.model,
        tokenizer=options.tokenizer,
        save_tokenizer=Path(options.save_tokenizer) if options.save_tokenizer else None,
        api_key=options.api_key or os.environ.get("BLINK_API_KEY") or None,
        ttft=options.ttft,
        itl=options.itl,
        failure_kinds=tuple(options.failure_kinds.split(",")),
        record=Path(options.record) if options.record else None,
        replay=Path(options.replay) if options.replay else None,
        trace=Path(options.trace) if options.trace else None,
        ring=Path(options.ring) if options.ring else None,
        otel=options.otel,
        log_json=options.log_json,
        log_requests=options.log_requests,
    )


def _remote(options: argparse.Namespace) -> Remote | None:
    """Where the ring is, if it is on another host. Raises InputError for options that do not go together."""
    if options.transport is None:
        for name in ("connect", "device", "gid_index"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')}: allowed with --transport rdma")
        return None
    if options.connect is None:
        raise InputError("--transport rdma: needs --connect HOST:PORT, where blink backend listens")
    if options.ttft is not None or options.ring is not None:
        other = "--ttft" if options.ttft is not None else "--ring"
        raise InputError(f"{other}: not allowed with --transport rdma, whose ring stands on another host")
    from blink.hw.verbs.attach import Remote
    from blink.hw.verbs.frames import parse_address

    return Remote(parse_address("--connect", options.connect), device_choice(options))


def number(name: str, text: str | None) -> float | int:
    """The value of one of the options with numbers. Raises InputError."""
    _, default, least, most, _ = _NUMBERS[name]
    if text is None:
        return default
    try:
        value = int(text) if name in _WHOLE else float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise InputError(f"--{name}: {text!r} is not allowed; allowed: {kind} from {least:g} to {most:g}")
    return value
