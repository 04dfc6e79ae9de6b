"""StepModel: how long one captured step takes, by a roofline of the model's shape on a GPU.

A matrix product overlaps its bytes at the attainable bandwidth, with a ramp, and its FLOPs at the attainable rate, but
not perfectly; attention takes the longer of the two. Groups run one after another, and each captured kernel adds a
floor for its launch and tail (docs/models.md has the residuals).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blink.common.errors import InputError
from blink.common.ranges import violations
from blink.common.units import NS_PER_S
from blink.perf.corrections import Curve, StepCorrections, interpolated
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape

DEFAULT_ENGINE = "torch-capture"


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix product, `count` times a step: weight and activation elements moved, and multiply-adds.

    `grouped`: many small ones in one kernel, one for each expert.
    """

    name: str
    count: int
    weight_elements: float
    activation_elements: float
    multiply_adds: float
    rows: float
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step by its parts, in nanoseconds. `total_ns` adds gemm, attention, elementwise, sampling, floor, all_reduce.

    `*_bytes_ns` and `*_flops_ns` are the two sides of the roofline, `gemm_ramp_ns` what the products' bytes take beyond
    the attainable bandwidth; `gemm_ns` sums what each product takes with both sides overlapped.
    `elementwise_ns` is what element-wise kernels need beyond their share of the floor.
    """

    gemm_bytes_ns: float
    gemm_ramp_ns: float
    gemm_flops_ns: float
    gemm_ns: float
    attention_bytes_ns: float
    attention_flops_ns: float
    attention_ns: float
    elementwise_ns: float
    sampling_ns: float
    floor_kernel_count: int
    floor_ns: float
    all_reduce_ns: float

    @property
    def sum_ns(self) -> float:
        """The parts together."""
        busy = self.gemm_ns + self.attention_ns + self.elementwise_ns + self.sampling_ns
        return busy + self.floor_ns + self.all_reduce_ns

    @property
    def total_ns(self) -> int:
        """The step's duration, rounded to the nearest nanosecond."""
        return round(self.sum_ns)


