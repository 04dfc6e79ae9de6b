"""The dialects of trace files, one module a family; `DIALECTS` lists them, the most specific first."""

from __future__ import annotations

from blink.workload.dialects.azure import AZURE_2023, AZURE_2024, AZURE_2025
from blink.workload.dialects.bailian import BAILIAN
from blink.workload.dialects.base import Dialect
from blink.workload.dialects.burstgpt import BURSTGPT
from blink.workload.dialects.llmservingsim import LLMSERVINGSIM
from blink.workload.dialects.mooncake import MOONCAKE
from blink.workload.dialects.sharegpt import SHAREGPT
from blink.workload.dialects.splitwise import SPLITWISE
from blink.workload.dialects.vidur import VIDUR, VIDUR_LENGTHS
from blink.workload.dialects.vllm import VLLM_BENCH, VLLM_RUN

# A file is of the first dialect whose `needs` it has, so a dialect that needs more stands before one that needs fewer.
DIALECTS: tuple[Dialect, ...] = (
    AZURE_2025,
    AZURE_2024,
    AZURE_2023,
    BURSTGPT,
    SPLITWISE,
    VIDUR,
    VIDUR_LENGTHS,
    LLMSERVINGSIM,
    BAILIAN,
    MOONCAKE,
    VLLM_RUN,
    VLLM_BENCH,
    SHAREGPT,
)

__all__ = ["DIALECTS", "Dialect"]
