"""Sampling: the generator against published vectors, the tokens against reference distributions, on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink.hw.engines.philox import exponentials, philox4x32, token_words
from tests.hw.engine_help import chi_square_bound, kept_distribution, need_torch

VOCABULARY, DRAWS, EOS = 60, 6000, 7


def words(*values: int) -> Any:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(int(word[0]) for word in philox4x32(words(*counter), key)) == expected


def buffers(rows: int, **values: Any) -> Any:
    torch = need_torch()
    from blink.hw.engines.buffers import StepTensors

    made = StepTensors.allocate("cpu", rows, rows, 1, 0)
    for name, value in values.items():
        getattr(made, name).copy_(torch.as_tensor(value))
    return made


def by_torch(logits: Any, steps: Any) -> list[int]:
    from blink.hw.engines.sampling import sample

    sample(logits, steps, len(logits), EOS)
    return [int(token) for token in steps.sampled]


def by_kernel(logits: Any, steps: Any) -> list[int]:
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'blink-twin[torch]'")
    from blink.hw.engines.kernels import sample_kernel

    sample_kernel[(len(logits),)](
        logits, steps.temperature, steps.top_p, steps.top_k, steps.seed, steps.sample_index,
        steps.min_tokens, steps.sampled, logits.shape[1], EOS, BLOCK=128,
    )  # fmt: skip
    return [int(token) for token in steps.sampled]


def some_logits(rows: int, seed: int, size: int = VOCABULARY) -> Any:
    torch = need_torch()
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2


def test_torch_draws_the_numbers_of_the_reference() -> None:
    torch = need_torch()
    from blink.hw.engines.sampling import waits

    drawn = waits(torch.tensor([5, -3], dtype=torch.int32), torch.tensor([9, 0], dtype=torch.int32), 1000)
    expected = [exponentials(token_words(seed, index, 1000)) for seed, index in ((5, 9), (2**32 - 3, 0))]
    assert np.allclose(drawn.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.9, 0), (1.5, 0.8, 12), (1.0, 1.0, 5)]
)
def test_tokens_have_the_distribution_that_was_asked_for(temperature: float, top_p: float, top_k: int) -> None:
    """Chi-square with fixed seeds; engine_help.DEVIATIONS states the bound."""
    logits = some_logits(1, 3)
    steps = buffers(
        DRAWS,
        temperature=[temperature] * DRAWS,
        top_p=[top_p] * DRAWS,
        top_k=[top_k] * DRAWS,
        seed=list(range(DRAWS)),
        sample_index=[4] * DRAWS,
    )
    found = np.bincount(by_torch(logits.expand(DRAWS, -1), steps), minlength=VOCABULARY)
    expected = kept_distribution(logits[0].double().numpy(), temperature, top_p, top_k) * DRAWS
    assert found[expected == 0].sum() == 0
    assert (expected > 0).sum() > 3
    statistic, bound = chi_square_bound(found, expected)
    assert statistic < bound


def test_the_samples_of_one_seed_are_independent() -> None:
    logits = some_logits(1, 8)
    steps = buffers(DRAWS, temperature=[1.0] * DRAWS, seed=[11] * DRAWS, sample_index=list(range(DRAWS)))
    tokens = by_torch(logits.expand(DRAWS, -1), steps)
    expected = kept_distribution(logits[0].double().numpy(), 1.0, 1.0, 0)
    statistic, bound = chi_square_bound(np.bincount(tokens, minlength=VOCABULARY), expected * DRAWS)
    assert statistic < bound
    likely = int(expected.argmax())
    pairs = sum(a == b == likely for a, b in zip(tokens[::2], tokens[1::2], strict=True))
    mean = DRAWS / 2 * expected[likely] ** 2
    assert abs(pairs - mean) < 5 * np.sqrt(mean)


@pytest.mark.parametrize("draw", [by_torch, by_kernel])
def test_temperature_0_is_greedy_and_the_lowest_token_wins_a_tie(draw: Any) -> None:
    logits = some_logits(3, 5, 150)
    logits[1, 140] = logits[1, 20] = 50.0
    steps = buffers(3, temperature=[0.0] * 3, seed=[1, 2, 3], top_k=[0, 1, 7], top_p=[0.1, 1.0, 0.5])
    assert draw(logits, steps) == [int(logits[0].argmax()), 20, int(logits[2].argmax())]


@pytest.mark.parametrize("draw", [by_torch, by_kernel])
def test_a_row_does_not_depend_on_the_others(draw: Any) -> None:
    logits, rows = some_logits(8, 6, 150), 8
    options = {
        "temperature": [0.0, 0.8] * 4,
        "top_p": [1.0, 0.9, 0.6, 0.7] * 2,
        "top_k": [0, 0, 9, 30] * 2,
        "seed": [2**31 - 1, -5, 0, 3, 4, 5, 6, 7],
        "sample_index": [3] * rows,
    }
    together = draw(logits, buffers(rows, **options))
    alone = [
        draw(logits[i : i + 1], buffers(1, **{k: v[i : i + 1] for k, v in options.items()}))[0] for i in range(rows)
    ]
    assert together == alone


def test_the_kernel_draws_what_the_reference_draws() -> None:
    rows = 12
    logits = some_logits(rows, 1, 150)
    options = {
        "temperature": np.linspace(0.2, 2, rows, dtype=np.float32),
        "top_p": np.linspace(1, 0.3, rows, dtype=np.float32),
        "top_k": np.arange(rows, dtype=np.int32) % 4 * 7,
        "seed": np.arange(rows, dtype=np.int32) - 5,
    }
    assert by_kernel(logits, buffers(rows, **options)) == by_torch(logits, buffers(rows, **options))


@pytest.mark.parametrize("draw", [by_torch, by_kernel])
def test_a_single_kept_token_is_drawn_whatever_the_seed(draw: Any) -> None:
    logits = some_logits(6, 9, 150)
    for options in ({"top_k": [1] * 6}, {"top_p": [1e-6] * 6}):
        steps = buffers(6, temperature=[5.0] * 6, seed=list(range(6)), **options)
        assert draw(logits, steps) == logits.argmax(-1).tolist()


def short_rows() -> tuple[Any, dict[str, list[Any]]]:
    """Logits of which EOS is by far the highest, and rows of every kind below, at and above their minimum."""
    rows = 16
    logits = some_logits(rows, 4, 150)
    logits[:, EOS] = 60.0
    return logits, {
        "temperature": [0.0, 0.7, 1.0, 1.3] * 4,
        "top_p": [1.0, 0.9, 1.0, 0.6] * 4,
        "top_k": [0, 0, 5, 140] * 4,
        "seed": list(range(rows)),
        "sample_index": [0] * 4 + [4] * 4 + [5] * 4 + [2**31 - 1] * 4,
        "min_tokens": [1] * 4 + [5] * 4 + [5] * 4 + [-(2**31)] * 4,  # the last: 2^31, as an int32 has it
    }


@pytest.mark.parametrize("draw", [by_torch, by_kernel])
def test_eos_is_not_drawn_before_min_tokens(draw: Any) -> None:
    logits, options = short_rows()
    tokens = draw(logits, buffers(len(logits), **options))
    short = [row for row in range(len(logits)) if row // 4 != 2]
    assert EOS not in [tokens[row] for row in short]
    assert tokens[8:12] == [EOS] * 4
    without = logits.clone()
    without[:, EOS] = -1e30  # as if the model thought nothing of it
    expected = draw(without, buffers(len(logits), **{**options, "min_tokens": [0] * len(logits)}))
    assert [tokens[row] for row in short] == [expected[row] for row in short]


def test_the_kernel_bars_eos_as_the_reference_does() -> None:
    logits, options = short_rows()
    assert by_kernel(logits, buffers(len(logits), **options)) == by_torch(logits, buffers(len(logits), **options))


def test_what_is_left_without_eos_keeps_its_distribution() -> None:
    logits = some_logits(1, 3)
    options = {"temperature": [1.0] * DRAWS, "top_k": [9] * DRAWS, "seed": list(range(DRAWS))}
    steps = buffers(DRAWS, **options, min_tokens=[1] * DRAWS)
    found = np.bincount(by_torch(logits.expand(DRAWS, -1), steps), minlength=VOCABULARY)
    rest = logits[0].double().numpy()
    rest[EOS] = -1e30
    expected = kept_distribution(rest, 1.0, 1.0, 9) * DRAWS
    assert found[expected == 0].sum() == 0
    statistic, bound = chi_square_bound(found, expected)
    assert statistic < bound
