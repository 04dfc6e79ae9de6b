"""`blink run`: one scenario, simulated or served by the native scheduler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blink.commands.interrupt import stop_on_interrupt
from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.common.config.load import Override
    from blink.common.config.scenario import Scenario
    from blink.common.results import RunResult
    from blink.report.rundir import RunDir
    from blink.workload.requests import Requests

EXIT_INTERRUPTED = 130

_TIME_SCALE = (
    "every time of the trace is multiplied by X; with --backend native or cuda every time of the run is, and 0 is as "
    "fast as it goes"
)
TRACE_OPTIONS = {
    "dialect": ("NAME", "dialect of the trace (default: recognised by its columns)"),
    "limit": ("N", "use the first N requests of the trace"),
    "rate_scale": ("X", "requests arrive X times as often; pauses inside a session stay"),
    "time_scale": ("X", _TIME_SCALE),
}
BACKENDS = ("sim", "native", "cuda")
INGRESSES = ("copy", "mapped")
ENGINES = ("stub", "torch")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "run", help="simulate or serve a scenario", description="Run a scenario and print what came of it."
    )
    verb.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", help="scenario TOML file; --engine torch needs none: then the model "
        "answers prompts, those of --prompt or a dozen that come with this program, and the run is kept",
    )  # fmt: skip
    verb.add_argument(
        "--backend",
        choices=BACKENDS,
        default="sim",
        help="sim: simulate (the default); native: serve it in real time with the device scheduler, compiled for the "
        "host, in a process of its own; cuda: the same with the scheduler as a persistent kernel on an NVIDIA GPU",
    )
    verb.add_argument(
        "--ingress", choices=INGRESSES, help="with --backend cuda, how the frontend reaches the ring: copy, the copy "
        "engine into device memory (the default); mapped, pinned host memory that the GPU has mapped",
    )  # fmt: skip
    verb.add_argument(
        "--engine", choices=ENGINES, help="with --backend cuda: stub, tokens that anybody can compute, after the times "
        "of the twin (the default); torch, a model",
    )  # fmt: skip
    verb.add_argument(
        "--model", metavar="NAME", help="with --engine torch: smollm2-135m, a folder in Hugging Face's layout, a GGUF "
        "file, or a model profile, which gets random weights (default: the scenario's)",
    )  # fmt: skip
    verb.add_argument(
        "--prompt", metavar="TEXT", action="append", default=[],
        help="with --engine torch: serve this prompt in place of the scenario's load and print the answer (repeatable)",
    )  # fmt: skip
    verb.add_argument("--trace", metavar="FILE", help="requests from this trace, in place of the scenario's own")
    for name, (metavar, text) in TRACE_OPTIONS.items():
        verb.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    verb.add_argument("--seed", metavar="N", help="seed in place of the scenario's")
    verb.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override an option, such as limits.batch_max=64",
    )
    verb.add_argument("--calibration", metavar="DIR", help="use the profiles that `blink calibrate` wrote there")
    verb.add_argument("--out", metavar="DIR", help="keep summary, requests, scenario and trace in a new folder")
    verb.add_argument(
        "--strict", action="store_true", help="refuse results outside the range a profile was measured in"
    )
    verb.add_argument(
        "--json", action="store_true", help="print summary.json to standard output, and nothing else there"
    )
    verb.add_argument("--no-progress", action="store_true", help="no progress bar (there is none without a terminal)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Load, simulate, keep, print. 0: done; 130: stopped by Ctrl-C, partial results kept and printed."""
    from blink.common.config import load_scenario
    from blink.common.summary import summarize
    from blink.report.rundir import RunDir

    _check_gpu_options(options)
    if options.scenario is None:
        _prompts_instead(options)
    _check_trace_options(options)
    scenario = load_scenario(options.scenario, _overrides(options))
    if options.calibration:
        from blink.perf.calibration.profiles import overrides

        profiles = overrides(Path(options.calibration), scenario.system.kind)
        scenario = load_scenario(options.scenario, [*profiles, *_overrides(options)])
    if options.trace is not None:
        scenario = _whole_trace(scenario, options.set)
    folder = RunDir.prepare(options.out) if options.out else None
    try:
        backend = _backend(options, scenario)
        result = _run(scenario, folder, backend, show_progress=not options.no_progress)
        if options.strict:
            _refuse_out_of_range(result, folder)
        answers = list(zip(options.prompt, getattr(backend, "texts", ()), strict=False))
        if folder and answers:
            folder.write_answers(answers)
        summary = folder.write(result) if folder else summarize(result)
    except BaseException:
        if folder:
            folder.discard()
        raise
    _print(summary, answers, folder, as_json=options.json)
    return EXIT_INTERRUPTED if result.partial else 0


def _prompts_instead(options: argparse.Namespace) -> None:
    """Without a SCENARIO a model answers prompts, and the run is kept in a new folder of `out`."""
    from blink.hw.prompts import SCENARIO, default_prompts, model_override

    if options.engine != "torch":
        raise InputError("SCENARIO is missing; allowed: a scenario file, or none with --backend cuda --engine torch")
    if options.trace is not None:
        raise InputError("--trace: needs a SCENARIO; allowed: without one, --prompt")
    options.scenario = str(SCENARIO)
    options.prompt = options.prompt or default_prompts()
    given = [model_override(options.model)] if options.model else []
    options.set = [*given, f"workload.requests={len(options.prompt)}", *options.set]
    if options.out is None:
        name = Path(options.model).name if options.model else "prompts"
        options.out = str(next(path for path in _numbered(Path("out") / name) if not path.exists()))


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in count(2))


