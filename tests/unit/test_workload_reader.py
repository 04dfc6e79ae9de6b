"""The reader's options, and its refusals: one line that names the file, the row and the value."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.workload.reader import read_trace
from tests.shared import shared_path

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n"
MOON = b'{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
SESSION = b'{"arrival_time_ns": 0, "sub_requests": %s}\n'


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message and len(message) < 600
    return message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b" \n\r\n\t", "empty file"),
        (b"\xef\xbb\xbf\n", "empty file"),
        (b"\x1f\x8b\x08\0abc", "compressed with gzip"),
        (b"PK\3\4\0\0", "a binary file"),
        (b"\xff\xfea\0b\0", "UTF-16"),
        (VIDUR + b"1,2,\xe9\n", "not UTF-8 text (bytes e9 0a)"),
        (VIDUR, "a header and no rows"),
        (VIDUR + b"\n\n", "a header and no rows"),
        (b"[]", "an empty JSON array"),
        (b"hello world\n", "not a trace of a known dialect: found CSV columns 'hello world'"),
        (b"a,b,c\n1,2,3\n", "not a trace of a known dialect: found CSV columns 'a, b, c'; known: azure-2025,"),
        (b'{"a": 1}\n', "not a trace of a known dialect: found JSON keys 'a'"),
        (b"a,b,a\n1,2,3\n", "row 1: column 'a' stands twice"),
        (VIDUR + b"1,2,3\n1,2\n", "row 3: 2 columns where the header has 3: '1,2'"),
        (VIDUR + b"1,2,3\n1,2,3,4\n", "row 3: 4 columns where the header has 3: '1,2,3,4'"),
        (VIDUR + b"1,2,3\n\n1,abc,3\n", "row 4: num_prefill_tokens 'abc' is not a number"),
        (VIDUR + b"1,2,\n", "row 2: num_decode_tokens '' is not a number"),
        (VIDUR + b"1,2.5,3\n", "row 2: num_prefill_tokens '2.5' is not a whole number"),
        (VIDUR + b"1,2,99999999999\n", "row 2: num_decode_tokens '99999999999' is out of range"),
        (VIDUR + b"1e30,2,3\n", "row 2: arrived_at '1e30' is out of range"),
        (VIDUR + b"x" * 500 + b",2,3\n", "row 2: arrived_at 'xxx"),
        (VIDUR + b'1,"2,3\n', "row 2: not CSV"),
        (VIDUR + b'1,"2"x,3\n', "row 2: not CSV"),
        (AZURE + b"2023-11-16 10:00:00,1,1\nyesterday,1,1\n", "row 3: TIMESTAMP 'yesterday' is not a time"),
        (AZURE + b"2023-11-31 10:00:00,1,1\n", "row 2: TIMESTAMP '2023-11-31 10:00:00' is not a date"),
        (AZURE + b"2023-11-16 10:00:00,1,1\n2023-11-16 10:00:00Z,1,1\n", "row 3: TIMESTAMP '2023-11-16 10:00:00Z'"),
        (AZURE + b"2023-11-16 10:00:00Z,1,1\n2023-11-16 10:00:00,1,1\n", "00:00' has no time zone; the dialect's"),
        (b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00,-2,9,1\n", "row 2: NumImages -2"),
        (MOON + b'{"timestamp": 1, "input_len', "row 2: bad JSON"),
        (MOON + b"\n[1, 2]\n", "row 3: [1, 2] is not a JSON object"),
        (MOON + b'{"timestamp": 1, "input_length": 1}\n', "row 2: output_length is missing; found 'timestamp, in"),
        (MOON + MOON.replace(b"0", b'"0"').replace(b'"0"', b"true", 1), "row 2: timestamp True is not a number"),
        (MOON + MOON.replace(b"0", b"[]", 1), "row 2: timestamp [] is not a number"),
        (MOON + MOON.replace(b"0", b"1" * 5000, 1), "row 2: bad JSON: a number is out of range"),
        (MOON + MOON.replace(b"0", b"1e99999999999999999999", 1), "row 2: "),
        (b"[" * 100_000, "row 1: bad JSON: nested too deeply"),
        (b'[{"conversations": [{"from": "human", "value": "a"}', "row 1: bad JSON"),
        (b'[\n{"conversations": []},\n{"conversations": ]\n]', "row 3: bad JSON"),
        (b'[{"conversations": []}, 7]', "row 2: 7 is not a JSON object"),
        (b'[{"conversations": 5}]', "row 1: conversations 5 is not a list"),
        (b'[{"conversations": [{"from": "human"}]}]', "row 1: conversations[0] {'from': 'human'} has no texts"),
        (SESSION % b"3", "row 1: sub_requests 3 is not a list"),
        (SESSION % b"[4]", "row 1: sub_requests[0] 4 is not a JSON object"),
        (SESSION % b'[{"input_toks": 1}]', "row 1, sub_requests[0]: output_toks is missing"),
        (
            SESSION % b'[{"input_toks": 1, "output_toks": 1, "tool_duration_ns": -5}]',
            "row 1, sub_requests[0]: tool_duration_ns -5 is negative",
        ),
        (b'{"input_lens": [1], "output_lens": [1, 2], "start_times": [0]}', "row 1: output_lens has 2 values where"),
        (b'{"input_lens": [1], "output_lens": 4, "start_times": [0]}', "row 1: output_lens 4 is not a list"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert says in message


def test_long_values_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_bytes(VIDUR + b"x" * 100_000 + b",2,3\n")
    assert "x..." in refusal(path)
    path.write_bytes(b",".join(b"column%d" % n for n in range(10_000)) + b"\n")
    assert len(refusal(path)) < 400


def test_no_usable_request_is_refused_with_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "nothing.csv"
    path.write_bytes(VIDUR + b"1,0,3\n1,0,3\n1,3,-1\n")
    message = refusal(path)
    assert message == (f"{path}: no usable request in 3 rows (vidur): output tokens negative: 1, prompt tokens zero: 2")


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.csv") == f"{tmp_path / 'absent.csv'}: no such file"
    assert refusal(tmp_path).endswith(": a directory, not a trace file")
    assert "no file can have this name" in refusal(Path("a\0b"))
    assert "cannot be read" in refusal(Path("x" * 300))
    locked = tmp_path / "locked.csv"
    locked.write_bytes(VIDUR + b"1,2,3\n")
    locked.chmod(0)
    if os.geteuid() != 0:  # root may read anything
        assert refusal(locked) == f"{locked}: cannot be read: Permission denied"


def test_a_forced_dialect_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "moon.jsonl"
    path.write_bytes(MOON)
    report = read_trace(path, dialect="mooncake").report
    assert report is not None and report.dialect == "mooncake"
    message = refusal(path, dialect="azure-2024")
    assert message == (
        f"{path}: not of dialect azure-2024: found JSON keys 'timestamp, input_length, output_length' "
        "(looks like mooncake); azure-2024 needs CSV with TIMESTAMP (calendar time with zone), "
        "ContextTokens, GeneratedTokens"
    )
    assert "dialect 'moon' is unknown; known: azure-2025" in refusal(path, dialect="moon")
    path.write_bytes(AZURE + b"2023-11-16 10:00:00Z,1,1\n")
    assert "looks like azure-2024" in refusal(path, dialect="azure-2023")


def test_a_vidur_trace_may_be_taken_for_its_lengths_only_when_it_has_no_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes(VIDUR + b"1,2,3\n")
    assert "looks like vidur" in refusal(path, dialect="vidur-lengths")


def test_limit_counts_requests_and_stops_reading(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes(VIDUR + b"1,0,1\n9,1,1\n5,2,1\n7,3,1\nbroken\n")
    requests = read_trace(path, limit=2)
    assert requests.source_row.tolist() == [4, 3] and requests.arrival_ns.tolist() == [0, 4_000_000_000]
    assert requests.report is not None
    report = requests.report
    assert (report.rows_read, report.accepted, report.skipped) == (3, 2, {"prompt tokens zero": 1})
    assert any("stopped after 2 requests" in note for note in requests.report.notes)
    assert "limit: 0" in refusal(path, limit=0)


def test_limit_cuts_a_session(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(SESSION % json.dumps([{"input_toks": n, "output_toks": 1} for n in (1, 2, 3)]).encode())
    assert read_trace(path, limit=2).prompt_tokens.tolist() == [1, 2]


def test_limit_cuts_a_conversation_and_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    turns = [{"from": speaker, "value": "abcd"} for speaker in ("human", "gpt") * 3]
    path.write_text(json.dumps([{"conversations": turns}]))
    assert read_trace(path, limit=2).prompt_tokens.tolist() == [1, 3]
    path.write_text(json.dumps({"input_lens": [1, 2, 3], "output_lens": [1, 1, 1], "start_times": [0, 1, 2]}))
    assert read_trace(path, limit=2).prompt_tokens.tolist() == [1, 2]


def test_a_session_without_calls_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(SESSION % b"[]" + SESSION % b'[{"input_toks": 1, "output_toks": 1}]')
    report = read_trace(path).report
    assert report is not None and report.skipped == {"session without calls": 1}


def test_scales(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    calls = b'[{"input_toks": 1, "output_toks": 1, "tool_duration_ns": 10}, {"input_toks": 2, "output_toks": 1}]'
    path.write_bytes(SESSION % calls + (SESSION % calls).replace(b": 0,", b": 1000,", 1))
    faster = read_trace(path, rate_scale=4)
    assert faster.arrival_ns.tolist() == [0, 0, 250, 250] and faster.think_ns.tolist() == [0, 10, 0, 10]
    slower = read_trace(path, time_scale=1.5)
    assert slower.arrival_ns.tolist() == [0, 0, 1500, 1500] and slower.think_ns.tolist() == [0, 15, 0, 15]
    both = read_trace(path, rate_scale=3.0, time_scale=0.1)
    assert both.arrival_ns.tolist() == [0, 0, 33, 33] and both.think_ns.tolist() == [0, 1, 0, 1]
    assert both.report is not None
    assert both.report.notes[-2:] == ["arrival rate multiplied by 3.0", "times stretched by 0.1"]
    for name in ("rate_scale", "time_scale"):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            assert f"{name}: {value} is not allowed" in refusal(path, **{name: value})
    assert "scaled times reach" in refusal(path, time_scale=1e30)


def test_what_has_no_arrivals_has_none_to_scale(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes(b"num_prefill_tokens,num_decode_tokens\n1,2\n")
    assert "vidur-lengths has no arrival times to scale" in refusal(path, rate_scale=2.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: (VIDUR.decode() + text).encode()))
)
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(content)
    try:
        requests = read_trace(path)
    except InputError as refused:
        assert str(refused).startswith(f"{path}: ") and len(str(refused).splitlines()) == 1
    else:
        assert len(requests) > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 10**15), st.integers(-1, 9), st.integers(-1, 9)), min_size=1, max_size=30)
)
def test_every_row_is_accepted_or_counted_and_order_is_by_arrival_then_row(
    tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("arrival_time_ns,input_toks,output_toks\n" + "".join(f"{a},{p},{o}\n" for a, p, o in rows))
    good = sorted((a, row, p, o) for row, (a, p, o) in enumerate(rows, 2) if p > 0 and o > 0)
    if not good:
        refusal(path)
        return
    requests = read_trace(path)
    assert requests.report is not None
    assert requests.report.rows_read == len(rows) == requests.report.accepted + sum(requests.report.skipped.values())
    columns = (requests.arrival_ns + good[0][0], requests.source_row, requests.prompt_tokens, requests.output_tokens)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == good


@pytest.mark.parametrize(
    ("relative", "dialect", "count", "skipped"),
    [
        ("azure2023_dialect.csv", "azure-2023", 3, {}),
        ("azure2024_dialect.csv", "azure-2024", 3, {}),
        ("azure2025_multimodal_dialect.csv", "azure-2025", 2, {}),
        ("bailian.jsonl", "bailian", 2, {}),
        ("burstgpt_6col.csv", "burstgpt", 3, {"failed (0 response tokens)": 1}),
        ("burstgpt_8col.csv", "burstgpt", 2, {"failed (0 response tokens)": 1}),
        ("llmservingsim_flat_and_agentic.jsonl", "llmservingsim", 3, {}),
        ("mooncake.jsonl", "mooncake", 3, {}),
        ("one_row.csv", "vidur", 1, {}),
        ("sharegpt.json", "sharegpt", 1, {"conversation starts with gpt": 1, "empty conversation": 1}),
        ("splitwise_sim.csv", "splitwise", 2, {}),
        ("vidur.csv", "vidur", 2, {}),
    ],
)
def test_shared_dialect_files(relative: str, dialect: str, count: int, skipped: dict[str, int]) -> None:
    report = read_trace(shared_path(f"traces/dialects/{relative}")).report
    assert report is not None
    assert (report.dialect, report.file, report.accepted, report.skipped) == (dialect, relative, count, skipped)


@pytest.mark.parametrize(
    ("relative", "dialect", "count", "span_s", "prompt_mean", "output_mean"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure-2023", 19_366, 3502, 1155, 211),
        ("mooncake_conversation_trace.jsonl", "mooncake", 12_031, 3537, 12_035, 343),
        ("vidur_arxiv_summarization.csv", "vidur-lengths", 28_257, 0, 2588, 291),
    ],
)
def test_public_traces_have_their_published_figures(
    relative: str, dialect: str, count: int, span_s: int, prompt_mean: float, output_mean: float
) -> None:
    path = shared_path(f"traces/{relative}")
    requests = read_trace(path)
    assert requests.report is not None and requests.report.dialect == dialect and not requests.report.skipped
    assert len(requests) == count and round(int(requests.arrival_ns[-1]) / 1e9) == span_s
    assert requests.prompt_tokens.mean() == pytest.approx(prompt_mean, rel=0.001)
    assert requests.output_tokens.mean() == pytest.approx(output_mean, rel=0.002)


def test_mooncake_has_its_equal_timestamps() -> None:
    requests = read_trace(shared_path("traces/mooncake_conversation_trace.jsonl"))
    assert int(np.count_nonzero(np.diff(requests.arrival_ns) == 0)) == 10_851
    assert requests.prompt_tokens.max() == 126_195


def test_the_measured_run_is_the_run_of_its_trace() -> None:
    run = read_trace(shared_path("traces/measured/RTX4090_Llama-3.1-8B.requests.jsonl"))
    plan = read_trace(shared_path("traces/measured/sharegpt-llama-3.1-8b-300-sps10.lengths.csv"))
    assert len(run) == len(plan) == 300
    assert np.array_equal(run.prompt_tokens, plan.prompt_tokens)
    assert np.array_equal(run.output_tokens, plan.output_tokens)
    # The client sent each request within 60 ms of its plan.
    assert np.abs(run.arrival_ns - plan.arrival_ns).max() < 60_000_000


def test_a_table_that_is_no_trace_is_refused() -> None:
    path = shared_path("traces/measured/splitwise-sim_a100.csv")
    assert re.search(r"not a trace of a known dialect: found CSV columns 'model, hardware", refusal(path))