class StepModel:
    """Durations of captured decode and prefill graphs, without the scheduler's loop around them.

    `dtype_bytes` is the width of weights, activations and KV cache (2 or, where the GPU has the rate, 1).
    `tensor_parallel` GPUs share heads, FFN and vocabulary. With `corrections` captured steps take what was measured of
    them, as a ratio to the roofline. Raises InputError for a split the shape does not allow.
    """

    __slots__ = (
        "_corrections",
        "_curves",
        "_decode_base",
        "_kv_q32",
        "_mixed_base",
        "_prefill",
        "dtype_bytes",
        "engine",
        "gpu",
        "shape",
        "tensor_parallel",
    )

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuProfile,
        dtype_bytes: int = 2,
        tensor_parallel: int = 1,
        engine: EngineProfile | None = None,
        corrections: StepCorrections | None = None,
    ) -> None:
        check_tensor_parallel(shape, tensor_parallel)
        gpu.peak_flops(dtype_bytes)  # refuses a width that the GPU has no rate for
        self.shape = shape
        self.gpu = gpu
        self.dtype_bytes = dtype_bytes
        self.tensor_parallel = tensor_parallel
        self.engine = engine if engine is not None else EngineProfile.load(DEFAULT_ENGINE)
        self._corrections = corrections
        self._curves: dict[int, Curve] = {}
        self._decode_base: dict[int, int] = {}
        self._prefill: dict[tuple[int, int], int] = {}
        self._mixed_base: dict[tuple[int, int], float] = {}
        # A live KV token costs the same wherever it is, so a step is one multiply beyond its base.
        self._kv_q32 = round(max(self._kv_token_ns()) * (1 << 32))

    def decode_ns(self, batch: int, kv_tokens: int) -> int:
        """Duration of the decode graph captured for `batch`, when live sequences hold `kv_tokens` tokens in all."""
        try:
            base = self._decode_base[batch]
        except KeyError:
            parts, found = self.decode_breakdown(batch, 0), self._corrections
            base = round(parts.sum_ns * found.decode_ratio(batch)) if found else parts.total_ns
            self._decode_base[batch] = base
        took = base + (kv_tokens * self._kv_q32 >> 32)
        return round(took * interpolated(self._along(batch), kv_tokens)) if self._corrections else took

    def _along(self, batch: int) -> Curve:
        found = self._curves.get(batch)
        if found is None:
            assert self._corrections is not None
            found = self._curves[batch] = self._corrections.along(batch)
        return found

    def prefill_ns(self, batch: int, sequence: int) -> int:
        """Duration of the prefill graph captured for `batch` sequences of `sequence` tokens, padding included."""
        found = self._prefill.get((batch, sequence))
        if found is None:
            parts, corrections = self.prefill_breakdown(batch, sequence), self._corrections
            ratio = corrections.prefill_ratio(batch, sequence) if corrections else 1.0
            found = self._prefill[batch, sequence] = round(parts.sum_ns * ratio)
        return found

    def prefill_busy(self, batch: int, sequence: int) -> float:
        """Share of the GPU's peak rate at which a captured prefill multiplies, tiles included."""
        return min(1.0, self.prefill_peak_ns(batch, sequence) / self.prefill_ns(batch, sequence))

    def prefill_peak_ns(self, batch: int, sequence: int) -> float:
        """What the products of a captured prefill would take at the GPU's peak rate, whatever share is attainable."""
        return self.prefill_breakdown(batch, sequence).gemm_flops_ns * self.gpu.flops_efficiency

    def padding_worth(self, sequence: int) -> int:
        """Tokens of padding that cost as much as a second prefill graph, for two sequences of `sequence` tokens.

        Two graphs read the weights twice and launch their kernels twice; one graph for both computes the padding.
        """
        one, both = self.prefill_ns(1, sequence), self.prefill_ns(2, sequence)
        return max(0, (2 * one - both) * sequence // max(1, both - one))

    def mixed_ns(self, decode_rows: int, kv_tokens: int, prefill_chunks: Sequence[tuple[int, int]]) -> int:
        """Duration of one step without padding: rows that decode, and chunks of prompts, as (new, context) tokens.

        The products see all tokens together, the output head one row for each row and chunk; attention of the rows and
        of the chunks run one after the other. Without chunks it is `decode_ns`, without rows and context `prefill_ns`
        of the same sequences. Raises InputError if there is nothing to compute.
        """
        if not prefill_chunks:
            _at_least("decode_rows", decode_rows, 1)
            return self.decode_ns(decode_rows, kv_tokens)
        tokens, rows = decode_rows + sum(new for new, _ in prefill_chunks), decode_rows + len(prefill_chunks)
        try:
            base = self._mixed_base[tokens, rows]
        except KeyError:
            parts = self._parts(tokens, rows, 0.0, 0.0)
            base = self._mixed_base[tokens, rows] = parts.sum_ns
        bytes_ns, flops_ns = self._kv_token_ns()
        read = sum(new + context for new, context in prefill_chunks)
        pairs = sum(new * context + new * (new + 1) // 2 for new, context in prefill_chunks)
        return round(base + max(read * bytes_ns, pairs * flops_ns) + kv_tokens * max(bytes_ns, flops_ns))

    def decode_breakdown(self, batch: int, kv_tokens: int) -> StepParts:
        """The parts of `decode_ns`: padded rows cost products and sampling, live KV tokens cost attention."""
        _at_least("batch", batch, 1)
        _at_least("kv_tokens", kv_tokens, 0)
        bytes_ns, flops_ns = self._kv_token_ns()
        return self._parts(batch, batch, kv_tokens * bytes_ns, kv_tokens * flops_ns)

    def prefill_breakdown(self, batch: int, sequence: int) -> StepParts:
        """The parts of `prefill_ns`: causal attention, the output head on the last token of each sequence alone."""
        _at_least("batch", batch, 1)
        _at_least("sequence", sequence, 1)
        bytes_ns, flops_ns = self._kv_token_ns()
        pairs = batch * sequence * (sequence + 1) // 2
        return self._parts(batch * sequence, batch, batch * sequence * bytes_ns, pairs * flops_ns)

    def range_violations(self, observed: dict[str, tuple[int, int]]) -> list[str]:
        """One line for each measured or fitted constant that was used outside the range it holds in.

        `observed` maps batch, kv_tokens, sequence or tokens to the smallest and largest value of a run (RangeTracker).
        """
        return violations(self.gpu.name, self.gpu.constants, observed) + violations(
            self.engine.name, self.engine.constants, observed
        )

    def _parts(self, tokens: int, rows: int, attention_bytes_ns: float, attention_flops_ns: float) -> StepParts:
        kernel_count = self.kernel_count()
        products = [
            (gemm.count, *self._gemm_ns(gemm), self.engine.grouped_floor_ns if gemm.grouped else 0)
            for gemm in self._gemms(tokens, rows)
        ]
        return StepParts(
            gemm_bytes_ns=sum(count * memory for count, memory, *_ in products),
            gemm_ramp_ns=sum(count * ramp for count, _, ramp, *_ in products),
            gemm_flops_ns=sum(count * compute for count, _, _, compute, _ in products),
            gemm_ns=sum(
                count * max(floor, self._overlapped_ns(memory + ramp, compute))
                for count, memory, ramp, compute, floor in products
            ),
            attention_bytes_ns=attention_bytes_ns,
            attention_flops_ns=attention_flops_ns,
            attention_ns=max(attention_bytes_ns, attention_flops_ns),
            elementwise_ns=self._elementwise_ns(tokens),
            sampling_ns=self._sampling_ns(rows),
            floor_kernel_count=kernel_count,
            floor_ns=kernel_count * self.gpu.kernel_floor_ns,
            all_reduce_ns=self._all_reduce_ns(tokens, rows),
        )

    def _gemms(self, tokens: int, rows: int) -> Iterator[Gemm]:
        shape, share, layers = self.shape, 1 / self.tensor_parallel, self.shape.layer_count
        hidden, query = shape.hidden_size, shape.query_size
        qkv = query + 2 * shape.kv_size
        yield _gemm("qkv", layers, hidden, qkv * share, tokens)
        yield _gemm("output", layers, query * share, hidden, tokens)
        if shape.expert_count:
            yield _gemm("router", layers, hidden, shape.expert_count, tokens)
            # Grouped products: each expert that is touched is read once, and every token computes on its k experts.
            touched, routed = shape.experts_touched(tokens), tokens * shape.experts_per_token
            inner = shape.expert_ffn_size * share
            yield _gemm("expert_gate_up", layers, hidden, 2 * inner, routed, touched, grouped=True)
            yield _gemm("expert_down", layers, inner, hidden, routed, touched, grouped=True)
        else:
            inner = shape.ffn_size * share
            yield _gemm("gate_up", layers, hidden, 2 * inner, tokens)
            yield _gemm("down", layers, inner, hidden, tokens)
        yield _gemm("head", 1, hidden, shape.vocab_size * share, rows)

    def _gemm_ns(self, gemm: Gemm) -> tuple[float, float, float]:
        """Bytes, ramp and FLOPs of one product, in ns.

        The ramp grows with the root of the bytes: a short product never reaches the bandwidth, a long one nearly does.
        """
        share = self.engine.grouped_flops_share if gemm.grouped else 1.0
        rate = self.gpu.peak_flops(self.dtype_bytes) * self.gpu.flops_efficiency * share
        memory = self._bytes_ns(gemm.weight_elements + gemm.activation_elements)
        computed = gemm.multiply_adds * (self.engine.tiled(gemm.rows) / gemm.rows)
        return memory, math.sqrt(memory * self.gpu.gemm_ramp_ns), 2 * computed / rate * NS_PER_S

    def _overlapped_ns(self, memory_ns: float, compute_ns: float) -> float:
        """Between the longer side (exponent infinite: perfect overlap) and the sum (exponent 1: none)."""
        longer, shorter = max(memory_ns, compute_ns), min(memory_ns, compute_ns)
        exponent = self.gpu.gemm_overlap_exponent
        return longer * math.pow(1.0 + math.pow(shorter / longer, exponent), 1.0 / exponent)

    def _bytes_ns(self, elements: float) -> float:
        bandwidth = self.gpu.memory_bandwidth_bytes_per_s * self.gpu.memory_efficiency
        return elements * self.dtype_bytes / bandwidth * NS_PER_S

    def _kv_token_ns(self) -> tuple[float, float]:
        """Time to read one token's keys and values in all layers, and to multiply one query with them."""
        gpu, shape = self.gpu, self.shape
        bandwidth = gpu.memory_bandwidth_bytes_per_s * gpu.attention_bandwidth_efficiency
        rate = gpu.peak_flops(self.dtype_bytes) * gpu.attention_flops_efficiency
        size = shape.kv_bytes_per_token(self.dtype_bytes) / self.tensor_parallel
        flops = 4 * shape.layer_count * shape.query_size / self.tensor_parallel
        return size / bandwidth * NS_PER_S, flops / rate * NS_PER_S

    def _sampling_ns(self, rows: int) -> float:
        return self._bytes_ns(self.engine.logit_accesses * rows * self.shape.vocab_size / self.tensor_parallel)

    def _elementwise_ns(self, tokens: int) -> float:
        shape, engine = self.shape, self.engine
        inner = shape.experts_per_token * shape.expert_ffn_size if shape.expert_count else shape.ffn_size
        heads = engine.query_accesses * shape.query_size + engine.kv_accesses * shape.kv_size
        split = (heads + engine.ffn_accesses * inner) / self.tensor_parallel
        moved = engine.hidden_accesses * shape.hidden_size + split
        floor = engine.elementwise_kernels_per_layer * self.gpu.kernel_floor_ns
        return shape.layer_count * max(0.0, self._bytes_ns(tokens * moved) / engine.elementwise_efficiency - floor)

    @property
    def weights_bytes(self) -> int:
        """Weights on each GPU."""
        return -(-self.shape.param_count * self.dtype_bytes // self.tensor_parallel)

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens on each GPU."""
        return tokens * self.shape.kv_bytes_per_token(self.dtype_bytes) // self.tensor_parallel

    def context_ns(self, new_tokens: int, context_tokens: int) -> int:
        """What a prefill takes beyond that of its new tokens alone, for the context before them in the cache."""
        bytes_ns, flops_ns = self._kv_token_ns()
        return round(max(context_tokens * bytes_ns, new_tokens * context_tokens * flops_ns))

    def kernel_count(self) -> int:
        """Kernels of one step."""
        moe = self.shape.expert_count > 0
        per_layer = self.engine.kernels_per_layer_moe if moe else self.engine.kernels_per_layer
        return self.shape.layer_count * per_layer + self.engine.kernels_outside

    def _all_reduce_ns(self, tokens: int, rows: int) -> float:
        """Two ring all-reduces of the hidden state a layer, and one gather of the logits."""
        peers = self.tensor_parallel
        if peers == 1:
            return 0.0
        share = (peers - 1) / peers
        reduced = 2 * self.shape.layer_count * 2 * share * tokens * self.shape.hidden_size
        moved = (reduced + share * rows * self.shape.vocab_size) * self.dtype_bytes
        calls = 2 * self.shape.layer_count + 1
        return calls * self.gpu.all_reduce_latency_ns + moved / self.gpu.peer_bandwidth_bytes_per_s * NS_PER_S


def check_tensor_parallel(shape: ModelShape, tensor_parallel: int) -> None:
    """InputError unless KV heads and FFN can be split evenly over that many GPUs."""
    allowed = [
        ways
        for ways in range(1, shape.kv_head_count + 1)
        if shape.kv_head_count % ways == 0 and (shape.expert_ffn_size or shape.ffn_size) % ways == 0
    ]
    if tensor_parallel not in allowed:
        raise InputError(
            f"tensor_parallel: {tensor_parallel!r} is not allowed for {shape.name}, {shape.kv_head_count} KV heads; "
            f"allowed: {', '.join(map(str, allowed))}"
        )


def _gemm(
    name: str, count: int, inputs: float, outputs: float, rows: float, matrices: float = 1.0, *, grouped: bool = False
) -> Gemm:
    """`rows` rows of `inputs` elements times `matrices` distinct matrices of inputs x outputs elements."""
    moved, computed = rows * (inputs + outputs), rows * inputs * outputs
    return Gemm(name, count, matrices * inputs * outputs, moved, computed, rows, grouped)


def _at_least(field: str, value: int, low: int) -> None:
    if value < low:
        raise InputError(f"{field}: {value!r} is not allowed; allowed: at least {low}")