def _check_gpu_options(options: argparse.Namespace) -> None:
    """What only a GPU can do needs --backend cuda, and what only a model can do needs --engine torch."""
    for name, says in (("ingress", "says how a GPU is reached"), ("engine", "says what runs on a GPU")):
        if getattr(options, name) and options.backend != "cuda":
            raise InputError(f"--{name}: {says}; allowed: with --backend cuda, not {options.backend}")
    for name in ("model", "prompt"):
        if getattr(options, name) and options.engine != "torch":
            raise InputError(f"--{name}: needs a model; allowed: with --engine torch")


def _overrides(options: argparse.Namespace) -> list[Override]:
    from blink.common.config.toml import inline

    overrides: list[Override] = []
    if options.trace is not None:
        overrides.append(("--trace", f"workload.trace={inline({'file': options.trace})}"))
    for name in _trace_options(options):
        value = getattr(options, name)
        if value is not None:
            overrides.append((f"--{name.replace('_', '-')}", f"workload.trace.{name}={value}"))
    if options.seed is not None:
        overrides.append(("--seed", f"seed={options.seed}"))
    return [*overrides, *options.set]


def _whole_trace(scenario: Scenario, overrides: list[str]) -> Scenario:
    """A trace of the command line replaces the scenario's load: the bounds of that load do not cut the trace."""
    bounds = [name for name in ("requests", "duration_s") if not any(f"workload.{name}" in text for text in overrides)]
    workload = scenario.workload.model_copy(update=dict.fromkeys(bounds))
    return scenario.model_copy(update={"workload": workload})


def _check_trace_options(options: argparse.Namespace) -> None:
    """An option about the trace needs a trace: say so, rather than that a field of the scenario is missing."""
    from blink.common.config.load import read_toml

    given = [f"--{name.replace('_', '-')}" for name in _trace_options(options) if getattr(options, name) is not None]
    if not given or options.trace is not None or any(text.startswith("workload") for text in options.set):
        return
    workload = read_toml(Path(options.scenario)).get("workload", {})
    if isinstance(workload, dict) and "trace" not in workload:
        raise InputError(f"{given[0]}: {options.scenario} has no trace: give --trace FILE as well")


def _trace_options(options: argparse.Namespace) -> list[str]:
    """Options that change the scenario's trace; in real time the scale is the run's, not the trace's."""
    return [name for name in TRACE_OPTIONS if name != "time_scale" or options.backend == "sim"]


class _Backend(Protocol):
    def __call__(
        self,
        scenario: Scenario,
        requests: Requests,
        *,
        trace_path: Path | None,
        progress: Callable[[int, int, int], None] | None,
        stop: Callable[[], bool] | None,
    ) -> RunResult: ...


def _backend(options: argparse.Namespace, scenario: Scenario) -> _Backend:
    if options.backend == "sim":
        from blink.sim.run import simulate

        return simulate
    if options.backend == "cuda":
        from blink.hw.cuda.ports import Ingress
        from blink.hw.cuda.run import serve as serve_on_gpu

        ingress = Ingress(options.ingress or Ingress.COPY)
        if options.engine == "torch":
            from blink.hw.cuda.model_run import ModelRun

            model = options.model or scenario.model.hf_config or scenario.model.profile or ""
            return ModelRun(model, ingress, _time_scale(options.time_scale), options.prompt)
        return partial(serve_on_gpu, time_scale=_time_scale(options.time_scale), ingress=ingress)
    from blink.hw.native.run import serve

    return partial(serve, time_scale=_time_scale(options.time_scale))


def _time_scale(text: str | None) -> float:
    try:
        scale = 1.0 if text is None else float(text)
    except ValueError:
        scale = -1.0
    if not 0 <= scale < float("inf"):
        raise InputError(f"--time-scale: {text!r} is not allowed; allowed: a number from 0 (as fast as it goes)")
    return scale


def _run(scenario: Scenario, folder: RunDir | None, backend: _Backend, show_progress: bool) -> RunResult:
    from blink.report.progress import progress_bar
    from blink.workload.build import build_load

    scenario, requests = build_load(scenario)
    trace_path = folder.trace_path(scenario.trace.format) if folder else None
    with progress_bar(scenario.name, show_progress) as progress, stop_on_interrupt() as stop:
        return backend(scenario, requests, trace_path=trace_path, progress=progress, stop=stop.asked)


def _refuse_out_of_range(result: RunResult, folder: RunDir | None) -> None:
    from blink.common.ranges import RANGE_NOTE

    outside = [note for note in result.notes if note.startswith(RANGE_NOTE)]
    if not outside:
        return
    if folder:
        folder.remove_trace()
    more = f" (and {len(outside) - 1} more)" if len(outside) > 1 else ""
    raise InputError(f"--strict: {outside[0]}{more}")


def _print(
    summary: dict[str, object], answers: Sequence[tuple[str, str]], folder: RunDir | None, as_json: bool
) -> None:
    from rich.console import Console

    from blink.report.rundir import to_json
    from blink.report.table import print_table

    if as_json:
        sys.stdout.write(to_json(summary))
        return
    print_table(summary, Console(file=sys.stdout, soft_wrap=False))
    for prompt, answer in answers:
        print(f"\n> {prompt}\n{answer.strip()}")
    if answers:
        print()
    if folder:
        print(f"Kept in {folder.path}")
