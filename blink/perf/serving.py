"""Steps under what-if switches: speculative decoding, pipeline parallelism, collectives over a fabric.

*Speculation.* Before each step a draft model proposes k tokens, one after the other; the step computes k + 1 tokens a
row and keeps the accepted ones and one more. With acceptance a, independent for each token, that is 1 + a + ... + a^k
tokens a step on average (Leviathan et al., 2023). The twin counts tokens, not steps: a token takes the time of drafts
and step over that mean. So means and rates are those of speculation, and the bursts in which its tokens come are not.

*Pipeline.* P stages hold the layers. Rows that decode go around in P groups, each a stage ahead of the next: all stages
work, and a token takes as long as the whole model needs for one group, and P transfers of its hidden state. A prefill
of b prompts goes through in min(b, P) groups: its first fills the stages, its last drains them (Huang et al., 2019).

*Collectives.* All-reduces and the gather of the logits take what the fabric's topology gives (blink.perf.fabric).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.perf.corrections import StepCorrections
from blink.perf.engine import EngineProfile
from blink.perf.fabric import Collectives, FabricProfile
from blink.perf.gpu import GpuProfile
from blink.perf.host_engine import HostEngineProfile
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

STEP_COSTS = ("schedule", "prepare", "launch", "kernel_launch", "sync", "update")
"""What a host-driven engine pays a step, not a token of text."""


class Drafts(Protocol):
    """A draft model (blink.common.config.options.Speculation)."""

    @property
    def draft_tokens(self) -> int: ...
    @property
    def acceptance(self) -> float: ...
    @property
    def draft_cost(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Switches:
    """What is switched on: a draft model, stages of a pipeline, a fabric."""

    drafts: Drafts | None = None
    stages: int = 1
    fabric: FabricProfile | None = None


def tokens_a_step(drafts: Drafts) -> float:
    """Mean tokens of one verified step: 1 + a + ... + a^k."""
    return float(sum(drafts.acceptance**accepted for accepted in range(drafts.draft_tokens + 1)))


class ServingStep(StepModel):
    """A StepModel under switches; `decode_ns` and `mixed_ns` are those of one token a row."""

    __slots__ = ("_collectives", "_drafts", "_mixed", "_sends", "_stages", "_tokens")

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuProfile,
        dtype_bytes: int,
        tensor_parallel: int,
        engine: EngineProfile,
        corrections: StepCorrections | None,
        switches: Switches,
    ) -> None:
        """Raises InputError for more stages than layers."""
        stages, drafts = switches.stages, switches.drafts
        if stages > shape.layer_count:
            raise InputError(
                f"gpu.pipeline_parallel = {stages}: {shape.name} has {shape.layer_count} layers; allowed: at most that"
            )
        self._drafts, self._stages = drafts, stages
        self._tokens = tokens_a_step(drafts) if drafts else 1.0
        self._collectives: Collectives | None = None
        if switches.fabric is not None:
            self._collectives = Collectives(switches.fabric, tuple(range(tensor_parallel)))
        # Stages lie behind one another in the fabric: from the first GPU of each to the first of the next.
        between = switches.fabric or (FabricProfile.load(DEFAULT_FABRIC) if stages > 1 else None)
        self._sends: list[Collectives] = []
        if between is not None and stages > 1:
            heads = [stage * tensor_parallel for stage in range(stages)]
            self._sends = [Collectives(between, (one, heads[(place + 1) % stages])) for place, one in enumerate(heads)]
        super().__init__(shape, gpu, dtype_bytes, tensor_parallel, engine, corrections)
        self._mixed: dict[tuple[int, int], float] = {}
        bytes_ns, flops_ns = self._kv_token_ns()
        if drafts is not None:
            verified = max(bytes_ns, (drafts.draft_tokens + 1) * flops_ns)
            token_ns = (verified + drafts.draft_tokens * drafts.draft_cost * max(bytes_ns, flops_ns)) / self._tokens
        else:
            token_ns = max(bytes_ns, flops_ns)
        self._kv_q32 = round(token_ns / stages * (1 << 32))

    # --- memory ---

    @property
    def weights_bytes(self) -> int:
        """Weights on each GPU of the fullest stage, those of the draft model included."""
        shape, own = self.shape, super().weights_bytes
        if self._stages > 1:
            heads = shape.embedding_params  # the first stage has the embedding, the last one the output head
            layer = (shape.param_count - (1 if shape.tied_embeddings else 2) * heads) / shape.layer_count
            params = -(-shape.layer_count // self._stages) * layer + heads
            own = -(-round(params * self.dtype_bytes) // self.tensor_parallel)
        return own + round(own * self._drafts.draft_cost) if self._drafts else own

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens on each GPU of the fullest stage."""
        return super().kv_bytes(tokens) * -(-self.shape.layer_count // self._stages) // self.shape.layer_count

    # --- time ---

    def decode_ns(self, batch: int, kv_tokens: int) -> int:
        """Time of one token a row: drafts and verification over the tokens of a step, of the group that goes around."""
        base = self._decode_base.get(batch)
        if base is None:
            rows = -(-batch // self._stages)
            plain = self._parts(rows, rows, 0.0, 0.0).sum_ns
            ratio = self._corrections.decode_ratio(rows) if self._corrections else 1.0
            verified, drafts = plain, self._drafts
            if drafts is not None:
                tokens = rows * (drafts.draft_tokens + 1)
                verified = self._parts(tokens, tokens, 0.0, 0.0).sum_ns
                verified += drafts.draft_tokens * drafts.draft_cost * plain
                rows = tokens
            base = self._decode_base[batch] = round((verified * ratio + self._sent_ns(rows)) / self._tokens)
        return base + (kv_tokens * self._kv_q32 >> 32)

    def prefill_ns(self, batch: int, sequence: int) -> int:
        """As ever; in a pipeline, the groups one behind the other."""
        groups = min(batch, self._stages)
        if self._stages == 1:
            return super().prefill_ns(batch, sequence)
        size = -(-batch // groups)
        one = super().prefill_ns(size, sequence)
        turns = (groups + self._stages - 1) / self._stages
        return round(turns * (one + self._sent_ns(size * sequence)))

    def mixed_ns(self, decode_rows: int, kv_tokens: int, prefill_chunks: Sequence[tuple[int, int]]) -> int:
        """Rows decode as in `decode_ns`; the chunks come on top of a step that verifies those rows."""
        if not prefill_chunks:
            return self.decode_ns(decode_rows, kv_tokens)
        if self._stages == 1 and self._drafts is None:
            return super().mixed_ns(decode_rows, kv_tokens, prefill_chunks)
        stages, new = self._stages, sum(tokens for tokens, _ in prefill_chunks)
        rows = -(-decode_rows // stages) * (self._drafts.draft_tokens + 1 if self._drafts else 1)
        groups = min(stages, max(1, decode_rows + len(prefill_chunks)))
        turns = (groups + stages - 1) / stages
        piece = -(-new // groups)
        more = self._products_ns(rows + piece, rows + len(prefill_chunks)) - (
            self._products_ns(rows, rows) if rows else 0
        )
        bytes_ns, flops_ns = self._kv_token_ns()
        read = sum(tokens + context for tokens, context in prefill_chunks)
        pairs = sum(tokens * context + tokens * (tokens + 1) // 2 for tokens, context in prefill_chunks)
        attention = max(read * bytes_ns, pairs * flops_ns) / groups
        decoding = self.decode_ns(decode_rows, kv_tokens) if decode_rows else 0
        return decoding + round(turns * (more + attention + self._sent_ns(piece)))

    def _products_ns(self, tokens: int, rows: int) -> float:
        found = self._mixed.get((tokens, rows))
        if found is None:
            found = self._mixed[tokens, rows] = self._parts(tokens, rows, 0.0, 0.0).sum_ns
        return found

    def _sent_ns(self, tokens: int) -> float:
        """The hidden state of so many tokens from each stage to the next, once around."""
        size = tokens * self.shape.hidden_size * self.dtype_bytes / self.tensor_parallel
        return sum(one.pass_on_ns(size) for one in self._sends)

    def _all_reduce_ns(self, tokens: int, rows: int) -> float:
        if self._collectives is None:
            return super()._all_reduce_ns(tokens, rows)
        hidden = self._collectives.all_reduce_ns(tokens * self.shape.hidden_size * self.dtype_bytes)
        logits = self._collectives.all_gather_ns(rows * self.shape.vocab_size * self.dtype_bytes)
        return 2 * self.shape.layer_count * hidden + logits


DEFAULT_FABRIC = "nvlink-8"
"""What connects stages, and GPUs with host memory, where a scenario names no fabric."""


def switches_of(scenario: Scenario) -> Switches | None:
    """What a scenario switches on of all this; None if nothing."""
    drafts = scenario.serving.speculation if scenario.serving else None
    fabric = FabricProfile.load(scenario.gpu.fabric) if scenario.gpu.fabric else None
    if drafts is None and fabric is None and scenario.gpu.stages == 1:
        return None
    return Switches(drafts, scenario.gpu.stages, fabric)


def served(profile: HostEngineProfile, scenario: Scenario) -> HostEngineProfile:
    """The costs of a host-driven engine a token, where a step yields several: its work for a step is shared by them."""
    drafts = scenario.serving.speculation if scenario.serving else None
    if drafts is None:
        return profile
    tokens = tokens_a_step(drafts)
    shared = {
        field.name: type(getattr(profile, field.name))(getattr(profile, field.name) / tokens)
        for field in fields(profile)
        if field.name.startswith(STEP_COSTS) and "_ns" in field.name
    }
    return replace(profile, **shared)


def served_gpu(gpu: GpuProfile, scenario: Scenario) -> GpuProfile:
    """The same of the scheduler on the GPU: what it does around a step is shared by the tokens of the step."""
    drafts = scenario.serving.speculation if scenario.serving else None
    if drafts is None:
        return gpu
    tokens = tokens_a_step(drafts)
    return replace(
        gpu,
        launch_ns=round(gpu.launch_ns / tokens),
        completion_ns=round(gpu.completion_ns / tokens),
        publish_ns=round(gpu.publish_ns / tokens),
    )
