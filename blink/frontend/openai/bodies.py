"""Request bodies: parsed, bounded, and turned into what is to be generated. Unknown fields are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from blink.frontend.openai.errors import ApiError, bad_request, model_not_found
from blink.frontend.tokenizer.base import Message, Tokenizer

CHOICES_MAX = 128
"""Prompts x n of one request."""
STOPS_MAX = 16
STOP_CHARACTERS_MAX = 1024
MESSAGES_MAX = 4096
COMPLETION_TOKENS = 16
"""What max_tokens is where a completion does not say, as in OpenAI's API."""
_ROLE_MAX = 64

Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Count = Annotated[int, Meta(ge=0, le=1 << 30)]
Choices = Annotated[int, Meta(ge=1, le=CHOICES_MAX)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class StreamOptions(Struct):
    """How usage is told in a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(Struct, kw_only=True):
    """What both endpoints take."""

    model: str | None = None
    n: Choices | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionBody(Common, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]
    max_tokens: Tokens | None = None


class Part(Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """A message; its content is a text, parts, or nothing (a call of a tool)."""

    role: str
    content: str | list[Part] | None = None


class ChatBody(Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None


class TokenizeBody(Struct, kw_only=True):
    """POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the model and its slots hold, in tokens."""

    context_tokens: int
    prompt_tokens_max: int
    output_tokens_max: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. `seed` None: the server's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """What a request asks for: a choice for each prompt and each of `n`, in that order.

    `output_tokens_max` has an entry for each prompt.
    """

    chat: bool
    prompts: list[list[int]]
    n: int
    output_tokens_max: list[int]
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool


Body = TypeVar("Body", bound=Struct)


def parse(data: bytes, kind: type[Body]) -> Body:
    """A body of that form. Raises ApiError 400 with the place and what is allowed there."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        place = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else None
        raise bad_request(message, place) from None
    except msgspec.DecodeError as error:
        raise bad_request(f"The body is not JSON: {error}") from None
    except (RecursionError, ValueError, OverflowError):
        raise bad_request("The body is not JSON that this server reads: nested too deeply, or not UTF-8") from None


class Reader:
    """Turns bodies into generations for one model."""

    def __init__(self, tokenizer: Tokenizer, model: str, bounds: Bounds) -> None:
        self._tokenizer, self._model, self._bounds = tokenizer, model, bounds

    def completion(self, data: bytes) -> Generation:
        """Of POST /v1/completions. Raises ApiError."""
        body = parse(data, CompletionBody)
        self._check_model(body.model)
        prompts = self._prompts(body.prompt)
        return self._generation(body, prompts, body.max_tokens or COMPLETION_TOKENS, "max_tokens", chat=False)

    def chat(self, data: bytes) -> Generation:
        """Of POST /v1/chat/completions. Raises ApiError."""
        body = parse(data, ChatBody)
        self._check_model(body.model)
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        most = body.max_completion_tokens or body.max_tokens
        return self._generation(body, [self._conversation(body.messages, True)], most, name, chat=True)

    def tokenize(self, data: bytes) -> tuple[list[int], list[str] | None]:
        """Tokens of POST /tokenize, and how the vocabulary writes them if that is asked for. Raises ApiError."""
        body = parse(data, TokenizeBody)
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either prompt or messages", "prompt")
        if body.messages is not None:
            tokens = self._conversation(body.messages, body.add_generation_prompt)
        else:
            tokens = self._encode(body.prompt or "", body.add_special_tokens)
        return tokens, self._tokenizer.token_texts(tokens) if body.return_token_strs else None

    def detokenize(self, data: bytes) -> str:
        """Text of POST /detokenize. Raises ApiError."""
        body = parse(data, DetokenizeBody)
        self._check_model(body.model)
        try:
            return self._tokenizer.decode(body.tokens, skip_special=False)
        except (ValueError, OverflowError) as error:
            raise bad_request(f"tokens: {error}", "tokens") from None

    # --- parts ---

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            raise model_not_found(name[:100])

    def _encode(self, text: str, add_special: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special=add_special)

    def _prompts(self, prompt: str | list[Any]) -> list[list[int]]:
        if isinstance(prompt, str):
            return [self._encode(prompt)]
        if prompt and all(type(entry) is int for entry in prompt):
            return [self._known(prompt)]
        if len(prompt) > CHOICES_MAX:
            raise bad_request(f"prompt: {len(prompt)} prompts; allowed: at most {CHOICES_MAX}", "prompt")
        found = []
        for entry in prompt:
            if isinstance(entry, str):
                found.append(self._encode(entry))
            elif isinstance(entry, list) and all(type(token) is int for token in entry):
                found.append(self._known(entry))
            else:
                raise bad_request("prompt: allowed: a string, token ids, or a list of either", "prompt")
        if not found:
            raise bad_request("prompt: an empty list is not allowed", "prompt")
        return found

    def _known(self, tokens: list[int]) -> list[int]:
        size = self._tokenizer.vocabulary_size
        for token in tokens:
            if not 0 <= token < size:
                raise bad_request(f"prompt: token {token} is not in the vocabulary; allowed: 0 to {size - 1}", "prompt")
        return tokens

    def _conversation(self, messages: list[ChatMessage], add_generation_prompt: bool) -> list[int]:
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise bad_request(f"messages: {len(messages)} are not allowed; allowed: 1 to {MESSAGES_MAX}", "messages")
        plain = [_message(message, index) for index, message in enumerate(messages)]
        try:
            return self._tokenizer.chat(plain, add_generation_prompt=add_generation_prompt)
        except ValueError as error:
            raise bad_request(str(error), "messages") from None

    def _generation(
        self, body: Common, prompts: list[list[int]], most: int | None, name: str, *, chat: bool
    ) -> Generation:
        n = body.n or 1
        if n * len(prompts) > CHOICES_MAX:
            raise bad_request(f"n: {n} x {len(prompts)} prompts; allowed: at most {CHOICES_MAX} together", "n")
        outputs = [self._output(len(prompt), most, name) for prompt in prompts]
        minimum = body.min_tokens or 0
        if minimum > min(outputs):
            raise bad_request(f"min_tokens: {minimum} exceeds {name}, {min(outputs)}", "min_tokens")
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options: only allowed with stream = true", "stream_options")
        options = body.stream_options or StreamOptions()
        sampling = Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(0, body.top_k or 0),
            seed=body.seed,
            min_tokens=minimum,
            ignore_eos=bool(body.ignore_eos),
        )
        return Generation(
            chat, prompts, n, outputs, sampling, _stops(body.stop), bool(body.stream), bool(options.include_usage),
            bool(options.continuous_usage_stats),
        )  # fmt: skip

    def _output(self, prompt_tokens: int, most: int | None, name: str) -> int:
        """How many tokens may be generated after a prompt.."""
        bounds = self._bounds
        if prompt_tokens < 1:
            raise bad_request("prompt: an empty prompt is not allowed; allowed: at least one token", "prompt")
        if prompt_tokens > bounds.prompt_tokens_max:
            raise bad_request(
                f"The prompt has {prompt_tokens} tokens; this server takes {bounds.prompt_tokens_max} at most",
                "prompt",
                "context_length_exceeded",
            )
        room = bounds.context_tokens - prompt_tokens
        fits = min(room, bounds.output_tokens_max)
        if most is None:
            return fits
        if most > room:
            raise bad_request(
                f"This model's maximum context length is {bounds.context_tokens} tokens. However, you requested "
                f"{prompt_tokens + most} tokens ({prompt_tokens} in the prompt, {most} in the completion).",
                name,
                "context_length_exceeded",
            )
        if most > fits:
            raise bad_request(f"{name}: {most} is not allowed; allowed: at most {fits}", name)
        return most


def _message(message: ChatMessage, index: int) -> Message:
    if not 0 < len(message.role) <= _ROLE_MAX:
        raise bad_request(f"messages[{index}].role: allowed: 1 to {_ROLE_MAX} characters", "messages")
    content = message.content
    if isinstance(content, list):
        for part in content:
            if part.type not in ("text", "input_text", "refusal") or part.text is None:
                raise bad_request(
                    f"messages[{index}].content: a part of type {part.type[:40]!r} is not allowed; allowed: text",
                    "messages",
                )
        content = "".join(part.text or "" for part in content)
    return {"role": message.role, "content": content or ""}


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOPS_MAX:
        raise bad_request(f"stop: {len(stops)} strings; allowed: at most {STOPS_MAX}", "stop")
    for text in stops:
        if not 0 < len(text) <= STOP_CHARACTERS_MAX:
            raise bad_request(f"stop: a string of {len(text)} characters; allowed: 1 to {STOP_CHARACTERS_MAX}", "stop")
    return stops


__all__ = ["ApiError", "Bounds", "Generation", "Reader", "Sampling"]
