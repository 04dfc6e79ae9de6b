"""Length distributions: how many tokens a request's prompt has and after how many output tokens the model stops.

Every function takes (rng, count, ...) and returns (prompt_tokens, output_tokens), two int64 columns. Random ones
consume two uniform numbers a request, in request order, so that a longer run begins with the requests of a shorter one.
"""

from __future__ import annotations

import numpy as np

from blink.common.errors import InputError
from blink.workload.lengths_profile import LengthsProfile
from blink.workload.lognormal import TruncatedLogNormal
from blink.workload.requests import Column, Requests

Lengths = tuple[Column, Column]


def fixed(rng: np.random.Generator, count: int, prompt_tokens: int, output_tokens: int) -> Lengths:
    """The same lengths for all; draws nothing from `rng`."""
    _check_range("prompt_tokens", prompt_tokens, prompt_tokens)
    _check_range("output_tokens", output_tokens, output_tokens)
    return np.full(count, prompt_tokens, dtype=np.int64), np.full(count, output_tokens, dtype=np.int64)


def uniform(
    rng: np.random.Generator, count: int, prompt_tokens: tuple[int, int], output_tokens: tuple[int, int]
) -> Lengths:
    """Whole numbers, equally likely from minimum to maximum, both included, given as (minimum, maximum)."""
    _check_range("prompt_tokens", *prompt_tokens)
    _check_range("output_tokens", *output_tokens)
    uniforms = rng.random((count, 2))
    return _spread(uniforms[:, 0], *prompt_tokens), _spread(uniforms[:, 1], *output_tokens)


def lognormal(
    rng: np.random.Generator, count: int, prompt_tokens: TruncatedLogNormal, output_tokens: TruncatedLogNormal
) -> Lengths:
    """Independent truncated log-normal lengths; see TruncatedLogNormal for what mean, sigma and the bounds mean."""
    uniforms = rng.random((count, 2))
    return prompt_tokens.quantile(uniforms[:, 0]), output_tokens.quantile(uniforms[:, 1])


def sharegpt_like(rng: np.random.Generator, count: int) -> Lengths:
    """Log-normal lengths with the published means of ShareGPT v3: 1019 prompt and 463 output tokens after truncation.

    The spread is not published with the means. The prompts' sigma is fitted to a ShareGPT-derived sample, the outputs'
    sigma is borrowed from a public conversation trace; values, bounds and sources stand in the profile sharegpt-like,
    the fit in docs/workloads.md.
    """
    profile = LengthsProfile.load("sharegpt-like")
    return lognormal(rng, count, profile.prompt_tokens, profile.output_tokens)


def in_order(rng: np.random.Generator, count: int, source: Requests) -> Lengths:
    """The lengths of a trace's first `count` requests, in its order; draws nothing from `rng`.

    Raises InputError when the trace is shorter than that.
    """
    if count > len(source):
        asked = f"{count} lengths asked of {len(source)}"
        raise InputError(f"{_name(source)}: {asked}; ask for fewer or sample with replacement")
    return source.prompt_tokens[:count].copy(), source.output_tokens[:count].copy()


def resampled(rng: np.random.Generator, count: int, source: Requests) -> Lengths:
    """Pairs (prompt, output) drawn from a trace with replacement, each pair kept together."""
    if not len(source):
        raise InputError(f"{_name(source)}: no lengths to sample from")
    picks = rng.integers(0, len(source), count)
    return source.prompt_tokens[picks], source.output_tokens[picks]


def _name(source: Requests) -> str:
    return source.report.file if source.report else "requests"


def _spread(uniforms: np.typing.NDArray[np.float64], minimum: int, maximum: int) -> Column:
    return minimum + np.floor(uniforms * (maximum - minimum + 1)).astype(np.int64)


def _check_range(field: str, minimum: int, maximum: int) -> None:
    if not 1 <= minimum <= maximum:
        raise InputError(f"{field}: {minimum}..{maximum} tokens are not allowed; need 1 <= minimum <= maximum")
