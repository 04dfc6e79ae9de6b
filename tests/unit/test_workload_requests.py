"""Requests: the columns hold what they promise, or are not made."""

from __future__ import annotations

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.workload.requests import COLUMNS, Requests, synthetic, with_arrivals


def columns(**changed: list[int]) -> dict[str, np.ndarray]:
    plain = {"arrival_ns": [0, 5], "prompt_tokens": [1, 2], "output_tokens": [3, 4], "source_row": [2, 3],
             "parent": [-1, 0], "think_ns": [0, 7]}  # fmt: skip
    return {name: np.array(values, dtype=np.int64) for name, values in (plain | changed).items()}


def test_columns_are_kept_and_read_only() -> None:
    requests = Requests(**columns())
    assert len(requests) == 2 and requests.has_arrivals and requests.report is None
    for name in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(requests, name)[0] = 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"arrival_ns": [5, 0]},
        {"arrival_ns": [-1, 0]},
        {"prompt_tokens": [0, 1]},
        {"output_tokens": [1, 0]},
        {"parent": [-1, 1]},
        {"parent": [0, -1]},
        {"parent": [-2, -1]},
        {"think_ns": [0, -1]},
        {"think_ns": [0]},
    ],
)
def test_columns_that_break_a_promise_are_not_made(wrong: dict[str, list[int]]) -> None:
    with pytest.raises(ValueError, match=r"Requests"):
        Requests(**columns(**wrong))


def test_a_column_of_another_type_is_refused() -> None:
    wrong = columns()
    wrong["arrival_ns"] = wrong["arrival_ns"].astype(np.float64)
    with pytest.raises(ValueError, match="float64"):
        Requests(**wrong)


def test_synthetic_requests_depend_on_nothing_and_stand_in_no_file() -> None:
    arrival_ns = np.array([0, 1])
    requests = synthetic(arrival_ns, np.array([1, 2]), np.array([3, 4]))
    arrival_ns[0] = 9
    assert requests.arrival_ns.tolist() == [0, 1]
    assert requests.source_row.tolist() == requests.parent.tolist() == [-1, -1]
    assert len(synthetic(*(np.zeros(0, np.int64),) * 3)) == 0


def test_with_arrivals_gives_times_to_lengths() -> None:
    requests = with_arrivals(synthetic(np.zeros(2, np.int64), np.array([1, 2]), np.array([3, 4])), np.array([0, 9]))
    assert requests.arrival_ns.tolist() == [0, 9] and requests.has_arrivals
    with pytest.raises(InputError, match="1 times for 2 requests"):
        with_arrivals(requests, np.array([0]))
