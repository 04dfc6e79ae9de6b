"""Every dialect of trace, with the traps of each, written out in a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from blink.workload.dialects import DIALECTS
from blink.workload.reader import read_trace
from blink.workload.requests import Requests

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_6 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_8 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def read(tmp_path: Path, content: str, **options: object) -> Requests:
    # The name says nothing: a dialect is known by its content.
    path = tmp_path / "trace.bin"
    path.write_bytes(content.encode())
    return read_trace(path, **options)  # type: ignore[arg-type]


def lines(*objects: object) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def check(requests: Requests, dialect: str, arrival_ns: list[int], prompt: list[int], output: list[int]) -> None:
    assert requests.report is not None and requests.report.dialect == dialect
    assert requests.arrival_ns.tolist() == arrival_ns
    assert requests.prompt_tokens.tolist() == prompt
    assert requests.output_tokens.tolist() == output
    assert requests.report.accepted == len(requests)


def notes(requests: Requests) -> str:
    assert requests.report is not None
    return "; ".join(requests.report.notes)


def skipped(requests: Requests) -> dict[str, int]:
    assert requests.report is not None
    return requests.report.skipped


def test_azure_2023_with_crlf_and_seven_digits(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:46.6805901,396,109\n2023-11-17 00:00:00,1,2"
    requests = read(tmp_path, text.replace("\n", "\r\n"))
    check(requests, "azure-2023", [0, 100, 20_653_319_410_000], [374, 396, 1], [44, 109, 2])
    assert requests.source_row.tolist() == [2, 3, 4]
    assert requests.parent.tolist() == [-1] * 3 and requests.think_ns.tolist() == [0] * 3


def test_azure_2024_time_zones_are_one_clock(tmp_path: Path) -> None:
    rows = "2024-05-12 00:00:00+00:00,5,6\n2024-05-12 02:00:00.001163+02:00,7,8\n2024-05-11 20:00:01-04:00,9,10\n"
    check(read(tmp_path, AZURE + rows), "azure-2024", [0, 1_163_000, 1_000_000_000], [5, 7, 9], [6, 8, 10])


def test_azure_2025_counts_images_and_takes_tokens_as_given(tmp_path: Path) -> None:
    header = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    requests = read(tmp_path, header + "2024-10-15 00:00:00.0000000,2,900,120\n2024-10-15 00:00:01.5,0,100,20\n")
    check(requests, "azure-2025", [0, 1_500_000_000], [900, 100], [120, 20])
    assert "images: 2" in notes(requests) and "requests with images; ContextTokens is taken as given: 1" in notes(
        requests
    )


def test_burstgpt_of_six_and_of_eight_columns_counts_failures(tmp_path: Path) -> None:
    six = read(
        tmp_path, BURST_6 + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,300,0,300,API log\n46,GPT-4,1,1,2,x\n"
    )
    check(six, "burstgpt", [0, 41_000_000_000], [472, 1], [18, 1])
    assert skipped(six) == {"failed (0 response tokens)": 1}
    assert six.source_row.tolist() == [2, 4]
    eight = read(
        tmp_path, BURST_8 + "19440110.0,1722ac82,43,GPT-4,906,446,1352,log\n19440161.5,,2,ChatGPT,36,29,65,log\n"
    )
    check(eight, "burstgpt", [0, 51_500_000_000], [906, 36], [446, 29])


def test_mooncake_is_in_milliseconds_and_keeps_the_order_of_equal_times(tmp_path: Path) -> None:
    rows = [
        {"timestamp": t, "input_length": n, "output_length": 1, "hash_ids": [0, n]}
        for n, t in enumerate([3, 3, 9.5, 3], 1)
    ]
    requests = read(tmp_path, lines(*rows))
    check(requests, "mooncake", [0, 0, 0, 6_500_000], [1, 2, 4, 3], [1] * 4)
    assert requests.source_row.tolist() == [1, 2, 4, 3]
    assert "requests earlier than the one before them: 1; sorted by arrival" in notes(requests)
    assert "prefix hashes are not read" in notes(requests)


def test_bailian_is_in_seconds_and_an_open_loop(tmp_path: Path) -> None:
    first = {"chat_id": 55, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 32, "output_length": 8, "turn": 1}
    second = first | {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "turn": 2}
    requests = read(tmp_path, lines(first, second))
    check(requests, "bailian", [0, 61_114_000_000], [32, 32], [8, 8])
    assert requests.parent.tolist() == [-1, -1]
    assert "turns that follow another turn, sent at their own recorded time: 1" in notes(requests)


def test_splitwise_notes_batches(tmp_path: Path) -> None:
    requests = read(tmp_path, SPLITWISE + "0,2,0,1,1,4096,32\n1,2,0,3.25,4,2048,8\n")
    check(requests, "splitwise", [0, 2_250_000_000], [4096, 2048], [32, 8])
    assert "batch_size other than 1, each sent as one request: 1" in notes(requests)


def test_vidur_with_arrivals_and_lengths_only(tmp_path: Path) -> None:
    check(read(tmp_path, VIDUR + "7.5,374,44\n8.0,1.0,2.0\n"), "vidur", [0, 500_000_000], [374, 1], [44, 2])
    bare = read(
        tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n5,6,11,0.8\n"
    )
    check(bare, "vidur-lengths", [0, 0], [3772, 5], [54, 6])
    assert not bare.has_arrivals and "an arrival process must supply them" in notes(bare)


def test_llmservingsim_flat_as_json_lines_and_as_csv(tmp_path: Path) -> None:
    flat = lines({"input_toks": 10, "output_toks": 3, "arrival_time_ns": 46926808, "input_tok_ids": [1]})
    check(read(tmp_path, flat), "llmservingsim", [0], [10], [3])
    table = "idx,arrival_time_ns,input_toks,output_toks\n0,46926808,2358,531\n1,347938951,1034,769\n"
    check(read(tmp_path, table), "llmservingsim", [0, 301_012_143], [2358, 1034], [531, 769])


def session(arrival_ns: int, *calls: tuple[int, int, int]) -> dict[str, object]:
    names = ("input_toks", "output_toks", "tool_duration_ns")
    subs = [dict(zip(names, call, strict=True)) for call in calls]
    return {"session_id": "s", "arrival_time_ns": arrival_ns, "sub_requests": subs}


def test_agentic_calls_wait_for_the_call_before_and_its_tool(tmp_path: Path) -> None:
    late, early = session(60, (1472, 133, 127), (1734, 77, 9), (5, 6, 0)), session(10, (1, 2, 3), (4, 5, 0))
    requests = read(tmp_path, lines(late, early, {"input_toks": 7, "output_toks": 8, "arrival_time_ns": 30}))
    check(requests, "llmservingsim", [0, 0, 20, 50, 50, 50], [1, 4, 7, 1472, 1734, 5], [2, 5, 8, 133, 77, 6])
    assert requests.parent.tolist() == [-1, 0, -1, -1, 3, 4]
    assert requests.think_ns.tolist() == [0, 3, 0, 0, 127, 9]
    assert requests.source_row.tolist() == [2, 2, 3, 1, 1, 1]
    assert "sessions: 2" in notes(requests)


def test_an_unusable_call_hands_its_tool_time_on(tmp_path: Path) -> None:
    requests = read(tmp_path, lines(session(0, (1, 1, 5), (0, 1, 7), (3, 1, 0)), session(100, (0, 1, 11), (2, 1, 0))))
    assert requests.arrival_ns.tolist() == [0, 0, 111]
    assert requests.parent.tolist() == [-1, 0, -1] and requests.think_ns.tolist() == [0, 12, 0]
    assert skipped(requests) == {"prompt tokens zero": 2}


def test_a_recorded_vllm_run(tmp_path: Path) -> None:
    run = '{"request_id": "b-0", "input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.0827403}\n'
    requests = read(tmp_path, run + run.replace("80.0827403", "80.3478317"))
    check(requests, "vllm-run", [0, 265_091_400], [2358, 2358], [531, 531])


def test_a_detailed_vllm_benchmark(tmp_path: Path) -> None:
    bench = {"date": "x", "input_lens": [5, 6, 7], "output_lens": [1, 0, 3], "start_times": [10.5, 10.6, 10.25],
             "errors": ["", "timeout", ""]}  # fmt: skip
    for text in (json.dumps(bench), json.dumps(bench, indent=2)):
        requests = read(tmp_path, text)
        check(requests, "vllm-bench", [0, 250_000_000], [7, 5], [3, 1])
        assert requests.source_row.tolist() == [3, 1]
        assert requests.report is not None and requests.report.rows_read == 3
        assert skipped(requests) == {"failed (the benchmark recorded an error)": 1}


def talk(*turns: tuple[str, str]) -> dict[str, object]:
    return {"id": "a", "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}


def test_sharegpt_estimates_tokens_and_counts_what_is_no_turn(tmp_path: Path) -> None:
    conversations = [
        talk(("human", "Hello there"), ("gpt", "Hi! How can I help?"), ("human", "x" * 10), ("gpt", "yes")),
        talk(("gpt", "starts with gpt")),
        talk(),
        talk(("human", "no answer")),
        talk(("human", "first"), ("human", "second"), ("gpt", "both")),
        talk(("human", "q"), ("gpt", ""), ("gpt", "again")),
        talk(("system", "be kind"), ("human", "日本"), ("gpt", "\ud800")),
    ]
    for text in (json.dumps(conversations), json.dumps(conversations, indent=1), lines(*conversations)):
        requests = read(tmp_path, text)
        # ceil(UTF-8 bytes / 4) of the conversation so far: 11; 11 + 19 + 10; 5 + 6; 7 + 6.
        check(requests, "sharegpt", [0] * 4, [3, 10, 3, 4], [5, 1, 1, 1])
        assert not requests.has_arrivals
        assert requests.report is not None and requests.report.rows_read == 7
        assert "UTF-8 bytes / 4" in notes(requests)
        assert skipped(requests) == {
            "answer without a question": 1,
            "conversation starts with gpt": 1,
            "empty conversation": 1,
            "question without an answer": 2,
            "turn with an empty text": 1,
        }


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        ("0", "5", "prompt tokens zero"),
        ("-3", "5", "prompt tokens negative"),
        ("NaN", "5", "prompt tokens not finite"),
        ("5", "0", "output tokens zero"),
        ("5", "-1", "output tokens negative"),
        ("5", "inf", "output tokens not finite"),
    ],
)
def test_rows_that_cannot_be_requests_are_counted(tmp_path: Path, prompt: str, output: str, reason: str) -> None:
    requests = read(tmp_path, VIDUR + f"1,10,20\n2,{prompt},{output}\n3,11,21\n")
    check(requests, "vidur", [0, 2_000_000_000], [10, 11], [20, 21])
    assert skipped(requests) == {reason: 1} and requests.source_row.tolist() == [2, 4]


@pytest.mark.parametrize(("time", "reason"), [("-1", "arrival negative"), ("nan", "arrival not finite")])
def test_times_that_are_none_are_counted(tmp_path: Path, time: str, reason: str) -> None:
    requests = read(tmp_path, VIDUR + f"{time},10,20\n3,11,21\n")
    check(requests, "vidur", [0], [11], [21])
    assert skipped(requests) == {reason: 1}


def test_json_nan_is_counted(tmp_path: Path) -> None:
    row = '{"timestamp": 1, "input_length": 1, "output_length": 1}\n'
    assert skipped(read(tmp_path, row.replace("1", "NaN", 1) + row)) == {"arrival not finite": 1}


def test_column_order_extra_columns_and_quotes_do_not_matter(tmp_path: Path) -> None:
    text = 'num_decode_tokens,note, arrived_at ,num_prefill_tokens\n"20","a, ""b""",0.5,"10"\n'
    check(read(tmp_path, text), "vidur", [0], [10], [20])


