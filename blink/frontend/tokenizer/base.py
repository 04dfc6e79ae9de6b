"""What the frontend asks of a tokenizer: text to tokens, tokens to text piece by piece, conversations to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

REPLACEMENT = "�"
"""What a decoder writes in place of bytes that are no character (yet)."""


class Message(TypedDict):
    """One message of a conversation; its parts, if it had any, are joined already."""

    role: str
    content: str


class TextStream(Protocol):
    """Tokens of one sequence as they come, text as it becomes certain.

    What was returned is never taken back, never ends within a character, and all of it together is what `decode` makes
    of all tokens at once.
    """

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these further tokens complete; may be empty."""
        ...

    def finish(self) -> str:
        """What is left once no token follows: bytes that never became a character, as U+FFFD."""
        ...


class Decoder(Protocol):
    """The part of a Tokenizer that a WindowStream needs."""

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str: ...


class Tokenizer(Protocol):
    """A vocabulary and its rules. `eos_tokens` end a text; token ids are 0 to `vocabulary_size` - 1.

    Raises ValueError for a token that is not in the vocabulary and for messages that the chat template refuses, with a
    sentence that a client may read.
    """

    @property
    def name(self) -> str: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def eos_tokens(self) -> frozenset[int]: ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Tokens of a text; with `add_special`, what the model wants around every prompt as well (such as BOS)."""
        ...

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of the tokens, special ones left out unless asked for."""
        ...

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it, which need not be text by itself."""
        ...

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """An incremental decoder for one sequence."""
        ...

    def chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Tokens of a conversation by the chat template, by default up to where the assistant's answer begins."""
        ...

    def save_pretrained(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which Hugging Face's packages load without a network."""
        ...


class WindowStream:
    """A TextStream over any tokenizer's `decode`, for decoders that look at neighbours.

    It decodes a window that begins with tokens whose text was returned, so that what a decoder does at the start of a
    text (such as dropping a space) happens to those alone. Text that ends in U+FFFD may be half a character: it waits
    for more tokens, `HELD_TOKENS_MAX` of them at most.
    """

    HELD_TOKENS_MAX = 16

    def __init__(self, tokenizer: Decoder, *, skip_special: bool = True) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._window: list[int] = []
        self._returned = 0  # tokens of the window whose text was returned

    def push(self, tokens: Sequence[int]) -> str:
        """See TextStream. Tokens go one by one: several together may never end where a character ends."""
        return "".join([self._push(token) for token in tokens])

    def _push(self, token: int) -> str:
        self._window.append(token)
        before, text = self._texts()
        held = len(self._window) - self._returned
        if text.endswith(REPLACEMENT) and held <= self.HELD_TOKENS_MAX:
            return ""
        return self._move(before, text)

    def finish(self) -> str:
        """See TextStream."""
        return self._move(*self._texts())

    def _texts(self) -> tuple[str, str]:
        decode, skip = self._tokenizer.decode, self._skip_special
        return decode(self._window[: self._returned], skip_special=skip), decode(self._window, skip_special=skip)

    def _move(self, before: str, text: str) -> str:
        new = text[len(before) :]
        if new:  # tokens without a text of their own stay in front of the next
            self._window = self._window[self._returned :]
            self._returned = len(self._window)
        return new
