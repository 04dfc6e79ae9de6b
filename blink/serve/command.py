"""Puts a server together from its options, and runs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from blink.common.config import Scenario, load_scenario
from blink.common.errors import InputError
from blink.common.model_files import SMOLLM2
from blink.frontend.tokenizer import Tokenizer, open_tokenizer
from blink.serve.app import App
from blink.serve.backend import Backend
from blink.serve.failures import Failures
from blink.serve.log import Log
from blink.serve.options import Options
from blink.serve.server import listen, run
from blink.serve.service import Service, Terms
from blink.serve.session import Application, RecordingApp, ReplayingApp
from blink.serve.stub import StubText

if TYPE_CHECKING:
    from blink.hw.verbs.attach import Remote
    from blink.serve.telemetry import Spans


def serve(options: Options) -> int:
    """Serve until a signal; the exit code."""
    log = Log(as_json=options.log_json, requests=options.log_requests)
    scenario = scenario_of(options)
    model = engine_model(options, scenario)
    tokenizer = open_tokenizer(options.tokenizer or tokenizer_of(model))
    if options.save_tokenizer is not None:
        tokenizer.save_pretrained(options.save_tokenizer)
    failures = Failures(options.failure_rate, options.failure_kinds, scenario.seed)
    sock = listen(options.host, options.port)
    port = int(sock.getsockname()[1])
    backend = backend_of(options, scenario, model, tokenizer, log, port)
    complete = False
    spans = _spans(options)
    try:
        service = Service(
            backend, tokenizer, model_name(options, scenario), scenario.seed, terms_of(options), failures, log
        )
        if spans is not None:
            service.over = lambda response: spans.request(response, service.model)
        app, close = _wrapped(App(service, options.api_key), options)
        host = f"[{options.host}]" if ":" in options.host else options.host

        def ready() -> None:
            log.say(
                f"ready on http://{host}:{port}", model=service.model, backend=backend.name, tokenizer=tokenizer.name
            )

        complete = run(service, app, sock, ready, options.http)
        close()
    finally:
        backend.close(complete=complete)
        sock.close()
        if spans is not None:
            spans.close()
    return 0 if complete and not service.broken else 1


def _spans(options: Options) -> Spans | None:
    if not options.otel:
        return None
    from blink.serve.telemetry import Spans

    return Spans()


def _wrapped(app: Application, options: Options) -> tuple[Application, Callable[[], None]]:
    """The application, recorded or replayed, and what to call at its end."""
    if options.record is not None:
        recording = RecordingApp(app, options.record)
        return recording, recording.close
    if options.replay is not None:
        return ReplayingApp(app, options.replay, options.time_scale), lambda: None
    return app, lambda: None


def scenario_of(options: Options) -> Scenario:
    """The scenario with the command line's changes."""
    return load_scenario(options.scenario, options.all_overrides())


def engine_model(options: Options, scenario: Scenario) -> str:
    """The model that an engine computes, "" for a stub. Raises InputError if none is named."""
    if options.engine == "stub":
        return ""
    model = options.model or scenario.model.profile
    if not model:
        raise InputError("--engine torch: needs a model; name it with --model, or in the scenario's model.profile")
    return model


def tokenizer_of(model: str) -> str:
    """The tokenizer that goes with a model ("" for the stub) unless another is asked for. Raises InputError."""
    if model == SMOLLM2:
        return "smollm2"
    if not model:
        return "bytes"
    from blink.hw.engines.torch_engine import is_random

    if is_random(model):
        return "bytes"
    if (Path(model) / "tokenizer.json").is_file():
        return model
    raise InputError(f"--tokenizer: needed, for {model} has no tokenizer.json; allowed: a folder that has the model's")


def model_name(options: Options, scenario: Scenario) -> str:
    """The name that clients ask for."""
    return options.model or scenario.model.profile or scenario.name


def terms_of(options: Options) -> Terms:
    """What the server takes in."""
    return Terms(
        open_max=options.open_max,
        body_bytes_max=options.body_max,
        request_seconds_max=options.request_timeout,
        drain_seconds_max=options.drain,
    )


def backend_of(options: Options, scenario: Scenario, model: str, tokenizer: Tokenizer, log: Log, port: int) -> Backend:
    """The backend of the options. Raises InputError for what cannot run here."""
    if options.connect is not None:
        return _remote(options, options.connect, scenario, tokenizer, log)
    if options.ttft is not None and options.itl is not None:
        return _timed(options, scenario, tokenizer, options.ttft, options.itl)
    if options.backend == "sim":
        from blink.serve.simulated import SimulatedBackend

        text = StubText(scenario, tokenizer, scenario.seed)
        return SimulatedBackend(scenario, text, options.time_scale, options.trace, time.monotonic_ns)
    from blink.serve.attach import open_ring

    return open_ring(options, scenario, model, tokenizer, log, port)


def _remote(options: Options, remote: Remote, scenario: Scenario, tokenizer: Tokenizer, log: Log) -> Backend:
    from blink.serve.attach import frontend_maker
    from blink.serve.plan import plan_of
    from blink.serve.remote import RemoteBackend
    from blink.serve.remote_order import remote_order

    order = remote_order(
        "rdma", options.scenario, options.engine, options.model, options.seed, options.overrides, options.time_scale
    )
    plan = plan_of(order)
    return RemoteBackend(remote, order, plan, frontend_maker(order, plan, scenario, tokenizer), options.trace, log)


def _timed(options: Options, scenario: Scenario, tokenizer: Tokenizer, ttft: str, itl: str) -> Backend:
    from blink.serve.timed import Delay, TimedBackend

    if options.trace is not None:
        raise InputError("--trace: with --ttft and --itl there is no ring to trace")
    text = StubText(scenario, tokenizer, scenario.seed)
    delays = Delay.parse("--ttft", ttft), Delay.parse("--itl", itl)
    return TimedBackend(scenario, text, *delays, options.time_scale, time.monotonic_ns)
