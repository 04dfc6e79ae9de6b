"""Finds the keeper of a ring, or starts one, and makes the backend over it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.frontend.tokenizer import Tokenizer
from blink.frontend.tokenizer.plain import plain_tokens
from blink.hw.engines.torch_engine import is_random
from blink.hw.native.library import load_library
from blink.hw.native.memory import SharedBlock
from blink.hw.ring import Tokens
from blink.serve.keeper import Hello
from blink.serve.keeper_link import default_socket
from blink.serve.live import ModelFrontend, StubFrontend
from blink.serve.log import Log
from blink.serve.options import Options
from blink.serve.plan import Order, Plan, plan_of
from blink.serve.ring import MakeFrontend, RingBackend
from blink.serve.stub import StubText

START_LIMIT_S = 60.0
SAID_LINES_MAX = 1000


def open_ring(
    options: Options, scenario: Scenario, model: str, tokenizer: Tokenizer, log: Log, port: int
) -> RingBackend:
    """The backend over the ring that is there already, or over a new one. `model` "" is the stub. Raises InputError."""
    load_library()
    if options.trace is not None and not options.trace.absolute().parent.is_dir():
        raise InputError(f"--trace {options.trace}: there is no such folder")
    path = options.ring or default_socket(port)
    order = Order(
        socket=str(path), backend=options.backend, scenario=options.scenario,
        overrides=options.all_overrides(), time_scale=options.time_scale,
        linger_s=options.linger, trace=str(options.trace.absolute()) if options.trace else "", model=model,
    )  # fmt: skip
    plan = plan_of(order)
    make = frontend_maker(order, plan, scenario, tokenizer)
    end = connect(path)
    if end is None:
        _start(order, log)
        end = connect(path)
    if end is None:
        raise InputError(f"--ring {path}: the keeper of the ring did not answer")
    hello, block = greeted(end, path)
    if hello.digest != plan.digest(order):
        end.close()
        raise InputError(
            f"--ring {path}: a ring of another scenario lives there (process {hello.pid}); end it, or use another path"
        )
    if hello.life:
        log.say("took over a ring whose server had died", keeper=hello.pid, life=hello.life)
    return RingBackend(order, plan, end, hello, block, make)


def frontend_maker(order: Order, plan: Plan, scenario: Scenario, tokenizer: Tokenizer) -> MakeFrontend:
    """What makes the frontend. Raises InputError for a tokenizer that does not go with the model."""
    if plan.engine is None:
        text = StubText(scenario, tokenizer, scenario.seed)
        return lambda setup, instance, link, recorder: StubFrontend(setup, instance, link, recorder, text)
    if tokenizer.vocabulary_size > plan.vocabulary_count:
        raise InputError(
            f"--tokenizer {tokenizer.name}: has {tokenizer.vocabulary_size} tokens, but the model {order.model} only "
            f"{plan.vocabulary_count}; allowed: the model's own tokenizer"
        )
    seed, readable = scenario.seed, _readable(order.model, tokenizer)
    return lambda setup, instance, link, recorder: ModelFrontend(setup, instance, link, recorder, seed, readable)


def _readable(model: str, tokenizer: Tokenizer) -> Callable[[Tokens], list[int]]:
    """Tokens of random weights mean nothing: they become plain ones, which clients count as they were counted here.

    A real model may have places in its vocabulary that the tokenizer has no text for; they become its end token.
    """
    size = tokenizer.vocabulary_size
    if is_random(model):
        plain = np.array(plain_tokens(tokenizer), np.uint32)
        return lambda tokens: [int(token) for token in plain[tokens % plain.size]]
    silent = min(tokenizer.eos_tokens, default=0)
    return lambda tokens: [int(token) for token in np.where(tokens < size, tokens, silent)]


# --- the keeper ---


def connect(path: Path) -> socket.socket | None:
    """A connection to the keeper of a ring, None if there is no keeper. Raises InputError for another trouble."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        end.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        end.close()
        return None
    except OSError as error:
        end.close()
        raise InputError(f"--ring {path}: {error.strerror or error}") from None
    return end


def greeted(end: socket.socket, path: Path) -> tuple[Hello, SharedBlock]:
    """What a keeper says first, and its ring. Raises InputError if it turns this server away."""
    end.settimeout(START_LIMIT_S)
    try:
        data, fds, _, _ = socket.recv_fds(end, 4096, 1)
    except OSError:
        data, fds = b"", []
    end.settimeout(None)
    if not data or not fds:
        end.close()
        raise InputError(f"--ring {path}: another server uses this ring; end it, or use another path")
    hello = msgspec.msgpack.decode(data, type=Hello)
    return hello, SharedBlock(hello.size_bytes, fds[0])


def _start(order: Order, log: Log) -> None:
    """Start a keeper that outlives this process. Raises InputError with what it says if it cannot."""
    command = [sys.executable, "-m", "blink.serve.keeper", msgspec.json.encode(order).decode()]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as pipe:
        for _ in range(SAID_LINES_MAX):
            line = pipe.readline().decode(errors="replace")
            kind, _, sentence = line.strip().partition(" ")
            if kind == "up":
                return
            if kind == "-":
                log.say(sentence)
            elif kind == "wrong":
                raise InputError(sentence)
            elif kind == "failed" or not line:
                break
    raise InputError(f"the keeper of the ring did not start: {sentence or 'it said nothing'}")
