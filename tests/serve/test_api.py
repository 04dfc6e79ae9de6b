"""The API over the simulated ring, as clients see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from blink.frontend.tokenizer.byte_level import ByteTokenizer
from tests.serve.running import Server, running

pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from blink.serve.carrier import CARRIERS

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module", params=CARRIERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    pytest.importorskip(request.param, reason="needs this server of HTTP")
    with running("--time-scale", "0.1", "--http", request.param) as found:
        yield found


def test_a_completion_has_the_text_that_was_counted_and_is_the_same_again(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 12, "ignore_eos": True, "nobody knows": {"this": 1}}
    first, second = (server.post("/v1/completions", body) for _ in range(2))
    choice = first["choices"][0]
    assert first["object"] == "text_completion"
    assert first["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert len(ByteTokenizer().encode(choice["text"])) == 12
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert first["choices"] == second["choices"]
    assert first["id"] != second["id"]


def test_a_stream_says_the_same_as_a_whole_answer(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 12, "ignore_eos": True}
    whole = server.post("/v1/completions", body)["choices"][0]["text"]
    *chunks, done = server.events("/v1/completions", body)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_a_chat_stream_begins_with_the_role_and_ends_with_usage(server: Server) -> None:
    options = {"stream_options": {"include_usage": True}}
    *chunks, usage, done = server.events(
        "/v1/chat/completions", {"messages": HELLO, "max_completion_tokens": 6, "ignore_eos": True, **options}
    )
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert len("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)) == 6


def test_usage_is_told_continuously_where_it_is_asked_for(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage, _ = server.events(
        "/v1/completions", {"prompt": "abc", "max_tokens": 9, "ignore_eos": True, "stream_options": options}
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == usage["usage"]["completion_tokens"] == 9
    role, *chunks, _, _ = server.events(
        "/v1/chat/completions", {"messages": HELLO, "max_tokens": 9, "ignore_eos": True, "stream_options": options}
    )
    assert role["usage"]["completion_tokens"] == 0  # nothing is in it
    assert chunks[-1]["usage"]["completion_tokens"] == 9


def test_every_prompt_gets_n_choices(server: Server) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 5, "ignore_eos": True}
    found = server.post("/v1/completions", body)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["usage"]["prompt_tokens"] == 6
    assert found["usage"]["completion_tokens"] == 20
    assert len({choice["text"] for choice in found["choices"]}) == 4
    *chunks, _ = server.events("/v1/completions", body)
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in found["choices"]]


def test_token_ids_are_prompts_too(server: Server) -> None:
    tokens = ByteTokenizer().encode("Hello")
    by_text, by_tokens, in_a_list = (
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4})["choices"][0]["text"]
        for prompt in ("Hello", tokens, [tokens])
    )
    assert by_text == by_tokens == in_a_list


def test_parts_of_a_message_are_joined(server: Server) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    one, other = (
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 4})
        for content in ("Hello", parts)
    )
    assert one["choices"] == other["choices"]
    assert one["choices"][0]["message"]["role"] == "assistant"


def test_a_stop_string_ends_the_text_before_it_and_frees_the_slot(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 100, "ignore_eos": True}
    whole = server.post("/v1/completions", body)["choices"][0]["text"]
    stop = whole[20:23]
    at = whole.index(stop)
    found = server.post("/v1/completions", {**body, "stop": ["\n", stop]})
    choice = found["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (whole[:at], "stop", stop)
    assert found["usage"]["completion_tokens"] == at + 3
    *chunks, _ = server.events("/v1/completions", {**body, "stop": stop})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole[:at]
    server.wait_idle()


def test_a_stop_string_waits_for_min_tokens(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 60, "ignore_eos": True}
    whole = server.post("/v1/completions", body)["choices"][0]["text"]
    stop = whole[10:12]
    first = whole.index(stop)
    again = whole.find(stop, first + 1)
    found = server.post("/v1/completions", {**body, "stop": stop, "min_tokens": first + 1})
    assert found["choices"][0]["text"] == whole[:first]  # the stop's last character is the first after the minimum
    late = server.post("/v1/completions", {**body, "stop": stop, "min_tokens": first + 2})
    assert late["choices"][0]["text"] == (whole if again < 0 else whole[:again])
    *chunks, _ = server.events("/v1/completions", {**body, "stop": stop, "min_tokens": first + 2})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == late["choices"][0]["text"]


def test_lengths_follow_min_tokens_and_the_seed(server: Server) -> None:
    body = {"prompt": "Hello", "max_tokens": 500}
    natural = server.post("/v1/completions", body)
    assert natural["choices"][0]["finish_reason"] == "stop"
    count = natural["usage"]["completion_tokens"]
    assert len(natural["choices"][0]["text"]) == count
    longer = server.post("/v1/completions", {**body, "min_tokens": count + 7})
    assert longer["usage"]["completion_tokens"] == count + 8  # so many before EOS, which counts, too
    whole = server.post("/v1/completions", {**body, "max_tokens": count + 7, "min_tokens": count + 7})
    assert (whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]) == (count + 7, "length")
    assert server.post("/v1/completions", {**body, "seed": 5})["choices"] != natural["choices"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", {"prompt": 5}, 400, "prompt"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [99999]}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 100_000}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "temperature": 3}, 400, "temperature"),
        ("/v1/completions", {"prompt": "a", "top_p": 0}, 400, "top_p"),
        ("/v1/completions", {"prompt": "a", "n": 1000}, 400, "n"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 50}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "stop": ""}, 400, "stop"),
        ("/v1/completions", {"prompt": "a", "min_tokens": 20}, 400, "min_tokens"),
        ("/v1/completions", {"prompt": "a", "min_tokens": -1}, 400, "min_tokens"),
        ("/v1/completions", {"prompt": "a", "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
        ("/v1/chat/completions", {"messages": HELLO, "min_tokens": 9, "max_completion_tokens": 8}, 400, "min_tokens"),
        ("/v1/completions", {"prompt": "a" * 7000}, 400, "prompt"),
        ("/v1/completions", {"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"prompt": "a"}, 400, None),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    ],
)
def test_a_clients_mistake_is_an_error_before_any_stream(
    server: Server, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    got, _, data = server.request("POST", path, {**body, "stream": True})
    error = json.loads(data)["error"]
    assert (got, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) <= 400


def test_what_is_no_json_or_no_route_is_said(server: Server) -> None:
    for raw in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"prompt": NaN}', b'{"prompt":"\\ud800"}'):
        status, _, data = server.request("POST", "/v1/completions", raw=raw)
        assert status == 400, raw[:20]
        assert json.loads(data)["error"]["message"]
    assert server.request("GET", "/nothing")[0] == 404
    assert server.request("GET", "/v1/completions")[0] == 405
    assert server.request("GET", "/v1/models/other")[0] == 404


def test_tokenize_and_detokenize_undo_each_other(server: Server) -> None:
    tokens = server.post("/tokenize", {"prompt": "Grüße 🎉"})
    assert tokens["count"] == len(tokens["tokens"]) == 12
    assert tokens["token_strs"] is None
    assert server.post("/tokenize", {"prompt": "Gü", "return_token_strs": True})["token_strs"] == ["G", "Ã", "¼"]
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}) == {"prompt": "Grüße 🎉"}
    assert server.post("/tokenize", {"messages": HELLO})["count"] > 5
    assert server.request("POST", "/detokenize", {"tokens": [9999]})[0] == 400


def test_models_version_and_health(server: Server) -> None:
    listed = json.loads(server.request("GET", "/v1/models")[2])["data"][0]
    assert listed == json.loads(server.request("GET", f"/v1/models/{listed['id']}")[2])
    assert listed["max_model_len"] == 8192
    assert server.request("GET", "/health")[0] == 200
    assert json.loads(server.request("GET", "/version")[2])["version"]
    assert b"<html" in server.request("GET", "/")[2]


def test_metrics_count_what_was_served(server: Server) -> None:
    before = server.metric("vllm:generation_tokens_total"), server.metric("vllm:time_to_first_token_seconds_count")
    server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 11, "ignore_eos": True})
    after = server.metric("vllm:generation_tokens_total"), server.metric("vllm:time_to_first_token_seconds_count")
    assert (after[0] - before[0], after[1] - before[1]) == (11, 1)
    assert server.metric("vllm:num_requests_running{") == 0


def test_the_openai_client_is_content(server: Server) -> None:
    openai = pytest.importorskip("openai", reason="needs the openai client")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=9, temperature=0)
    stream = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=9, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    completion = client.completions.create(model=model, prompt="Hello", max_tokens=3)
    assert completion.usage.completion_tokens == 3
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="Hello")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="Hello", max_tokens=-1)
