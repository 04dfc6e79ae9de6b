"""Which serving stack is simulated: Blink, Blink's scheduler on the CPU, or a host-driven engine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blink.common.config.fields import Bool, Int, Table, Text, option, refuse

PROFILE_TEXT = "Name of a shipped host-engine profile, or the path of such a TOML file: what a step costs the CPU."
SEQS_TEXT = "Sequences that run together at most."
TOKENS_TEXT = "Tokens that one step computes at most."
CHUNKED_TEXT = "Whether a prompt may be computed in pieces over several steps."
GRAPHS_TEXT = "Whether decode batches are captured as CUDA graphs; if not, the CPU launches every kernel."
OVERLAP_TEXT = "Whether the CPU prepares a step while the GPU runs the one before. Unset: as the profile says."
CACHING_TEXT = "Whether a preempted request finds those of its KV blocks again that nobody has taken meanwhile."
BLOCKS_TEXT = "KV blocks. Unset: what memory leaves."


class BlinkSystem(Table):
    """The scheduler on the GPU, the frontend on a DPU."""

    kind: Literal["blink"]


class CpuResidentSystem(Table):
    """Blink with its scheduler on the CPU: it launches and waits from there; everything else is equal."""

    kind: Literal["cpu-resident"]
    profile: Text = option("cpu-resident", PROFILE_TEXT)


class _HostDriven(Table):
    """What every host-driven engine can be told."""

    max_num_seqs: Int = option(256, SEQS_TEXT, "sequences", ge=1, le=1 << 16)
    max_num_batched_tokens: Int = option(8192, TOKENS_TEXT, "tokens", ge=1, le=1 << 20)
    cuda_graphs: Bool = option(True, GRAPHS_TEXT)
    async_scheduling: Bool | None = option(None, OVERLAP_TEXT)
    prefix_caching: Bool = option(False, CACHING_TEXT)
    num_gpu_blocks: Int | None = option(None, BLOCKS_TEXT, "KV blocks", ge=2, le=1 << 31)

    @model_validator(mode="after")
    def _room_for_decode(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise refuse(
                "max_num_batched_tokens",
                f"= {self.max_num_batched_tokens}: must be at least max_num_seqs = {self.max_num_seqs}",
            )
        return self


class VllmSystem(_HostDriven):
    """In the manner of vLLM V1: an API server process and an engine-core process; prefill and decode in one step."""

    kind: Literal["vllm"]
    profile: Text = option("vllm-0.13", PROFILE_TEXT)
    chunked_prefill: Bool = option(True, CHUNKED_TEXT)


class SglangSystem(_HostDriven):
    """In the manner of SGLang: tokenizer, scheduler and detokenizer processes; prefill goes before decode."""

    kind: Literal["sglang"]
    profile: Text = option("sglang-0.5.8", PROFILE_TEXT)
    chunked_prefill: Bool = option(True, CHUNKED_TEXT)


class TrtllmSystem(_HostDriven):
    """In the manner of TensorRT-LLM: a Python server before a C++ executor; in-flight batching."""

    kind: Literal["trtllm"]
    profile: Text = option("trtllm-1.1", PROFILE_TEXT)
    chunked_prefill: Bool = option(False, CHUNKED_TEXT)
    kv_policy: Literal["guaranteed-no-evict", "max-utilization"] = option(
        "guaranteed-no-evict",
        "`guaranteed-no-evict`: admit only with KV blocks for the longest output; `max-utilization`: for the prompt, "
        "and preempt when blocks run out.",
    )


HostDrivenSystem = VllmSystem | SglangSystem | TrtllmSystem
System = Annotated[
    BlinkSystem | CpuResidentSystem | VllmSystem | SglangSystem | TrtllmSystem, Field(discriminator="kind")
]
DEFAULT_SYSTEM = BlinkSystem(kind="blink")
