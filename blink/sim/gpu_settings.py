"""What bounds the simulated scheduler, and its what-if switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blink.common import policy
from blink.common.policy import GraphTable
from blink.perf.throttle import Throttle
from blink.sim.reuse import Reuse


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What-if switches of the scheduler.

    `chunk_tokens`: of a prompt in one graph, 0 for all. `reuse`: keys and values that are there already. `context_ns`:
    what a prefill takes for the (new tokens, context) of a prompt beyond its new tokens.
    """

    chunk_tokens: int
    reuse: Reuse | None
    context_ns: Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What bounds the scheduler: limits of the policy, graph tables, KV blocks, time limit (0: none).

    `graph_timeout_ns`: a graph that runs longer is given up, and nothing is launched any more (0: it may run for ever).
    `throttle`: the GPU's clock, None if it does not fall. `options`: what-if switches.
    """

    limits: policy.Limits
    prefill_table: GraphTable
    decode_table: GraphTable
    kv_block_count: int
    time_limit_ns: int
    stepwise: bool
    graph_timeout_ns: int = 0
    throttle: Throttle | None = None
    options: GpuOptions | None = None
