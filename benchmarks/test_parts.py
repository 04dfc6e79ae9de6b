"""The parts that a run spends its time in, each on its own: ring, policy, token reader, readers of files, checker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scale import scaled
from blink.common import policy, trace
from blink.common.checker import check_trace
from blink.common.config import load_scenario
from blink.common.events import GraphKind
from blink.common.layout import DESCRIPTOR_STRIDE_BYTES, Ctl, Descriptor, pack_descriptor, unpack_descriptor
from blink.common.policy import Action, GraphShape, GraphTable, Limits, Pending
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT, SlotState
from blink.frontend.token_reader import TokenReader
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel
from blink.sim.run import simulate
from blink.workload.build import build_load
from blink.workload.reader import read_trace
from tests.shared import ROOT

SCENARIO = ROOT / "scenarios" / "llama3-8b-h100.toml"
BATCH = 128
CONTEXT = 8192
ROWS = scaled(20_000, 200)
SIMULATED_REQUESTS = scaled(1000, 20)


def counted(benchmark: BenchmarkFixture, items: int, unit: str) -> None:
    """How many items one call handles; the summary divides by the median time."""
    benchmark.extra_info.update(items=items, unit=unit)


# --- step model ---


def test_ask_for_a_decode_step(benchmark: BenchmarkFixture) -> None:
    """A run asks about half a million times."""
    model = StepModel(ModelShape.load("llama-3-8b"), GpuProfile.load("h200"))
    assert benchmark(model.decode_ns, 16, 16_384) > 0
    counted(benchmark, 1, "steps")


# --- ring ---


def test_pack_and_unpack_descriptors(benchmark: BenchmarkFixture) -> None:
    count = 256
    descriptors = [Descriptor(i, 7, 0, 100 * i, 100, 64 * i, 64, 60) for i in range(count)]
    buffer = bytearray(count * DESCRIPTOR_STRIDE_BYTES)

    def round_trip() -> list[Descriptor]:
        for index, descriptor in enumerate(descriptors):
            pack_descriptor(descriptor, buffer, index * DESCRIPTOR_STRIDE_BYTES)
        return [unpack_descriptor(buffer, index * DESCRIPTOR_STRIDE_BYTES) for index in range(count)]

    assert benchmark(round_trip) == descriptors
    counted(benchmark, count, "descriptors")


def test_pack_and_unpack_control_words(benchmark: BenchmarkFixture) -> None:
    words = [Ctl(SlotState.DECODE_PROCESSING, 0, 3, i, i % 2048) for i in range(1000)]
    assert benchmark(lambda: [Ctl.unpack(word.pack()) for word in words]) == words
    counted(benchmark, len(words), "words")


def decoding_ring() -> Ring:
    """A ring in which slots 0 to BATCH - 1 decode."""
    ring = Ring.in_memory(boot_id=1)
    ring.ctl[:BATCH] = Ctl(SlotState.DECODE_PROCESSING, generation=1, token_count=1).pack()
    return ring


def test_store_one_decode_step(benchmark: BenchmarkFixture) -> None:
    slots = np.arange(BATCH)
    # A fresh ring each time: the count of tokens has 20 bits.
    benchmark.pedantic(
        lambda ring: ring.add_tokens(slots, 1, 5), setup=lambda: ((decoding_ring(),), {}), rounds=scaled(2000, 5)
    )
    counted(benchmark, BATCH, "tokens")


# --- policy ---


def prefill_table() -> GraphTable:
    """The captured prefill graphs of the default policy."""
    sequences = policy.default_prefill_sequences(CONTEXT)
    fallback = GraphShape(GraphKind.PREFILL, 1, CONTEXT)
    return GraphTable(GraphKind.PREFILL, tuple(range(1, 9)), sequences, policy.PREFILL_TOKENS_MAX, fallback)


@pytest.mark.parametrize(("waiting", "action"), [(0, Action.DECODE), (1, Action.PREFILL), (1000, Action.PREFILL)])
def test_decide(benchmark: BenchmarkFixture, waiting: int, action: Action) -> None:
    queue = [Pending(i, i, 300 + i % 700, 400) for i in range(waiting)]
    limits, table = Limits(BATCH, 8, 16, 120), prefill_table()
    decision = benchmark(policy.decide, 100, queue, 10_000, 60, 0, limits, table)
    assert decision.action is action
    counted(benchmark, 1, "decisions")


# --- token reader ---


def test_compare_a_status_read_with_news_of_a_batch(benchmark: BenchmarkFixture) -> None:
    ring, slots = decoding_ring(), np.arange(BATCH)

    def fresh_reader() -> tuple[tuple[TokenReader], dict[str, object]]:
        reader = TokenReader(reads_max=512)
        for slot in range(BATCH):
            reader.watch(slot, 1)
        return (reader,), {}

    def poll(reader: TokenReader) -> int:
        news = reader.on_status(ring.ctl)
        assert news is not None
        reader.on_tokens(news)
        return news.slots.size

    assert benchmark.pedantic(poll, setup=fresh_reader, rounds=scaled(2000, 5)) == slots.size
    counted(benchmark, SLOT_COUNT, "slots")


def test_compare_a_status_read_without_news(benchmark: BenchmarkFixture) -> None:
    ring, reader = decoding_ring(), TokenReader(reads_max=512)
    reader.on_status(ring.ctl)
    assert benchmark(reader.on_status, ring.ctl) is None
    counted(benchmark, SLOT_COUNT, "slots")


# --- files ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this module's files lie."""
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def lengths() -> list[tuple[int, int]]:
    """Prompt and output lengths of ROWS requests."""
    rng = np.random.default_rng(5)
    return list(zip(rng.integers(1, 4000, ROWS).tolist(), rng.integers(1, 800, ROWS).tolist(), strict=True))


