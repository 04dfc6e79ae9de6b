"""How the system is set up: limits of the scheduler, polling of the frontend, trace, objectives, mode of the run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blink.common.config.fields import Float, Int, Table, option, refuse
from blink.common.config.workload import TOKENS_MAX
from blink.common.policy import RESUME_AFTER_TOKENS
from blink.common.states import SLOT_COUNT
from blink.common.units import NS_PER_S

OFFSET_TOKENS_MAX = (1 << 32) // SLOT_COUNT  # the descriptor's token offsets are u32 over all slots
WINDOW_MAX = 120  # fire-and-forget launches of one parent execution, set by CUDA
Batches = tuple[Annotated[Int, Field(ge=1, le=SLOT_COUNT)], ...]
Sequences = tuple[Annotated[Int, Field(ge=1, le=TOKENS_MAX)], ...]
SHAPE_LISTS = ("decode_batches", "decode_sequences", "prefill_batches", "prefill_sequences")


class Limits(Table):
    """What the scheduler may use: places, launches, memory, and the shapes of the captured graphs."""

    batch_max: Int = option(128, "Sequences that decode together at most.", "sequences", ge=1, le=SLOT_COUNT)
    prefill_batch_max: Int = option(
        8, "Prompts in one prefill graph at most; never more than batch_max.", "sequences", ge=1, le=SLOT_COUNT
    )
    prefill_padding_tokens_max: Int | None = option(
        None,
        "Padding of a prefill that prompts share, at most. Unset: what a second graph would cost, by the step model.",
        "tokens",
        ge=0,
        le=TOKENS_MAX,
    )
    resume_after_tokens: Int = option(
        RESUME_AFTER_TOKENS,
        "Prompt tokens computed in a row after which what decodes goes on, though more prompts wait. "
        "1: after each prefill.",
        "tokens",
        ge=1,
        le=TOKENS_MAX,
    )
    context_tokens: Int | None = option(
        None, "Prompt and output of a request together, at most. Unset: the model's.", "tokens", ge=2, le=2 * TOKENS_MAX
    )
    prompt_capacity_tokens: Int = option(
        6144, "Room for a prompt in each slot's prompt area.", "tokens", ge=1, le=OFFSET_TOKENS_MAX
    )
    output_capacity_tokens: Int = option(
        2048, "Room for generated tokens in each slot's output area.", "tokens", ge=1, le=TOKENS_MAX
    )
    kv_block_tokens: Int = option(16, "Tokens in one KV block.", "tokens", ge=1, le=4096)
    window: Int = option(
        WINDOW_MAX, "Fire-and-forget launches before the scheduler relaunches itself.", "launches", ge=3, le=WINDOW_MAX
    )
    time_limit_s: Float = option(0.0, "Time from claim after which a request is aborted. 0: none.", "s", ge=0, le=1e6)
    decode_batches: Batches | None = option(
        None, "Batch sizes of the captured decode graphs. Unset: the policy's.", "sequences"
    )
    decode_sequences: Sequences | None = option(
        None, "KV lengths of the captured decode graphs. Unset: the policy's.", "tokens"
    )
    prefill_batches: Batches | None = option(
        None, "Batch sizes of the captured prefill graphs. Unset: the policy's.", "sequences"
    )
    prefill_sequences: Sequences | None = option(
        None, "Prompt lengths of the captured prefill graphs. Unset: the policy's.", "tokens"
    )

    @model_validator(mode="after")
    def _shapes(self) -> Self:
        for name in SHAPE_LISTS:
            shapes = getattr(self, name)
            if shapes is not None and (not shapes or list(shapes) != sorted(set(shapes))):
                raise refuse(name, f"= {list(shapes)}: must be ascending, without repeats, and not empty")
        self._reaches("decode_batches", "batch_max", self.batch_max)
        self._reaches("prefill_batches", "prefill_batch_max", min(self.prefill_batch_max, self.batch_max))
        return self

    def _reaches(self, name: str, limit_name: str, limit: int) -> None:
        shapes = getattr(self, name)
        if shapes is not None and shapes[-1] < limit:
            raise refuse(name, f"= {list(shapes)}: the largest must reach limits.{limit_name} = {limit}")

    @property
    def time_limit_ns(self) -> int:
        """The time limit in nanoseconds, 0 for none."""
        return round(self.time_limit_s * NS_PER_S)


class Frontend(Table):
    """The DPU's polling and queueing."""

    poll_min_ns: Int = option(
        1_000, "Pause between two READs of the status array while tokens flow.", "ns", ge=0, le=NS_PER_S
    )
    poll_max_ns: Int = option(
        20_000, "The same while nothing is in flight; polling adapts between both.", "ns", ge=1, le=NS_PER_S
    )
    token_reads_per_poll_max: Int = option(
        512, "READs of tokens posted in one cycle at most; new slots come first.", "READs", ge=1, le=SLOT_COUNT
    )
    submissions_per_burst_max: Int = option(
        64, "Requests whose WRITEs are coalesced into one burst at most.", "requests", ge=1, le=SLOT_COUNT
    )
    queue_max: Int = option(0, "Requests that may wait for a slot; more are refused. 0: no bound.", "requests", ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.poll_min_ns > self.poll_max_ns:
            raise refuse("poll_min_ns", f"= {self.poll_min_ns}: must not exceed poll_max_ns = {self.poll_max_ns}")
        return self


class Trace(Table):
    """The event trace that a run with `--out` leaves behind."""

    format: Literal["parquet", "ndjson", "none"] = option("parquet", "File format of the trace; `none` writes none.")
    token_reads: Literal["ranges", "each"] = option(
        "ranges", "tokens_read events: `ranges` of tokens per READ, or `each` token an event of its own."
    )


class Slo(Table):
    """Objectives; goodput counts the completed requests that meet every one that is set."""

    ttft_ms: Float | None = option(None, "Time to first token, at most.", "ms", gt=0)
    tpot_ms: Float | None = option(None, "Time per output token after the first, at most.", "ms", gt=0)
    e2e_ms: Float | None = option(None, "Time from sending to the last token, at most.", "ms", gt=0)


class Run(Table):
    """How the simulation is carried out."""

    mode: Literal["fast", "step"] = option(
        "fast",
        "`fast`: stretches without a decision are advanced at once; `step`: one event per decode step and per poll, "
        "the slow reference.",
    )
