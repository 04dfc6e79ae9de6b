"""`blink calibrate`: profiles of a machine from a measured programme, or from the log of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.common.config import Scenario
    from blink.perf.calibration.measurements import Measurements

MODEL, ENGINE_PROFILE = "llama-3-8b", "torch-paged"
LIMITS: dict[str, Any] = {
    "batch_max": 64, "prefill_batch_max": 4, "prefill_padding_tokens_max": 256, "context_tokens": 1536,
    "prompt_capacity_tokens": 1024, "output_capacity_tokens": 512, "prefill_batches": [1, 2, 4],
    "prefill_sequences": [64, 128, 192, 256, 384, 512, 768, 1024],
    "decode_batches": [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64], "decode_sequences": [1536],
}  # fmt: skip
"""What is captured and measured where no scenario says it."""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "calibrate",
        help="fit profiles to this machine, or to the log of a run",
        description="Measure this machine's GPU, link, frontend and host for a few minutes, and write profiles of them "
        "with their sources, their uncertainty and their error on shapes that were held out; or fit profiles to a log.",
    )
    verb.add_argument(
        "scenario", metavar="SCENARIO", nargs="?",
        help="scenario whose limits (captured shapes, context) are measured, and whose profiles are refined; with "
        "--from the one that replays the log (default: the limits of scenarios/twin-h200.toml)",
    )  # fmt: skip
    verb.add_argument("--backend", choices=("cuda",), default="cuda", help="what is measured (default: cuda)")
    verb.add_argument("--engine", choices=("torch",), default="torch", help="what runs on the GPU (default: torch)")
    verb.add_argument("--model", metavar="NAME", help="model profile, with random weights (default: the scenario's)")
    verb.add_argument("--busy", metavar="N", default="32", help="busy processes of the interfered part (default: 32)")
    verb.add_argument("--tokenizer", metavar="NAME", help="time this tokenizer, too: a built-in name or a folder")
    verb.add_argument(
        "--measurements", metavar="FILE", help="fit the measurements.npz of an earlier calibration again, without a GPU"
    )
    verb.add_argument(
        "--from", dest="log", metavar="FILE",
        help="fit to a measured run of a host-driven engine in place of measuring: a request log (.jsonl), or vLLM's "
        "benchmark JSON with details",
    )  # fmt: skip
    verb.add_argument("--first", metavar="N", default="100", help="with --from: requests to fit (default: 100)")
    verb.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override an option of SCENARIO")
    verb.add_argument("--out", metavar="DIR", required=True, help="new folder for the profiles")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Measure or read, fit, write, say how good it is."""
    from blink.report.rundir import RunDir

    for name in ("busy", "first"):
        if not getattr(options, name).isdecimal() or not int(getattr(options, name)):
            raise InputError(f"--{name}: {getattr(options, name)!r} is not allowed; allowed: a whole number from 1")
    folder = RunDir.prepare(options.out)
    try:
        if options.log:
            _from_log(options, folder.path)
        else:
            _from_machine(options, folder.path)
    except BaseException:
        folder.discard()
        raise
    print(f"Kept in {folder.path}")
    return 0


# --- this machine ---


def _from_machine(options: argparse.Namespace, folder: Path) -> None:
    from blink.perf.calibration.measurements import Measurements
    from blink.perf.calibration.profiles import MEASURED

    scenario = _scenario(options)
    found = Measurements.load(Path(options.measurements)) if options.measurements else _measure(options, scenario)
    write(found, scenario, folder)
    with (folder / MEASURED).open("wb") as file:
        found.save(file)


def _measure(options: argparse.Namespace, scenario: Scenario) -> Measurements:
    from blink.frontend.tokenizer import open_tokenizer
    from blink.hw.cuda.calibration.programme import Programme
    from blink.hw.cuda.calibration.run import measure_machine

    tokenizer = open_tokenizer(options.tokenizer) if options.tokenizer else None
    model = options.model or scenario.model.profile or MODEL
    with _status() as say:
        return measure_machine(scenario, model, Programme(busy=int(options.busy)), tokenizer=tokenizer, say=say)


def _scenario(options: argparse.Namespace) -> Scenario:
    from blink.common.config import load_scenario, parse_scenario

    if options.scenario:
        return load_scenario(options.scenario, options.set)
    document = {
        "name": "calibration", "model": {"profile": options.model or MODEL, "engine": ENGINE_PROFILE},
        "gpu": {"profile": "h200"}, "limits": LIMITS,
        "workload": {
            "requests": 1, "arrivals": {"kind": "all-at-once"},
            "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
        },
    }  # fmt: skip
    return parse_scenario(document, "calibration")


def write(found: Measurements, scenario: Scenario, folder: Path) -> None:
    """Fit and write the profiles, and print how good they are."""
    from blink.perf.calibration.profiles import calibrate, files
    from blink.perf.shape import ModelShape
    from blink.report.rundir import put

    engine = scenario.model.engine or ENGINE_PROFILE
    shape = ModelShape.load(str(found.about["model"]) or MODEL)
    result = calibrate(found, scenario.gpu.profile, engine, shape)
    for name, text in files(result).items():
        put(folder / name, lambda part, text=text: part.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    steps, host = result.steps, result.steps_host
    print(f"measured in {found.about.get('seconds', 0)} s: {found.about['machine']}")
    print(
        f"steps: roofline {steps.rms_alone:.2%} rms; with ratios by shape, on shapes held out: {steps.rms_holdout:.2%}"
    )
    print(f"       rms, {steps.worst_holdout:.2%} at most; under the scheduler on the host: {host.rms_holdout:.2%} rms")
    left = result.cold
    print(f"what is left of single steps: prefill {left.left_prefill:.2%}, decode {left.left_decode:.2%} rms")
    share = result.share
    print(
        f"beside {found.about['busy']} busy processes: {share.competitors:.2f} competitors on a busy thread's core "
        f"(standard error {share.error:.2f}), for {share.stay_ns / 1e9:.1f} s each; on the scheduler's {share.own:.2f}"
    )


# --- a log ---


def _from_log(options: argparse.Namespace, folder: Path) -> None:
    from blink.common.config import load_scenario
    from blink.common.config.toml import inline
    from blink.perf.calibration.profiles import MANIFEST, log_manifest
    from blink.report.rundir import put
    from blink.sim.engines.calibrate import calibrate_to

    if not options.scenario:
        raise InputError(
            "--from: needs the scenario that replays the log; allowed: blink calibrate SCENARIO --from FILE"
        )
    log = _as_log(Path(options.log), folder)
    trace = inline({"file": str(log), "dialect": "vllm-run"})
    scenario = load_scenario(options.scenario, [("--from", f"workload.trace={trace}"), *options.set])
    print(calibrate_to(scenario, int(options.first), folder))
    about = {"date": date.today().isoformat(), "log": log.name, "first": int(options.first)}
    manifest = log_manifest(scenario.system.kind, folder, about)
    put(folder / MANIFEST, lambda part: part.write_text(manifest, encoding="utf-8"))


def _as_log(path: Path, folder: Path) -> Path:
    """A request log as it is; benchmark JSON as a log beside the profiles."""
    from blink.twin.observed import read_observed, write_log

    if path.suffix != ".json":
        return path
    log = folder / "requests.jsonl"
    write_log(read_observed(path), log)
    return log


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """One line that says what is measured: on a terminal in place, else one after another on standard error."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(escape(text))
