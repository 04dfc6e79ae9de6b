"""The tokenizer of SmolLM2, built from the vocabulary, the merges and the chat template in the model's GGUF file.

Byte-level BPE over text that is split as GPT-2 splits it, with every digit on its own. Needs the packages `gguf`,
`tokenizers` and, for conversations, `jinja2`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.model_files import SMOLLM2, smollm2_file
from blink.common.optional import need
from blink.frontend.tokenizer.base import Message
from blink.frontend.tokenizer.packaged import PackagedTokenizer

EXTRA = "tokenizer"
CONTROL = 3
"""GGUF's type of a token that is no text: <|im_start|> and its like."""
END_TOKENS = ("<|im_end|>", "<|endoftext|>")


class SmolLM2Tokenizer(PackagedTokenizer):
    """A Tokenizer (base.py) of a GGUF file with SmolLM2's vocabulary."""

    name = SMOLLM2

    def __init__(self, file: Path) -> None:
        fields = _fields(file)
        self._texts: list[str] = fields["tokenizer.ggml.tokens"]
        self._special = [i for i, kind in enumerate(fields["tokenizer.ggml.token_type"]) if kind == CONTROL]
        self.vocabulary_size = len(self._texts)
        self.chat_template: str = fields["tokenizer.chat_template"]
        self.eos_token = int(fields["tokenizer.ggml.eos_token_id"])
        ends = {i for i in self._special if self._texts[i] in END_TOKENS}
        self.eos_tokens: frozenset[int] = frozenset(ends | {self.eos_token})
        self._tokenizer = self._built(fields["tokenizer.ggml.merges"])
        self._template: Any = None

    def _built(self, merges: Sequence[str]) -> Any:
        tokenizers = need("tokenizers", f"the tokenizer {SMOLLM2}", EXTRA)
        vocabulary = {text: token for token, text in enumerate(self._texts)}
        pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
        built = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
        split, bytes_ = tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel
        built.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_(add_prefix_space=False)])
        built.decoder = tokenizers.decoders.ByteLevel()
        special = [tokenizers.AddedToken(self._texts[i], special=True, normalized=False) for i in self._special]
        built.add_special_tokens(special)
        return built

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation by the model's own template."""
        if self._template is None:
            sandbox = need("jinja2.sandbox", "a chat template", EXTRA).ImmutableSandboxedEnvironment
            self._template = sandbox(trim_blocks=True, lstrip_blocks=True).from_string(self.chat_template)
        if not messages:
            raise ValueError("messages: an empty list is not allowed; allowed: at least one message")
        return str(self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt))

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """See Tokenizer."""
        return self.encode(self.apply_chat_template(messages, add_generation_prompt=add_generation_prompt))

    def save_pretrained(self, folder: Path) -> None:
        """See Tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self._tokenizer.save(str(folder / "tokenizer.json"))
        end = self._texts[self.eos_token]
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": end,
            "clean_up_tokenization_spaces": False,
            "chat_template": self.chat_template,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _fields(file: Path) -> dict[str, Any]:
    """The tokenizer's part of a GGUF file's metadata."""
    reader = need("gguf", f"the tokenizer {SMOLLM2}", EXTRA).GGUFReader
    try:
        fields = {key: field.contents() for key, field in reader(file).fields.items() if key.startswith("tokenizer.")}
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{file}: cannot be read as GGUF: {error}") from error
    if fields.get("tokenizer.ggml.pre") != "smollm":
        raise InputError(
            f"{file}: tokenizer.ggml.pre: {fields.get('tokenizer.ggml.pre')!r} is not allowed; allowed: smollm"
        )
    return fields


def load() -> SmolLM2Tokenizer:
    """The tokenizer of the installed model file."""
    return SmolLM2Tokenizer(smollm2_file())
