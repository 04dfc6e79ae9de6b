"""`blink bench hw`: what the scheduler's loop costs on this GPU, with a host loop over the same graphs beside it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

from blink.commands import bench_rdma
from blink.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from blink.hw.cuda.bench.samples import Row
    from blink.hw.engines.torch_engine import TorchEngine

COLUMNS = ("p50_ns", "p99_ns", "p999_ns", "max_ns")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser("bench", help="measure hardware", description="Measure what this machine's hardware does.")
    kinds = verb.add_subparsers(dest="bench", required=True, metavar="WHAT")
    hw = kinds.add_parser(
        "hw",
        help="the scheduler's loop on a GPU",
        description="Print the table of the scheduler's loop with the stub engine, or with --engine the step times of "
        "a model, for the scheduler on the GPU and for the same one on the host.",
    )
    hw.add_argument("--busy", metavar="N,N", default="0,32", help="busy processes beside it (default: 0,32)")
    hw.add_argument("--engine", choices=("stub", "torch"), default="stub", help="stub: the loop's table (the default)")
    hw.add_argument("--model", metavar="NAME", default="llama-3-8b", help="of --engine torch (default: llama-3-8b)")
    hw.add_argument("--batches", metavar="N,N", default="1,16,64", help="of --engine torch (default: 1,16,64)")
    hw.add_argument("--steps", metavar="N", default="400", help="steps a batch of --engine torch (default: 400)")
    hw.add_argument("--prompt-tokens", metavar="N", default="1024", help="of --engine torch (default: 1024)")
    hw.add_argument(
        "--load", action="store_true", help="with --engine torch: serve Poisson loads and closed workloads instead"
    )
    hw.add_argument(
        "--overhead", action="store_true", help="with --engine torch: what the GPU's scheduler adds to the bare graph "
        "of a step, both measured in turns",
    )  # fmt: skip
    hw.add_argument("--rounds", metavar="N", default="8", help="turns of --overhead (default: 8)")
    hw.add_argument("--rates", metavar="N,N", default="10,20", help="requests/s of --load (default: 10,20)")
    hw.add_argument("--seconds", metavar="N", default="5", help="of each Poisson load (default: 5)")
    hw.add_argument("--json", metavar="FILE", help="write the rows to a file, too")
    hw.set_defaults(execute=execute)
    bench_rdma.add(kinds)


def execute(options: argparse.Namespace) -> int:
    """Measure and print. Rows measured before a fault or Ctrl-C are kept."""
    from blink.hw.cuda.lockstep import load_kernels

    busy = _numbers("--busy", options.busy)
    plan = {name: _numbers(f"--{name.replace('_', '-')}", getattr(options, name)) for name in _PLAN}
    for name in ("load", "overhead"):
        if getattr(options, name) and options.engine != "torch":
            raise InputError(f"--{name}: needs a model; allowed: with --engine torch")
    kernels = load_kernels()
    if options.load:
        return _load(options, kernels, busy, plan)
    if options.overhead:
        return _overhead(options, kernels, busy, plan)
    rows: list[Row] = []
    try:
        with _status() as say:
            stub = options.engine == "stub"
            found = _loop(kernels, busy, say) if stub else _engine(kernels, options, busy, plan, say)
            for row in found:
                rows.append(row)  # noqa: PERF402  # what was measured before a fault is kept
    finally:
        _report(options, kernels.cuda.describe(), rows)
    return 0


_PLAN = ("batches", "steps", "prompt_tokens", "rounds", "rates", "seconds")
LOAD_COLUMNS = {
    "requests": ("requests", 1), "done": ("completed", 1), "makespan s": ("makespan_ns", 1e9),
    "tokens/s": ("output_tokens_per_s", 1), "TTFT P50 ms": ("ttft_ns_p50", 1e6), "TTFT P99 ms": ("ttft_ns_p99", 1e6),
    "TPOT P50 ms": ("tpot_ns_p50", 1e6), "TPOT P99 ms": ("tpot_ns_p99", 1e6),
}  # fmt: skip


def _load(options: argparse.Namespace, kernels: Any, busy: tuple[int, ...], plan: dict[str, tuple[int, ...]]) -> int:
    from blink.hw.cuda.bench.load import LoadPlan, load_rows
    from blink.hw.engines.torch_engine import EngineLimits, TorchEngine

    load = LoadPlan(rates=tuple(map(float, plan["rates"])), duration_s=float(plan["seconds"][0]), busy=busy)
    context = -(-(load.prompt_tokens_max + load.output_tokens_max + 8) // 64) * 64
    batch = max(plan["batches"])
    limits = EngineLimits(
        context_tokens=context, batch_max=batch, block_count=batch * context // 16, prefill_batch_max=4,
        prefill_sequences=(128, 256, 512, load.prompt_tokens_max),
    )  # fmt: skip
    engine = TorchEngine.of_model(options.model, limits)
    rows: list[dict[str, Any]] = []
    try:
        with _status() as say:
            for row in load_rows(kernels, engine, load, options.model, say):
                rows.append(row)  # noqa: PERF402  # what was measured before a fault is kept
    finally:
        _report_load(options, kernels.cuda.describe(), rows)
        engine.close()
    return 0


def _overhead(
    options: argparse.Namespace, kernels: Any, busy: tuple[int, ...], plan: dict[str, tuple[int, ...]]
) -> int:
    from blink.hw.cuda.bench.overhead import OverheadPlan, overhead_rows

    batches, steps, prompt = plan["batches"], plan["steps"][0], plan["prompt_tokens"][0]
    engine = _engine_for(options.model, batches, steps, prompt)
    asked = OverheadPlan(batches, plan["rounds"][0], steps, prompt_tokens=prompt, busy=busy)
    rows: list[Row] = []
    try:
        with _status() as say:
            for row in overhead_rows(kernels, engine, asked, say):
                rows.append(row)  # noqa: PERF402  # what was measured before a fault is kept
    finally:
        _report_overhead(options, kernels.cuda.describe(), rows)
        engine.close()
    return 0


def _report_overhead(options: argparse.Namespace, machine: dict[str, str], rows: Sequence[Row]) -> None:
    """Medians in us, and the mean of the rounds' differences to the bare graph with its 95 % interval."""
    from rich.table import Table

    _keep(options, machine, [row.to_json() for row in rows])
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what")
    for name in ("busy", "steps", "P50 us", "P99.9 us", "ratio", *_OVERHEAD, *_ADDED):
        table.add_column(name, justify="right")
    for row in rows:
        more = row.more
        times = [f"{time_ns / 1000:,.2f}" for time_ns in (row.p50_ns, row.p999_ns)]
        parts = [f"{more[name] / 1000:,.2f}" for name in _OVERHEAD.values()]
        gap, graph = more["added_gap_ns"], more["added_graph_ns"]
        added = [
            _with_interval(values) for values in (gap, graph, [sum(pair) for pair in zip(gap, graph, strict=True)])
        ]
        ratio = f"{row.p999_ns / max(row.p50_ns, 1):.4f}"
        table.add_row(row.what, str(row.busy), f"{row.count:,}", *times, ratio, *parts, *added)
    _show(machine, table)


