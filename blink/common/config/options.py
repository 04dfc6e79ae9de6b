"""What-if switches of serving, the same for every engine: each is a mechanism of its own, off unless it is set."""

from __future__ import annotations

from blink.common.config.fields import REQUIRED, Bool, Float, Int, Table, option


class Speculation(Table):
    """A draft model proposes tokens, one step of the model verifies them all."""

    draft_tokens: Int = option(REQUIRED, "Tokens that are proposed before each step.", "tokens", ge=1, le=64)
    acceptance: Float = option(
        REQUIRED, "Probability that a proposed token is accepted, if all before it were.", "share", ge=0, le=1
    )
    draft_cost: Float = option(
        0.1, "Time of one draft step, and memory of the draft's weights, over the model's own.", "ratio", ge=0, le=1
    )


class Serving(Table):
    """What-if switches of serving."""

    chunk_tokens: Int | None = option(
        None,
        "Chunked prefill: prompt tokens that are computed before what decodes goes on. For host-driven engines: tokens "
        "of one step. Unset: as the engine has it; Blink computes a prompt in one piece.",
        "tokens",
        ge=16,
        le=1 << 20,
    )
    prefix_caching: Bool = option(
        False,
        "Keys and values of prompts stay in free KV blocks, and prompts that begin alike do not compute them again. "
        "Needs a trace with block hashes (mooncake, bailian), or workload.shared_prefix.",
    )
    kv_offload_gib: Float = option(
        0.0,
        "Host memory of a replica for keys and values that were evicted from the GPU; they come back over PCIe. Needs "
        "prefix_caching.",
        "GiB",
        ge=0,
        le=1e6,
    )
    speculation: Speculation | None = option(None, "Speculative decoding. Unset: none.")
