"""One simulated run in a process of its own, on one core; its time and its peak of memory as JSON.

    python -m benchmarks.one_run '{"scenario": "scenarios/ci-tiny.toml", "set": [], "trace": "out.parquet"}'

`trace` is where the transition trace goes, null for none; `profile` a file for cProfile's statistics. A process of its
own, because the peak of a process never falls again.
"""

from __future__ import annotations

import cProfile
import json
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

from blink.common.config import load_scenario
from blink.common.results import RunResult
from blink.sim.run import simulate
from blink.workload.build import build_load


def main() -> None:
    """Run what the argument says and print the figures."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    _stay_on_one_core()
    scenario, load = build_load(load_scenario(job["scenario"], job["set"]))
    trace_path = Path(job["trace"]) if job.get("trace") else None
    profile = cProfile.Profile() if job.get("profile") else None
    wall, cpu = time.perf_counter(), time.process_time()
    if profile:
        profile.enable()
    result = simulate(scenario, load, trace_path=trace_path)
    if profile:
        profile.disable()
        profile.dump_stats(job["profile"])
    figures = {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_bytes": _peak_bytes(),
        **_counts(result),
    }
    print(json.dumps(figures))


def _stay_on_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _peak_bytes() -> int:
    # On Linux ru_maxrss begins at what the parent had in memory when it started this process; VmHWM is our own.
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8")) if status.is_file() else None
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def _counts(result: RunResult) -> dict[str, int]:
    return {
        "requests": len(result.requests["request_id"]),
        "output_tokens": int(result.requests["output_tokens"].sum()),
        "prompt_tokens": int(result.requests["prompt_tokens"].sum()),
        "simulated_s": result.duration_ns // 10**9,
    }


if __name__ == "__main__":
    main()
