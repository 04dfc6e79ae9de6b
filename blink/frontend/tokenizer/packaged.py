"""What every tokenizer over the package `tokenizers` does alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink.frontend.tokenizer.base import TextStream, WindowStream


class PackagedTokenizer:
    """Encodes and decodes with `_tokenizer`, a `tokenizers.Tokenizer` of `vocabulary_size` tokens."""

    _tokenizer: Any
    vocabulary_size: int

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See Tokenizer. Where nothing belongs around a prompt, `add_special` changes nothing."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).ids
        return tokens

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """See Tokenizer."""
        for token in tokens:
            if not 0 <= token < self.vocabulary_size:
                raise ValueError(f"token {token} is not in the vocabulary; allowed: 0 to {self.vocabulary_size - 1}")
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special))

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """See Tokenizer."""
        return [self._tokenizer.id_to_token(token) for token in tokens]

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """See Tokenizer."""
        return WindowStream(self, skip_special=skip_special)
