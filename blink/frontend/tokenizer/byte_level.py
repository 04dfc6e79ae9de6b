"""The built-in tokenizer: one token a byte, reversible, without a package or a file.

Token ids: 0 pad, 1 begin, 2 end, 3 role, then the 256 bytes from `BYTE_BASE` on. A conversation is each message as
role token, role, newline, content, end token. Its folder, for clients that load it offline, is a byte-level BPE
without merges, which Hugging Face's `tokenizers` and `transformers` read.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink.frontend.tokenizer.base import Message, TextStream

SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|role|>")
END, ROLE = 2, 3
BYTE_BASE = len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<|role|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant\n{% endif %}"
)


class ByteTokenizer:
    """A Tokenizer (base.py) over bytes."""

    name = "bytes"
    vocabulary_size = BYTE_BASE + 256
    eos_tokens = frozenset({END})

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See Tokenizer. Nothing stands around a prompt; a lone surrogate becomes a question mark."""
        return [BYTE_BASE + byte for byte in text.encode("utf-8", "replace")]

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """See Tokenizer."""
        return self._bytes(tokens, skip_special).decode("utf-8", "replace")

    def _bytes(self, tokens: Sequence[int], skip_special: bool) -> bytes:
        out = bytearray()
        for token in tokens:
            if token >= BYTE_BASE and token < self.vocabulary_size:
                out.append(token - BYTE_BASE)
            elif not 0 <= token < BYTE_BASE:
                raise ValueError(f"token {token} is not in the vocabulary; allowed: 0 to {self.vocabulary_size - 1}")
            elif not skip_special:
                out += SPECIAL[token].encode()
        return bytes(out)

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """See Tokenizer. A byte is the character that the folder's vocabulary has for it."""
        texts = [*SPECIAL, *_byte_characters()]
        return [texts[token] for token in tokens]

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """See Tokenizer."""
        return _ByteStream(self, skip_special)

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """See Tokenizer."""
        if not messages:
            raise ValueError("messages: an empty list is not allowed; allowed: at least one message")
        tokens: list[int] = []
        for message in messages:
            tokens += [ROLE, *self.encode(f"{message['role']}\n{message['content']}"), END]
        if add_generation_prompt:
            tokens += [ROLE, *self.encode("assistant\n")]
        return tokens

    def save_pretrained(self, folder: Path) -> None:
        """See Tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[0],
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        }
        for name, content in (("tokenizer.json", _tokenizer_json()), ("tokenizer_config.json", config)):
            (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class _ByteStream:
    def __init__(self, tokenizer: ByteTokenizer, skip_special: bool) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[int]) -> str:
        return self._decoder.decode(self._tokenizer._bytes(tokens, self._skip_special))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


def _tokenizer_json() -> dict[str, Any]:
    """The same vocabulary in the format of Hugging Face's tokenizers: bytes as the characters that GPT-2 gives them."""
    special = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, text in enumerate(SPECIAL)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {text: i for i, text in enumerate(SPECIAL)}
    vocabulary |= {character: BYTE_BASE + byte for byte, character in enumerate(_byte_characters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [],
        },
    }  # fmt: skip


def _byte_characters() -> list[str]:
    """A printable character for each byte: itself where it is one, else the next from U+0100 on (GPT-2's rule)."""
    itself = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in itself else chr(next(others)) for byte in range(256)]
