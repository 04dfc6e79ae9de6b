"""Which requests a plant can serve at all, and with how many output tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blink.common.policy import kv_blocks_needed
from blink.common.request import Request
from blink.common.results import I64
from blink.perf.plant import Plant


class Load(Protocol):
    """Columns of the requests (blink.workload.requests.Requests), int64, one entry a request."""

    @property
    def prompt_tokens(self) -> I64: ...

    @property
    def output_tokens(self) -> I64: ...

    @property
    def source_row(self) -> I64: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request must keep to: tokens of the context, of a prompt, of an output; KV blocks."""

    context_tokens: int
    prompt_tokens_max: int
    prompt_rule: str  # in words, for a refusal
    output_tokens_max: int
    block_tokens: int
    block_count: int
    output_rule: str = ""  # in words, for outputs that are cut


def request_rows(
    plant: Plant, output_capacity_tokens: int, load: Load, asked: I64
) -> tuple[list[Request], dict[int, str], list[str]]:
    """Requests as the client sends them, why the frontend will refuse some of them, and notes for the report.

    `asked` is the output_tokens_max of each request before the context and the capacity of a slot cut it.
    """
    bounds = bounds_of(plant, output_capacity_tokens)
    rows, refusals, cut = bounded_rows(bounds, load, asked)
    return rows, refusals, [cut_note(bounds, cut)] if cut else []


def bounds_of(plant: Plant, output_capacity_tokens: int) -> Bounds:
    """What a request of Blink must keep to."""
    longest = min(plant.context_tokens - 1, plant.prefill_table.fallback.sequence)
    rule = f"the context holds {longest} and one of output"
    blocks = plant.memory.kv_block_count
    cut = (
        f"the context ({plant.context_tokens} tokens) and the output capacity of a slot "
        f"({output_capacity_tokens} tokens) hold"
    )
    return Bounds(plant.context_tokens, longest, rule, output_capacity_tokens, plant.limits.block_tokens, blocks, cut)


def cut_note(bounds: Bounds, cut: int) -> str:
    """What a reader must know if `cut` requests get less output than they asked for."""
    return f"output_tokens_max of {cut} requests was cut to what {bounds.output_rule}"


def bounded_rows(bounds: Bounds, load: Load, asked: I64) -> tuple[list[Request], dict[int, str], int]:
    """The requests, why some will be refused, and how many others had their output cut."""
    rows, refusals, cut = [], {}, 0
    columns = (load.prompt_tokens.tolist(), load.output_tokens.tolist(), load.source_row.tolist(), asked.tolist())
    for index, (prompt, eos_at, source_row, wanted) in enumerate(zip(*columns, strict=True)):
        most = min(wanted, bounds.context_tokens - prompt, bounds.output_tokens_max)
        if prompt > bounds.prompt_tokens_max:
            refusals[index] = f"the prompt has {prompt} tokens, {bounds.prompt_rule}"
        else:
            need = kv_blocks_needed(prompt, most, bounds.block_tokens)
            if need > bounds.block_count:
                refusals[index] = f"needs {need} KV blocks, the GPU has {bounds.block_count}"
        cut += most < wanted and index not in refusals
        rows.append(Request(index, source_row, prompt, eos_at, max(most, 1), -1))
    return rows, refusals, cut
