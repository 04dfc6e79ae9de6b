"""What the scenario runs on: model, GPU, DPU and the links between them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blink.common.config.fields import REQUIRED, Float, Int, Table, Text, option, refuse

Share = Annotated[Float, Field(ge=0, lt=1)]
Nanoseconds = Annotated[Int, Field(ge=0)]


class Model(Table):
    """The model that is served: a profile or a Hugging Face config.json, not both."""

    profile: Text | None = option(
        None, "Name of a shipped model profile (`blink profiles list`), or the path of a TOML file of that form."
    )
    hf_config: Text | None = option(None, "Path of a Hugging Face `config.json`, in place of a profile.")
    engine: Text | None = option(
        None,
        "Name of a shipped engine profile, or the path of a TOML file of that form; it says what a step consists of "
        "on the GPU. Unset: `vllm` for vllm and sglang, else `tensorrt`.",
    )
    steps: Text | None = option(
        None,
        "Path of a file of measured steps, as `blink calibrate` writes it: what the captured shapes of this engine "
        "take beside the roofline. Unset: the roofline alone.",
    )
    dtype: Literal["bf16", "fp16", "fp8"] = option(
        "bf16", "Number format of weights, activations and KV cache: 2 bytes, or 1 where the GPU computes with fp8."
    )

    @property
    def dtype_bytes(self) -> int:
        """Width of the number format."""
        return 1 if self.dtype == "fp8" else 2

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.profile is None and self.hf_config is None:
            raise refuse("profile", "is missing: give profile or hf_config")
        if self.profile is not None and self.hf_config is not None:
            raise refuse("hf_config", "profile is given too: give one of them")
        return self


class Gpu(Table):
    """The GPU, and how the model is laid over it."""

    profile: Text = option(REQUIRED, "Name of a shipped GPU profile, or the path of a TOML file of that form.")
    tensor_parallel: Int = option(1, "GPUs over which each layer is split.", "GPUs", ge=1, le=64)
    pipeline_parallel: Int | None = option(
        None, "Groups of such GPUs, each of which has a part of the layers. Unset: 1.", "stages", ge=1, le=64
    )
    fabric: Text | None = option(
        None,
        "Name of a shipped fabric profile, or the path of a TOML file of that form: what connects a replica's GPUs. "
        "Unset: collectives by the GPU profile's own figures, NVLink throughout.",
    )
    memory_utilization: Float = option(
        0.9, "Share of GPU memory for weights, activations, graphs and KV cache together.", "share", gt=0, le=1
    )

    @property
    def stages(self) -> int:
        """Parts into which the layers are split."""
        return self.pipeline_parallel or 1

    @property
    def gpu_count(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.stages


class Dpu(Table):
    """The SmartNIC that runs the frontend."""

    profile: Text = option("bluefield-3", "Name of a shipped DPU profile, or the path of a TOML file of that form.")
    cores: Int | None = option(None, "Arm cores in use. Unset: all that the profile has.", "cores", ge=2, le=1024)
    token_cores: Int = option(
        4,
        "Of these cores, those kept for the token reader and the detokenizers; the others serve HTTP and tokenize.",
        "cores",
        ge=1,
        le=1023,
    )

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.cores is not None and self.token_cores >= self.cores:
            raise refuse("token_cores", f"= {self.token_cores}: must be below cores = {self.cores}")
        return self


class Links(Table):
    """The way between client, DPU and GPU memory."""

    profile: Text = option(
        "separate-dpu", "Name of a shipped link profile, or the path of a TOML file of that form; it names the hops."
    )
    background: dict[Text, Share] = option({}, "Hop name -> share of its bandwidth that other traffic takes.", "share")
    extra_latency_ns: dict[Text, Nanoseconds] = option({}, "Hop name -> latency added one way, such as a relay.", "ns")
