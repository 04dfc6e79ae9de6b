"""What a plant's slots hold, for the API."""

from __future__ import annotations

from blink.common.config import Scenario
from blink.frontend.openai.bodies import Bounds
from blink.perf.plant import Plant


def bounds_of(scenario: Scenario, plant: Plant) -> Bounds:
    """Of one request: its prompt must fit a prefill graph, and all of it the KV blocks."""
    blocks_tokens = plant.memory.kv_block_count * plant.limits.block_tokens
    context = min(plant.context_tokens, blocks_tokens)
    longest = min(context - 1, plant.prefill_table.fallback.sequence, scenario.limits.prompt_capacity_tokens)
    return Bounds(context, longest, min(context - 1, scenario.limits.output_capacity_tokens))
