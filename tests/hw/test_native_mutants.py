"""Schedulers compiled wrong on purpose: each is caught, by a named invariant or by a token that is not right."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from blink.common.checker import check_trace
from blink.common.request import Request
from blink.common.verdict import Verdict
from blink.hw.native.driver import Frontend
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.lockstep import Arrival, Cancel, LockStep
from tests.hw.native_help import needs_compiler, scenario_of, serve_scenario, small_settings, trace_recorder

pytestmark = needs_compiler
LOAD: list[Arrival | Cancel] = [
    *(Arrival(0, request_id, 6, 8, 8) for request_id in range(6)),
    Arrival(2, 6, 6, 4, 9),
    Cancel(3, 1),
]


def mutant(name: str) -> tuple[str, ...]:
    """Compiler flags of a mutant, without optimisation because that compiles faster."""
    return ("-O0", f"-DBLINK_MUTANT_{name}") if name else ("-O0",)


def lock_step(name: str, folder: Path) -> tuple[Verdict, int]:
    """The verdict on the trace of LOAD, and how many tokens were wrong."""
    recorder = trace_recorder(folder / "trace.ndjson")
    with LockStep(small_settings(window=4), flags=mutant(name), recorder=recorder) as native:
        with suppress(RuntimeError):  # stuck: the checker finds the slots that never came back
            native.run(LOAD, iterations_max=200)
        slots = native.frontend.slots
        counts = {"free": slots.free_count, "in_use": slots.in_use_count, "recovering": 0}
        recorder.close(counts, complete=True, idle_status_reads=0)
        wrong = native.frontend.counters.wrong_tokens
    return check_trace(folder / "trace.ndjson"), wrong


def test_the_unchanged_scheduler_conforms(tmp_path: Path) -> None:
    verdict, wrong = lock_step("", tmp_path)
    assert (verdict.code, wrong) == (0, 0)


@pytest.mark.parametrize(
    ("name", "code", "invariant"),
    [
        ("CANCEL_SEEN_AND_IGNORED", 2, "I10"),
        ("NO_CAPACITY_GUARD", 2, "I6"),
        ("NEVER_RESUME", 2, "I1"),
        ("RELAUNCH_ADOPTS_NOTHING", 2, "I10"),
    ],
)
def test_the_checker_names_what_a_mutant_breaks(name: str, code: int, invariant: str, tmp_path: Path) -> None:
    verdict, _ = lock_step(name, tmp_path)
    assert verdict.code == code
    assert invariant in str(verdict)


def test_blocks_that_two_requests_share_show_as_wrong_tokens(tmp_path: Path) -> None:
    _, wrong = lock_step("KV_BLOCKS_RETURNED_AT_CLAIM", tmp_path)
    assert wrong > 0


def test_a_count_that_is_published_before_its_token_shows_as_a_wrong_token(tmp_path: Path) -> None:
    # The reader must look between two stores: one run may miss that, twenty in a row do not.
    for attempt in range(20):
        result = serve_scenario(scenario_of(), tmp_path / f"{attempt}.ndjson", flags=mutant("COUNT_BEFORE_TOKEN"))
        if result.counters["wrong_tokens"]:
            break
    assert result.counters["wrong_tokens"] > 0
    assert any("differ from what the engine sampled" in note for note in result.notes)


@pytest.mark.parametrize(("name", "allowed"), [("", range(1)), ("CLAIM_WITHOUT_CAS", range(1, 1 << 30))])
def test_only_compare_and_swap_gives_a_slot_to_one_instance(name: str, allowed: range) -> None:
    """One scheduler alone never loses a claim, so the mutant needs an overlapping second one (I4)."""
    library = load_library(mutant(name))
    instance = Instance(library, small_settings(), copies=2)
    frontend = Frontend(instance, lambda: 0, lambda request, now_ns: None, None, prompt_area_tokens=1000)
    request = Request(0, -1, 5, 5, 5, 0)
    frontend.receive(request)
    frontend.post()
    assert library.race_claims(instance.base, request.slot, 300) in allowed
    instance.close()
