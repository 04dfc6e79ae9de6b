"""The API's logic without a server: stop strings, choices, frames, bodies that are wrong in every way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from blink.frontend.openai.bodies import CHOICES_MAX, Bounds, Reader
from blink.frontend.openai.choice import Choice
from blink.frontend.openai.errors import ApiError
from blink.frontend.openai.frames import Frames, Usage
from blink.frontend.openai.stops import StopFinder
from blink.frontend.tokenizer.byte_level import ByteTokenizer

TOKENIZER = ByteTokenizer()
READER = Reader(TOKENIZER, "m", Bounds(context_tokens=100, prompt_tokens_max=80, output_tokens_max=50))
LETTERS = st.text(alphabet="abc", min_size=0, max_size=30)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What a finder must show in the end, by looking at the text as it grows by characters."""
    for end in range(1, len(text) + 1):
        found = [(text[:end].find(stop), index) for index, stop in enumerate(stops) if stop in text[:end]]
        if found:
            at, index = min(found)
            return text[:at], stops[index]
    return text, None


@given(LETTERS, STOPS)
@example("aab", ["ab"])
@example("abac", ["abab", "ac"])
def test_a_stop_is_found_and_none_of_it_is_shown(text: str, stops: list[str]) -> None:
    finder, shown = StopFinder(tuple(stops)), ""
    for character in text:
        shown += finder.push(character)
        if finder.found is not None:
            break
        assert not any(shown.endswith(stop[:length]) for stop in stops for length in range(1, len(stop))) or any(
            not text[len(shown) :].startswith(stop[length:])
            for stop in stops
            for length in range(1, len(stop))
            if shown.endswith(stop[:length])
        )
    else:
        shown += finder.finish()
    assert (shown, finder.found) == expected(text, stops)


@given(LETTERS, STOPS, st.integers(0, 12), st.integers(1, 5))
@example("abcabcd", ["bc", "abcd"], 3, 1)
@example("aaaa", ["aa"], 3, 2)
def test_a_stop_string_counts_where_it_ends_after_min_tokens(
    text: str, stops: list[str], min_tokens: int, step: int
) -> None:
    choice, shown = Choice(TOKENIZER.stream(), tuple(stops), min_tokens), ""
    tokens = TOKENIZER.encode(text)
    for at in range(0, len(tokens), step):
        shown += choice.push(tokens[at : at + step])
        if choice.finish_reason:
            break
    else:
        shown += choice.finish("length")
    ends = [
        (end, end - len(stop), index)
        for index, stop in enumerate(stops)
        for end in range(min_tokens + 1, len(text) + 1)
        if text[:end].endswith(stop)
    ]
    end, at, index = min(ends, default=(len(text), len(text), -1))
    assert (shown, choice.token_count) == (text[:at], end)
    assert choice.stop == (None if index < 0 else stops[index])


@given(LETTERS, STOPS, st.integers(1, 5))
def test_a_choice_counts_the_tokens_up_to_the_stop(text: str, stops: list[str], step: int) -> None:
    choice, shown = Choice(TOKENIZER.stream(), tuple(stops)), ""
    tokens = TOKENIZER.encode(text)
    for at in range(0, len(tokens), step):
        shown += choice.push(tokens[at : at + step])
        if choice.finish_reason:
            break
    else:
        shown += choice.finish("length")
    wanted, stop = expected(text, stops)
    assert (shown, choice.stop) == (wanted, stop)
    assert choice.finish_reason == ("length" if stop is None else "stop")
    assert choice.token_count == (len(text) if stop is None else choice.token_count)


def test_a_frame_is_json_whatever_the_text_is() -> None:
    frames = Frames("id", 1, 'a"b', chat=True, include_usage=True)
    for frame in (
        frames.first(2, None),
        frames.text(2, 'q"\n\u2028🎉', "stop", "x", Usage(1, 2)),
        frames.usage(Usage(1, 2)),
    ):
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        assert frame.count(b"\n") == 2
        assert json.loads(frame[6:])["model"] == 'a"b'


def test_what_is_not_asked_for_is_cut_to_fit_and_what_is_asked_for_is_not() -> None:
    chat = READER.chat(b'{"messages":[{"role":"user","content":"hi"}]}')
    assert chat.output_tokens_max == [50]
    assert READER.completion(b'{"prompt":"hi"}').output_tokens_max == [16]
    with pytest.raises(ApiError, match="at most 50"):
        READER.completion(b'{"prompt":"hi","max_tokens":51}')
    with pytest.raises(ApiError, match="maximum context length is 100"):
        READER.completion(b'{"prompt":"hi","max_tokens":99}')


def test_choices_are_bounded_over_all_prompts() -> None:
    body = {"prompt": ["a"] * 10, "n": CHOICES_MAX // 10 + 1}
    with pytest.raises(ApiError, match="n: "):
        READER.completion(json.dumps(body).encode())


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["prompt", "messages", "model", "max_tokens", "max_completion_tokens", "min_tokens", "n", "stop", "stream", "seed",
     "stream_options", "temperature", "top_p", "top_k", "ignore_eos", "tokens", "other"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.dictionaries(NAMES, VALUES) | VALUES)
def test_any_body_is_a_generation_or_an_error_for_the_client(body: Any) -> None:
    data = json.dumps(body).encode()
    for read in (READER.completion, READER.chat, READER.tokenize, READER.detokenize):
        try:
            read(data)
        except ApiError as error:
            assert error.status in (400, 404)
            assert len(json.loads(error.body())["error"]["message"]) <= 400
