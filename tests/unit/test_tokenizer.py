"""Tokenizers: reversible, incremental without half a character, and plain tokens that survive re-tokenizing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.frontend.tokenizer import Message, Tokenizer, open_tokenizer
from blink.frontend.tokenizer.base import WindowStream
from blink.frontend.tokenizer.byte_level import ByteTokenizer
from blink.frontend.tokenizer.plain import plain_tokens

BYTES = ByteTokenizer()
CONVERSATION: list[Message] = [{"role": "user", "content": "Grüße 🎉"}, {"role": "assistant", "content": "Hi"}]


@given(st.text())
def test_bytes_undo_themselves(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    assert BYTES.decode(BYTES.encode(text)) == clean


@given(st.lists(st.integers(0, BYTES.vocabulary_size - 1), max_size=60), st.integers(1, 7))
def test_a_stream_says_what_a_decoder_says_and_takes_nothing_back(tokens: list[int], step: int) -> None:
    stream = BYTES.stream()
    parts = [stream.push(tokens[at : at + step]) for at in range(0, len(tokens), step)]
    assert "".join(parts) + stream.finish() == BYTES.decode(tokens)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(1, 5))
def test_a_window_over_a_decoder_splits_no_character(text: str, step: int) -> None:
    if "�" in text:
        return
    tokens, stream = BYTES.encode(text), WindowStream(BYTES)
    parts = [stream.push(tokens[at : at + step]) for at in range(0, len(tokens), step)]
    assert not any("�" in part for part in parts)
    assert "".join(parts) + stream.finish() == text


def test_what_is_no_character_does_not_hold_a_window_for_ever() -> None:
    stream = WindowStream(BYTES)
    text = "".join(stream.push([BYTES.encode("a")[0] - ord("a") + 0xFF]) for _ in range(100))
    assert text


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the vocabulary"):
        BYTES.decode([BYTES.vocabulary_size])
    with pytest.raises(ValueError, match="at least one message"):
        BYTES.chat([])


def test_its_folder_is_the_same_tokenizer_for_others(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra [tokenizer]")
    pytest.importorskip("jinja2", reason="needs the extra [tokenizer]")
    BYTES.save_pretrained(tmp_path)
    folder = open_tokenizer(str(tmp_path))
    for text in ("Hello", "Grüße 🎉\n\t x", "", "\0\x7f"):
        assert folder.encode(text) == BYTES.encode(text)
        assert folder.decode(BYTES.encode(text)) == text
        assert folder.token_texts(BYTES.encode(text)) == BYTES.token_texts(BYTES.encode(text))
    assert folder.chat(CONVERSATION) == BYTES.chat(CONVERSATION)
    assert (folder.eos_tokens, folder.vocabulary_size) == (BYTES.eos_tokens, BYTES.vocabulary_size)
    again = tmp_path / "again"
    folder.save_pretrained(again)
    assert open_tokenizer(str(again)).encode("é") == BYTES.encode("é")


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--tokenizer"):
        open_tokenizer(str(tmp_path))
    pytest.importorskip("tokenizers", reason="needs the extra [tokenizer]")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as a tokenizer"):
        open_tokenizer(str(tmp_path))


@given(st.data())
def test_plain_tokens_become_themselves_again(data: st.DataObject) -> None:
    tokenizer: Tokenizer = BYTES
    plain = plain_tokens(tokenizer)
    tokens = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=50))
    assert tokenizer.encode(tokenizer.decode(tokens), add_special=False) == tokens
