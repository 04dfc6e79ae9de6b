"""SmolLM2's tokenizer from its GGUF file: round trips, text as tokens come, conversations, Hugging Face's loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blink.common.errors import InputError
from blink.common.model_files import VARIABLE, smollm2_file
from blink.frontend.tokenizer.smollm2 import SmolLM2Tokenizer, load

TEXTS = (
    "The capital of France is Paris.",
    "  two spaces,\ttabs\n\nand 12345.67 digits",
    "Zürich, 東京, 🙂🙃, e\u0301",
    "def f(x):\n    return x ** 2\n",
    "",
)


@pytest.fixture(scope="module")
def tokenizer() -> SmolLM2Tokenizer:
    for package in ("gguf", "tokenizers", "jinja2"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'blink-twin[tokenizer]'")
    try:
        return load()
    except InputError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding(tokenizer: SmolLM2Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_known_tokens(tokenizer: SmolLM2Tokenizer) -> None:
    """Digits stand alone, special tokens are one token each."""
    assert tokenizer.vocabulary_size == 49152
    assert tokenizer.encode("<|im_start|>") == [1]
    assert len(tokenizer.encode("2024")) == 4
    assert tokenizer.eos_tokens == {0, 2}
    assert tokenizer.decode([1, *tokenizer.encode("a"), 2]) == "a"
    assert tokenizer.decode([1, 2], skip_special=False) == "<|im_start|><|im_end|>"


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_make_the_text_and_split_no_character(tokenizer: SmolLM2Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push([token]) for token in tokenizer.encode(text)]
    assert "".join([*pieces, stream.finish()]) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_conversation_ends_where_the_answer_begins(tokenizer: SmolLM2Tokenizer) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    tokens = tokenizer.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert tokens.count(1) == 3
    assert tokens.count(2) == 2
    with pytest.raises(ValueError, match="at least one message"):
        tokenizer.chat([])


def test_a_token_outside_the_vocabulary_is_refused(tokenizer: SmolLM2Tokenizer) -> None:
    with pytest.raises(ValueError, match="49152 is not in the vocabulary; allowed: 0 to 49151"):
        tokenizer.decode([49152])


def test_what_is_saved_loads_again(tokenizer: SmolLM2Tokenizer, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert config["eos_token"] == "<|im_end|>"
    for text in TEXTS:
        assert loaded.encode(text).ids == tokenizer.encode(text)


def test_hugging_faces_loader_takes_what_is_saved(tokenizer: SmolLM2Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    messages = [{"role": "user", "content": "Hello"}]
    assert loaded(TEXTS[2])["input_ids"] == tokenizer.encode(TEXTS[2])
    assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    )
    assert loaded.eos_token_id == 2


def test_a_missing_file_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such.gguf")
    with pytest.raises(InputError, match="no such file; allowed: a GGUF file of SmolLM2-135M"):
        smollm2_file()
