"""From a scenario to requests: counts, durations, traces with and without times, what clients ask for, who hangs up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.common.units import NS_PER_S
from blink.workload.build import NEVER_NS, build_load, build_requests, cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.requests import Requests
from tests.runs import SCENARIO

FIXED = {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20}
POISSON = {"kind": "poisson", "rate": 50.0}


def scenario(*overrides: str, **workload: Any) -> Scenario:
    return parse_scenario({**SCENARIO, "workload": workload}, "s", overrides)


@pytest.fixture
def timed(tmp_path: Path) -> str:
    path = tmp_path / "timed.csv"
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:17:{second:02d}.0000000,{100 + second},{10 + second}" for second in range(10)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def untimed(tmp_path: Path) -> str:
    path = tmp_path / "untimed.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "30,3\n40,4\n50,5\n", encoding="utf-8")
    return str(path)


def test_a_number_of_requests_is_that_number() -> None:
    assert len(build_requests(scenario(requests=77, arrivals=POISSON, lengths=FIXED))) == 77


@pytest.mark.parametrize(
    "arrivals",
    [
        POISSON,
        {"kind": "gamma", "rate": 50.0, "burstiness": 0.1},
        {"kind": "constant", "rate": 50.0},
        {"kind": "curve", "points": [[0, 20.0], [3, 90.0]]},
    ],
)
def test_a_duration_keeps_what_is_sent_within_it(arrivals: dict[str, Any]) -> None:
    by_time = build_requests(scenario(duration_s=4, arrivals=arrivals, lengths=FIXED))
    more = build_requests(scenario(requests=len(by_time) + 1, arrivals=arrivals, lengths=FIXED))
    assert by_time.arrival_ns.tolist() == more.arrival_ns[:-1].tolist()
    assert by_time.arrival_ns[-1] < 4 * NS_PER_S <= more.arrival_ns[-1]


def test_of_number_and_duration_the_first_to_end_counts() -> None:
    short = build_requests(scenario(duration_s=4, requests=5, arrivals=POISSON, lengths=FIXED))
    assert len(short) == 5
    assert len(build_requests(scenario(duration_s=4, requests=5000, arrivals=POISSON, lengths=FIXED))) < 1000


def test_the_same_seed_gives_the_same_load_and_another_seed_another() -> None:
    load = {"requests": 50, "arrivals": POISSON, "lengths": {"kind": "sharegpt-like"}}
    one, same, other = (build_requests(scenario(f"seed={seed}", **load)) for seed in (3, 3, 4))
    assert one.arrival_ns.tolist() == same.arrival_ns.tolist()
    assert one.prompt_tokens.tolist() == same.prompt_tokens.tolist()
    assert one.arrival_ns.tolist() != other.arrival_ns.tolist()
    assert one.prompt_tokens.tolist() != other.prompt_tokens.tolist()


def test_lengths_do_not_shift_when_arrivals_change() -> None:
    lengths = {"kind": "sharegpt-like"}
    poisson = build_requests(scenario(requests=50, arrivals=POISSON, lengths=lengths))
    at_once = build_requests(scenario(requests=50, arrivals={"kind": "all-at-once"}, lengths=lengths))
    assert poisson.prompt_tokens.tolist() == at_once.prompt_tokens.tolist()


def test_a_trace_with_times_replaces_arrivals_and_lengths_and_the_scenario_says_so(timed: str) -> None:
    given = scenario(trace={"file": timed}, arrivals=POISSON, lengths=FIXED, duration_s=5, requests=100)
    resolved, requests = build_load(given)
    assert requests.arrival_ns.tolist() == [second * NS_PER_S for second in range(5)]
    assert requests.prompt_tokens.tolist() == [100, 101, 102, 103, 104]
    assert resolved.workload.arrivals is not None
    assert resolved.workload.arrivals.kind == "trace"
    assert resolved.workload.lengths is None
    assert parse_scenario(resolved.resolved(), "again").resolved() == resolved.resolved()


def test_the_trace_can_be_cut_and_scaled(timed: str) -> None:
    requests = build_requests(scenario(trace={"file": timed, "limit": 4, "rate_scale": 2.0}))
    assert requests.arrival_ns.tolist() == [0, NS_PER_S // 2, NS_PER_S, 3 * NS_PER_S // 2]
    assert len(build_requests(scenario(trace={"file": timed}, requests=3))) == 3


def test_a_trace_without_times_takes_the_arrivals(untimed: str) -> None:
    resolved, requests = build_load(scenario(trace={"file": untimed}, arrivals={"kind": "constant", "rate": 4}))
    assert requests.arrival_ns.tolist() == [0, NS_PER_S // 4, NS_PER_S // 2]
    assert requests.output_tokens.tolist() == [3, 4, 5]
    assert resolved.workload.arrivals is not None
    assert resolved.workload.arrivals.kind == "constant"


def test_a_trace_without_times_needs_arrivals(untimed: str) -> None:
    with pytest.raises(InputError, match=r"untimed.csv: has no arrival times: set workload.arrivals"):
        build_requests(scenario(trace={"file": untimed}))


def test_a_trace_of_another_dialect_is_refused(timed: str) -> None:
    with pytest.raises(InputError, match="not of dialect mooncake"):
        build_requests(scenario(trace={"file": timed, "dialect": "mooncake"}))


def test_lengths_can_come_from_a_file(untimed: str) -> None:
    lengths = {"kind": "file", "file": untimed, "order": "in-order"}
    assert build_requests(scenario(requests=2, arrivals=POISSON, lengths=lengths)).prompt_tokens.tolist() == [30, 40]
    drawn = build_requests(scenario(requests=50, arrivals=POISSON, lengths={**lengths, "order": "resampled"}))
    assert set(zip(drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) == {
        (30, 3),
        (40, 4),
        (50, 5),
    }
    with pytest.raises(InputError, match="4 lengths asked of 3"):
        build_requests(scenario(requests=4, arrivals=POISSON, lengths=lengths))


def test_a_closed_loop_over_a_trace_has_no_duration(untimed: str) -> None:
    loop = {"kind": "closed-loop", "concurrency": 2}
    assert len(build_requests(scenario(trace={"file": untimed}, arrivals=loop))) == 3
    with pytest.raises(InputError, match=r"workload.duration_s = 5.0: closed-loop has no end in time"):
        build_requests(scenario(trace={"file": untimed}, arrivals=loop, duration_s=5))


def asked(kind: dict[str, Any]) -> list[int]:
    given = scenario(requests=3, arrivals=POISSON, lengths={**FIXED, "output_tokens": 10}, output_tokens_max=kind)
    return list(output_tokens_asked(given, build_requests(given)).tolist())


def test_what_clients_ask_for() -> None:
    assert asked({"kind": "traced"}) == [10, 10, 10]
    assert asked({"kind": "cap", "value": 64}) == [64, 64, 64]
    assert asked({"kind": "multiple", "value": 1.1}) == [11, 11, 11]
    assert asked({"kind": "multiple", "value": 1.01}) == [11, 11, 11]


def test_some_clients_hang_up_after_their_patience() -> None:
    given = scenario(requests=4000, arrivals=POISSON, lengths=FIXED, cancel={"fraction": 0.25, "after_s": 2.0})
    after_ns = cancel_after_ns(given, build_requests(given))
    left = after_ns[after_ns != NEVER_NS]
    assert 900 < len(left) < 1100
    assert left.mean() == pytest.approx(2 * NS_PER_S, rel=0.15)
    assert (cancel_after_ns(scenario(requests=9, arrivals=POISSON, lengths=FIXED), _nine()) == NEVER_NS).all()


def _nine() -> Requests:
    return build_requests(scenario(requests=9, arrivals=POISSON, lengths=FIXED))


def test_rows_left_out_of_a_trace_become_notes(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,0\n2023-11-16 18:17:04,5,2\n", encoding="utf-8"
    )
    traced = scenario(trace={"file": str(path)})
    requests = build_requests(traced)
    assert len(requests) == 1
    assert any("holes.csv: 1 of 2 rows left out" in note for note in load_notes(traced, requests))
    assert load_notes(scenario(requests=9, arrivals=POISSON, lengths=FIXED), _nine()) == []


def test_drawn_lengths_outside_the_range_of_their_fit_become_a_note() -> None:
    drawn = scenario(requests=2000, arrivals=POISSON, lengths={"kind": "sharegpt-like"})
    requests = build_requests(drawn)
    least, most = requests.prompt_tokens.min(), requests.prompt_tokens.max()
    assert least < 262 and most > 3998
    (note,) = load_notes(drawn, requests)
    assert note.startswith(f"outside a profile's range: sharegpt-like: prompt_tokens {least} to {most} in the run")
    assert note.endswith("262 to 3998 where prompt_tokens_sigma holds")
