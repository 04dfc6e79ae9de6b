"""One choice of a response: tokens in, text out, by the tokenizer's own decoder and up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from blink.frontend.openai.stops import StopFinder
from blink.frontend.tokenizer.base import TextStream


class Choice:
    """`finish_reason` is None while it goes on. Tokens after a stop string count no more.

    A stop string that is complete within the first `min_tokens` tokens ends nothing, as in vLLM.
    """

    def __init__(self, decoder: TextStream, stops: tuple[str, ...], min_tokens: int = 0) -> None:
        self._decoder, self._finder, self._min_tokens = decoder, StopFinder(stops), min_tokens
        self._one_by_one = bool(stops)
        self.token_count = 0
        self.finish_reason: str | None = None

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._finder.found

    @property
    def _is_checked(self) -> bool:
        return self.token_count > self._min_tokens

    def push(self, tokens: Sequence[int]) -> str:
        """Text that these tokens make certain. A stop string among it sets `finish_reason`."""
        if not self._one_by_one:
            self.token_count += len(tokens)
            return self._decoder.push(tokens)
        text = ""
        for token in tokens:  # so that the count ends with the token that completes a stop string
            self.token_count += 1
            text += self._finder.push(self._decoder.push((token,)), checked=self._is_checked)
            if self._finder.found is not None:
                self.finish_reason = "stop"
                break
        return text

    def finish(self, reason: str) -> str:
        """No token follows: the text that was held back."""
        text = self._finder.push(self._decoder.finish(), checked=self._is_checked)
        if self._finder.found is not None:
            reason = "stop"
        else:
            text += self._finder.finish()
        self.finish_reason = reason
        return text
