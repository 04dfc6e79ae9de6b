"""What the tests of the native backend share: small settings, scenarios, and a skip where nothing can be compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink.common.config import Scenario, parse_scenario
from blink.common.events import GraphKind
from blink.common.layout import layout_hash
from blink.common.policy import GraphShape, GraphTable, Limits
from blink.common.recorder import Recorder
from blink.common.results import Outcome, RunResult
from blink.common.states import SLOT_COUNT
from blink.common.trace import TraceHeader, open_writer
from blink.hw.native.build import find_compiler
from blink.hw.native.run import serve
from blink.hw.native.settings import Durations, NativeSettings
from blink.workload.build import build_load

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler: install g++ or set CXX")
CONTEXT = 64
OUTPUT_ROOM = 16


def small_settings(**changes: Any) -> NativeSettings:
    """A scheduler for prompts and outputs of a few tokens. `batch_max`, `window`, ... replace those of the limits."""
    limits = Limits(batch_max=4, prefill_batch_max=2, block_tokens=4, window=5)
    names = [name for name in changes if hasattr(limits, name)]
    limits = replace(limits, **{name: changes.pop(name) for name in names})
    together = min(limits.prefill_batch_max, limits.batch_max)
    batches = tuple(range(1, limits.batch_max + 1))
    prefill = GraphTable(
        GraphKind.PREFILL, batches[:together], (8, 16, 32), 40, GraphShape(GraphKind.PREFILL, 1, CONTEXT)
    )
    decode = GraphTable(
        GraphKind.DECODE, batches, (16, 32, CONTEXT), 10_000, GraphShape(GraphKind.DECODE, limits.batch_max, CONTEXT)
    )
    settings = NativeSettings(
        limits=limits,
        prefill_table=prefill,
        decode_table=decode,
        kv_block_count=40,
        prompt_area_tokens=SLOT_COUNT * 48,
        output_capacity_tokens=OUTPUT_ROOM,
        slot_count=SLOT_COUNT,
        durations=Durations.none(prefill, decode),
        trace_capacity=1 << 14,
    )
    return replace(settings, **changes)


def trace_recorder(path: Path) -> Recorder:
    """A recorder of both sides of a lock-step run."""
    header = TraceHeader(run="test", backend="native", seed=1, layout_hash=layout_hash(), token_reads="each")
    return Recorder(open_writer(path, header), reads_each=True)


def scenario_of(**sections: dict[str, Any]) -> Scenario:
    """A small scenario on a small model; sections replace keys of the default ones."""
    plain: dict[str, Any] = {
        "name": "native-test",
        "model": {"profile": "smollm2-135m"},
        "gpu": {"profile": "h200"},
        "workload": {
            "requests": 40,
            "arrivals": {"kind": "all-at-once"},
            "lengths": {"kind": "uniform", "prompt_tokens": [1, 40], "output_tokens": [1, 12]},
        },
        "limits": {"batch_max": 8, "prefill_batch_max": 3, "prompt_capacity_tokens": 64, "output_capacity_tokens": 16},
        "trace": {"format": "ndjson", "token_reads": "each"},
    }
    for name, section in sections.items():
        plain[name] = {**plain.get(name, {}), **section}
    return parse_scenario(plain, "native-test")


def serve_scenario(scenario: Scenario, trace: Path, **options: Any) -> RunResult:
    """Serve as fast as it goes, with a trace."""
    scenario, requests = build_load(scenario)
    return serve(scenario, requests, trace_path=trace, **{"time_scale": 0.0, "threads": 2, **options})


def outcomes(result: RunResult) -> dict[str, int]:
    """How many requests ended how; only what occurred."""
    found = result.requests["outcome"].tolist()
    return {outcome.label: found.count(outcome) for outcome in Outcome if found.count(outcome)}
