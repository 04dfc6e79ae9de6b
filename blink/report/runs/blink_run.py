"""A run that Blink kept: simulated, or served by the native scheduler or on a GPU."""

from __future__ import annotations

from pathlib import Path

from blink.common import metrics
from blink.common.config.load import read_toml
from blink.common.distribution import PERCENTILES
from blink.common.results import I64
from blink.report.rundir import SCENARIO_NAME, read_run
from blink.report.runs.measured import COUNTS, LATENCIES, THROUGHPUTS, AnyRun, latency_figures


def read_blink_run(folder: Path) -> AnyRun:
    """Read a run's folder. Raises InputError if it is none."""
    run = read_run(folder)
    done = metrics.completed(run.requests)
    samples: dict[str, I64] = {
        "ttft": metrics.ttft_ns(done),
        "tpot": metrics.tpot_ns(done).round().astype("int64"),
        "e2el": metrics.e2e_ns(done),
    }
    names = [f"{label}_{name}_ms" for label in ("mean", "median", *PERCENTILES) for name in LATENCIES]
    summary = run.summary
    figures = {name: summary.get(name) for name in (*COUNTS, *THROUGHPUTS, *names)}
    accounts = summary["blink"]["accounts"]
    figures |= {name: accounts.get(name) for name in ("energy_mj_per_token", "cost_usd_per_million_tokens")}
    file = folder / SCENARIO_NAME
    return AnyRun(
        name=str(summary["label"]),
        made_by=f"Blink's twin of {summary['backend']}" if summary["backend"] != "blink" else "Blink",
        figures={**latency_figures(samples), **{name: value for name, value in figures.items() if value is not None}},
        samples=samples,
        requests={name: done[name] for name in ("request_id", "prompt_tokens", "output_tokens", "ttft_ns", "e2e_ns")},
        scenario=read_toml(file) if file.is_file() else {},
        notes=("stopped before its end",) if summary["blink"]["partial"] else (),
    )
