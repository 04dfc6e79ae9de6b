"""vLLM: the requests of a recorded run, and the detailed result file of its serving benchmark."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.numbers import UnusableError, shown
from blink.workload.row import Row


def _read_run(row: Row, collector: Collector) -> None:
    arrival_ns = row.arrival_ns("arrival_time")
    collector.add(row.number, arrival_ns, row.prompt_tokens("input_toks"), row.output_tokens("output_toks"))


def _read_bench(row: Row, collector: Collector) -> None:
    """One object whose lists hold a value a request; request i is counted as row i + 1."""
    lists = {name: _list(row, name) for name in ("input_lens", "output_lens", "start_times")}
    errors = _list(row, "errors") if "errors" in row.values else []
    count = len(lists["input_lens"])
    for name, values in (*lists.items(), ("errors", errors or [""] * count)):
        if len(values) != count:
            row.refuse(f"{name} has {len(values)} values where input_lens has {count}")
    collector.rows_read += count - 1
    for index in range(count):
        if collector.full:
            return
        try:
            if errors and errors[index]:
                raise UnusableError("failed (the benchmark recorded an error)")
            entry = Row(row.file, index + 1, {name: values[index] for name, values in lists.items()})
            arrival_ns = entry.arrival_ns("start_times")
            collector.add(index + 1, arrival_ns, entry.prompt_tokens("input_lens"), entry.output_tokens("output_lens"))
        except UnusableError as reason:
            collector.skip(str(reason))


def _list(row: Row, name: str) -> list[object]:
    values = row.values.get(name)
    if not isinstance(values, list):
        row.refuse(f"{name} {shown(values)} is not a list; save the benchmark with --save-detailed")
    return values


VLLM_RUN = Dialect(
    name="vllm-run",
    needs=(("arrival_time", "input_toks", "output_toks"),),
    is_json=True,
    read=_read_run,
    says="JSON lines with arrival_time (s), input_toks, output_toks",
)
VLLM_BENCH = Dialect(
    name="vllm-bench",
    needs=(("input_lens", "output_lens", "start_times"),),
    is_json=True,
    read=_read_bench,
    says="JSON object with the lists start_times (s), input_lens, output_lens (vllm bench serve --save-detailed)",
)