def test_read_a_csv_of_requests(benchmark: BenchmarkFixture, folder: Path, lengths: list[tuple[int, int]]) -> None:
    path = folder / "azure.csv"
    rows = (
        f"2023-11-16 {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}.{i:07d},{prompt},{output}"
        for i, (prompt, output) in enumerate(lengths)
    )
    path.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), encoding="utf-8")
    assert len(benchmark(read_trace, path)) == ROWS
    counted(benchmark, ROWS, "rows")


def test_read_json_lines_of_requests(benchmark: BenchmarkFixture, folder: Path, lengths: list[tuple[int, int]]) -> None:
    path = folder / "mooncake.jsonl"
    rows = (
        f'{{"timestamp": {i // 7 * 1000}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{i}]}}\n'
        for i, (prompt, output) in enumerate(lengths)
    )
    path.write_text("".join(rows), encoding="utf-8")
    assert len(benchmark(read_trace, path)) == ROWS
    counted(benchmark, ROWS, "rows")


@pytest.fixture(scope="module")
def recorded(folder: Path) -> dict[str, Path]:
    """The transition trace of one simulated run in both formats."""
    overrides = [f"workload.requests={SIMULATED_REQUESTS}", "workload.duration_s=100000"]
    scenario, load = build_load(load_scenario(SCENARIO, overrides))
    paths = {kind: folder / f"trace.{kind}" for kind in ("parquet", "ndjson")}
    for path in paths.values():
        simulate(scenario, load, trace_path=path)
    return paths


@pytest.mark.parametrize("kind", ["parquet", "ndjson"])
def test_read_a_transition_trace(benchmark: BenchmarkFixture, recorded: dict[str, Path], kind: str) -> None:
    found = benchmark.pedantic(trace.read_trace, (recorded[kind],), rounds=scaled(3, 1))
    assert found.footer is not None
    assert found.footer.complete
    counted(benchmark, sum(found.footer.events.values()), "rows")


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "row-by-row"])
def test_check_a_transition_trace(benchmark: BenchmarkFixture, recorded: dict[str, Path], bulk: bool) -> None:
    verdict = benchmark.pedantic(check_trace, (recorded["parquet"],), {"bulk": bulk}, rounds=scaled(3, 1))
    assert verdict.code == 0
    counted(benchmark, verdict.counts["events"], "rows")