_OVERHEAD = {
    "gap": "gap_p50_ns", "seen": "seen_p50_ns", "between": "between_p50_ns", "begins": "begins_p50_ns",
    "bare graph": "bare_graph_p50_ns", "bare gap": "bare_gap_p50_ns",
}  # fmt: skip
_ADDED = ("+ gap", "+ graph", "+ step")


def _with_interval(values_ns: Sequence[float]) -> str:
    from blink.plan.interval import mean_interval

    found = mean_interval(values_ns)
    if found is None:
        return ""
    half = "" if found.high is None else f" ±{(found.high - found.estimate) / 1000:.2f}"
    return f"{found.estimate / 1000:+.2f}{half}"


def _report_load(options: argparse.Namespace, machine: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    _keep(options, machine, list(rows))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("what", "scheduler"):
        table.add_column(name)
    for name in ("busy", *LOAD_COLUMNS):
        table.add_column(name, justify="right")
    for row in rows:
        values = [row[key] / unit for key, unit in LOAD_COLUMNS.values()]
        table.add_row(row["what"], row["system"], str(row["busy"]), *(f"{value:,.6g}" for value in values))
    _show(machine, table)


def _loop(kernels: Any, busy: tuple[int, ...], say: Callable[[str], None]) -> Iterator[Row]:
    from blink.hw.cuda.bench.loop import loop_rows

    return loop_rows(kernels, busy, say)


def _engine(
    kernels: Any,
    options: argparse.Namespace,
    busy: tuple[int, ...],
    plan: dict[str, tuple[int, ...]],
    say: Callable[[str], None],
) -> Iterator[Row]:
    from blink.hw.cuda.bench.engine import StepPlan, engine_rows

    batches, steps, prompt = plan["batches"], plan["steps"][0], plan["prompt_tokens"][0]
    engine = _engine_for(options.model, batches, steps, prompt)
    try:
        yield from engine_rows(kernels, engine, StepPlan(batches, steps, prompt, busy), say)
    finally:
        engine.close()


def _engine_for(model: str, batches: tuple[int, ...], steps: int, prompt_tokens: int) -> TorchEngine:
    """An engine with room for `steps` steps of each batch over such prompts."""
    from blink.hw.engines.torch_engine import EngineLimits, TorchEngine

    context = -(-(prompt_tokens + steps + max(batches) + 2) // 64) * 64
    limits = EngineLimits(
        context_tokens=context, batch_max=max(batches), block_count=(max(batches) + 1) * (context // 16 + 1),
        prefill_sequences=(prompt_tokens,), decode_batches=tuple(sorted(batches)),
    )  # fmt: skip
    return TorchEngine.of_model(model, limits)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"{option}: {text!r} is not allowed; allowed: whole numbers from 0, separated by commas")
    return tuple(int(part) for part in parts)


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


def _report(options: argparse.Namespace, machine: dict[str, str], rows: Sequence[Row]) -> None:
    from rich.table import Table

    _keep(options, machine, [row.to_json() for row in rows])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("what", "scheduler"):
        table.add_column(name)
    for name in ("busy", "n", "P50 us", "P99 us", "P99.9 us", "max us", "back to back us"):
        table.add_column(name, justify="right")
    for row in rows:
        bare = row.more.get("bare_ns", row.more.get("bare_last_ns"))
        times = [f"{getattr(row, name) / 1000:,.2f}" for name in COLUMNS]
        table.add_row(
            row.what, row.system, str(row.busy), f"{row.count:,}", *times, "" if bare is None else f"{bare / 1000:,.2f}"
        )
    _show(machine, table)


def _keep(options: argparse.Namespace, machine: dict[str, str], rows: list[dict[str, Any]]) -> None:
    from pathlib import Path

    from blink.report.rundir import to_json

    if options.json:
        plain = {"date": date.today().isoformat(), "machine": machine, "rows": rows}
        Path(options.json).write_text(to_json(plain))


def _show(machine: dict[str, str], table: Table) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 190)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    console.print(table)
