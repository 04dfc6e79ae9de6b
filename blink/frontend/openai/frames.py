"""Responses as bytes: frames of server-sent events, and whole bodies. Exactly the fields that clients look for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Usage(NamedTuple):
    """Tokens of a request, or of it so far."""

    prompt_tokens: int
    completion_tokens: int

    def to_json(self) -> dict[str, int]:
        """The object `usage`."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": total,
            "completion_tokens": self.completion_tokens,
        }


class Answer(NamedTuple):
    """A choice of a response that is not streamed."""

    text: str
    finish_reason: str
    stop: str | None  # the stop string that was found


class Frames:
    """Frames of one response. What is the same in all of its chunks is made once."""

    def __init__(self, response_id: str, created_s: int, model: str, *, chat: bool, include_usage: bool) -> None:
        self._chat = chat
        kind = "chat.completion.chunk" if chat else "text_completion"
        fields = {"id": response_id, "object": kind, "created": created_s, "model": model}
        self._fields = fields
        self._head = b"data: " + encode(fields)[:-1] + b',"choices":['
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._open = b',"delta":{"content":' if chat else b',"text":'
        self._close = b"}" if chat else b""

    def first(self, index: int, usage: Usage | None) -> bytes:
        """The chunk before a choice's first text: of a conversation, it names the role; else nothing."""
        if not self._chat:
            return b""
        body = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' % index
        return self._head + body + self._usage(usage)

    def text(
        self,
        index: int,
        text: str,
        finish_reason: str | None = None,
        stop: str | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """A chunk of text; the last one of a choice says why it ended."""
        start = self._head + b'{"index":%d' % index + self._open + encode(text) + self._close
        if finish_reason is None:
            return start + b',"logprobs":null,"finish_reason":null}]' + self._usage(usage)
        reason = b',"logprobs":null,"finish_reason":' + encode(finish_reason) + b',"stop_reason":' + encode(stop)
        return start + reason + b"}]" + self._usage(usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that ends a stream whose client asked for usage."""
        return self._head + b'],"usage":' + encode(usage.to_json()) + b"}\n\n"

    def _usage(self, usage: Usage | None) -> bytes:
        return self._end if usage is None else b',"usage":' + encode(usage.to_json()) + b"}\n\n"

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of a response that is not streamed."""
        fields: dict[str, Any] = {**self._fields, "object": "chat.completion" if self._chat else "text_completion"}
        return encode(
            {**fields, "choices": list(map(self._choice, range(len(answers)), answers)), "usage": usage.to_json()}
        )

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
            if self._chat
            else {"text": answer.text}
        )
        return {
            "index": index,
            **said,
            "logprobs": None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop,
        }


def error_frame(body: bytes) -> bytes:
    """An error inside a stream."""
    return b"data: " + body + b"\n\n"