def test_byte_order_mark_blank_rows_and_old_line_ends(tmp_path: Path) -> None:
    text = "\ufeff\n" + VIDUR + "\n1,10,20\n  \n\n2,11,21\n\n"
    requests = read(tmp_path, text)
    check(requests, "vidur", [0, 1_000_000_000], [10, 11], [20, 21])
    assert requests.source_row.tolist() == [4, 7]
    check(read(tmp_path, text.replace("\n", "\r")), "vidur", [0, 1_000_000_000], [10, 11], [20, 21])
    row = '{"timestamp": 1, "input_length": 2, "output_length": 3}'
    blank = read(tmp_path, f"\ufeff\r\n{row}\r\n\r\n{row}\r\n")
    check(blank, "mooncake", [0, 0], [2, 2], [3, 3])
    assert blank.source_row.tolist() == [2, 4]


def test_names_are_unique_and_every_dialect_has_a_line_in_the_documentation() -> None:
    names = [dialect.name for dialect in DIALECTS]
    assert len(set(names)) == len(names)
    documentation = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    for name in names:
        assert f"| `{name}` |" in documentation


def test_reading_twice_gives_the_same(tmp_path: Path) -> None:
    first, again = (read(tmp_path, VIDUR + "2,10,20\n1,11,21\n") for _ in range(2))
    assert np.array_equal(first.arrival_ns, again.arrival_ns) and first.report == again.report
