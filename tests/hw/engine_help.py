"""What tests of the engines share: skipping where PyTorch or a GPU is missing, prompts, a reference distribution."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.model_files import smollm2_file
from tests.shared import ROOT

Floats = NDArray[np.float64]
CELL_MIN = 10.0
"""Expected count below which outcomes are pooled, as a chi-square test asks for."""
DEVIATIONS = 4.5
"""The bound on a chi-square statistic in standard deviations of its distribution; false alarms are about 1 in 10^5."""


def need_torch() -> Any:
    """PyTorch, or skip the module. Without a GPU, Triton's kernels run in its interpreter."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'blink-twin[torch]'")
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return torch


def need_gpu() -> Any:
    """PyTorch with a GPU, or skip the module."""
    torch = need_torch()
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU; PyTorch sees none", allow_module_level=True)
    return torch


def prompts_of(tokens: Sequence[int], count: int, shortest: int = 5, longest: int = 500) -> list[list[int]]:
    """`count` pieces of a text, of lengths from `shortest` to `longest` in equal ratios."""
    lengths = np.round(np.geomspace(shortest, longest, count)).astype(int).tolist()
    starts = np.linspace(0, len(tokens) - longest, count).astype(int).tolist()
    return [list(tokens[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def smollm2_prompts(count: int) -> list[list[int]]:
    """`count` prompts of 5 to 500 tokens, out of this project's pages; skips where the model is missing."""
    try:
        smollm2_file()
    except InputError as problem:
        pytest.skip(str(problem))
    from blink.frontend.tokenizer import smollm2

    pages = sorted((ROOT / "docs").glob("*.md"))
    return prompts_of(smollm2.load().encode("\n".join(page.read_text("utf-8") for page in pages)), count)


def smollm2_question() -> list[int]:
    """A conversation that SmolLM2 answers in a sentence and then ends; skips where the model is missing."""
    try:
        smollm2_file()
    except InputError as problem:
        pytest.skip(str(problem))
    from blink.frontend.tokenizer import smollm2

    return smollm2.load().chat([{"role": "user", "content": "What is the capital of France?"}])


def kept_distribution(logits: Floats, temperature: float, top_p: float, top_k: int) -> Floats:
    """Probability of each token after temperature, top-k and top-p, by sorting."""
    order = np.argsort(-logits, kind="stable")
    weight = np.exp((logits[order] - logits.max()) / temperature)
    if top_k:
        weight[top_k:] = 0
    if top_p < 1:
        reached = np.cumsum(weight) / weight.sum()
        weight[int(np.searchsorted(reached, top_p)) + 1 :] = 0
    result = np.zeros_like(logits)
    result[order] = weight / weight.sum()
    return result


def chi_square_bound(found: NDArray[np.int64], expected: Floats) -> tuple[float, float]:
    """(statistic, bound) of observed against expected counts; cells with fewer than CELL_MIN expected are pooled."""
    big = expected >= CELL_MIN
    seen = np.append(found[big], found[~big].sum())
    wanted = np.append(expected[big], expected[~big].sum())
    seen, wanted = (seen, wanted) if wanted[-1] >= CELL_MIN else (seen[:-1], wanted[:-1])
    freedom = max(len(wanted) - 1, 1)
    return float(((seen - wanted) ** 2 / wanted).sum()), freedom + DEVIATIONS * float(np.sqrt(2 * freedom))
