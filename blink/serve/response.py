"""One HTTP response that is generated: its choices, their jobs, and what the client has been sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blink.frontend.openai.bodies import Generation
from blink.frontend.openai.choice import Choice
from blink.frontend.openai.errors import ApiError, internal
from blink.frontend.openai.frames import DONE, Answer, Frames, Usage, error_frame
from blink.serve.backend import Finish, Job
from blink.serve.writer import Header, Writer

if TYPE_CHECKING:
    from blink.serve.service import Service

JSON_HEADERS: list[Header] = [(b"content-type", b"application/json")]
SSE_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_TIME_LIMIT = "the request was aborted: its time limit is over"


class Response:
    """Begins with `begin`; ends by itself (`is_over`), or with `close` when the client is gone."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        writer: Writer,
        response_id: str,
        created_s: int,
        arrived_ns: int,
    ) -> None:
        self._service, self._generation, self._writer = service, generation, writer
        self.response_id, self.arrived_ns = response_id, arrived_ns
        self._frames = Frames(
            response_id, created_s, service.model, chat=generation.chat, include_usage=generation.include_usage
        )  # fmt: skip
        count = generation.n * len(generation.prompts)
        decoder = service.tokenizer.stream
        self._choices = [Choice(decoder(), generation.stops, generation.sampling.min_tokens) for _ in range(count)]
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._new_tokens = [0] * count
        self._new_text = [""] * count
        self._begun = [False] * count
        self._last_ns = [0] * count
        self.jobs: list[Job | None] = [None] * count  # None once it is over
        self._open = count
        self._fresh: list[int] = []  # choices with news
        self._error: ApiError | None = None
        self.status = 0
        self.finish = ""  # of the request as a whole, for log and metrics
        self.first_ns = self.end_ns = -1
        self.claimed_ns = self._stored_ns = self._published_ns = -1
        self.cut: Callable[[], None] = lambda: None  # ends the wait for the client
        self.fails_after: tuple[int, str] | None = None  # tokens, kind
        self._fails = False  # now, on purpose
        self.is_cut = False

    @property
    def is_over(self) -> bool:
        """Whether the client was sent all of it."""
        return self.end_ns >= 0

    @property
    def has_begun(self) -> bool:
        """Whether its first token has been told."""
        return self.first_ns >= 0

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; one that has several choices counts once."""
        return sum(map(len, self._generation.prompts))

    @property
    def output_tokens(self) -> int:
        """Of all choices so far."""
        return sum(choice.token_count for choice in self._choices)

    @property
    def longest(self) -> int:
        """Tokens of the longest choice so far."""
        return max(choice.token_count for choice in self._choices)

    @property
    def generation(self) -> Generation:
        """What was asked for."""
        return self._generation

    def begin(self, submit: Callable[[Job], None], next_number: Callable[[], int]) -> None:
        """Submit a job for each choice."""
        generation, index = self._generation, 0
        for prompt, most in zip(generation.prompts, generation.output_tokens_max, strict=True):
            for copy in range(generation.n):
                sampling = generation.sampling if not copy else self._service.other(generation.sampling, copy)
                job = Job(next_number(), prompt, most, sampling, self.arrived_ns, self._taker(index))
                self.jobs[index] = job
                index += 1
        for job_of in list(self.jobs):
            if job_of is not None:
                submit(job_of)

    def _taker(self, index: int) -> Callable[[Sequence[int], Finish | None], None]:
        def take(tokens: Sequence[int], finish: Finish | None) -> None:
            self._take(index, tokens, finish)

        return take

    # --- what the backend tells ---

    def _take(self, index: int, tokens: Sequence[int], finish: Finish | None) -> None:
        choice, job = self._choices[index], self.jobs[index]
        if job is None or self.end_ns >= 0:
            return
        if self._stored_ns < 0:  # known later than a first token, where records are relayed
            self.claimed_ns, self._stored_ns, self._published_ns = job.claimed_ns, job.stored_ns, job.published_ns
        before = choice.token_count
        text = choice.push(tokens) if tokens else ""
        self._new_tokens[index] += choice.token_count - before
        if finish is not None:
            self.jobs[index] = None
            self._open -= 1
            if finish in (Finish.TIME_LIMIT, Finish.ERROR):
                self._error = internal(_TIME_LIMIT if finish is Finish.TIME_LIMIT else "the engine gave the request up")
            elif choice.finish_reason is None:
                text += choice.finish(finish.value)
        elif choice.finish_reason is not None:  # a stop string: the backend does not know of it
            self.jobs[index] = None
            self._open -= 1
            self._service.cancel(job)
        self._new_text[index] += text
        if index not in self._fresh:
            self._fresh.append(index)
        self._service.has_news(self)
        if self.fails_after is not None and (self.output_tokens >= self.fails_after[0] or not self._open):
            self._fails = True

    def _fail_on_purpose(self, kind: str) -> None:
        """After some tokens, or at the end of what is shorter: what is to fail does, however its tokens came."""
        if self._generation.stream:
            self._start(200, SSE_HEADERS)
        if kind == "abort":
            self.fail(internal("injected failure"))
            return
        if not self._generation.stream:
            self._start(200, JSON_HEADERS)
            self._writer.write(b"{")  # a response is cut inside its body
        self.is_cut = True
        self.cut()

    def flush(self) -> None:
        """Send what is new: at the end of a turn of the reader."""
        if self.end_ns >= 0 or self.is_cut:
            return
        fresh, self._fresh = self._fresh, []
        now_ns = self._send(fresh) if self._generation.stream else self._service.now()
        for index in fresh:
            self._note_tokens(index, now_ns)
        if self._fails and self.fails_after is not None:
            self._fail_on_purpose(self.fails_after[1])
        elif self._error is not None:
            self.fail(self._error)
        elif not self._open:
            self._end_well(now_ns)

    def _note_tokens(self, index: int, now_ns: int) -> None:
        tokens, self._new_tokens[index] = self._new_tokens[index], 0
        if not self._generation.stream:
            self._texts[index].append(self._new_text[index])
        self._new_text[index] = ""
        if not tokens:
            return
        metrics = self._service.metrics
        metrics.counters["vllm:generation_tokens"] += tokens
        metrics.step_tokens(tokens)
        if not self._last_ns[index]:
            metrics.step_tokens(len(self._generation.prompts[index // self._generation.n]))
            if self.first_ns < 0:
                self.first_ns = now_ns
                metrics["vllm:time_to_first_token_seconds"].observe((now_ns - self.arrived_ns) / 1e9)
                if self._published_ns >= 0:
                    metrics["blink:submit_seconds"].observe((self._published_ns - self.arrived_ns) / 1e9)
                if self._stored_ns >= 0:
                    metrics["blink:token_out_seconds"].observe((now_ns - self._stored_ns) / 1e9)
            tokens -= 1
            if tokens:
                metrics.token_gap(0.0, tokens)
        else:
            metrics.token_gap((now_ns - self._last_ns[index]) / 1e9, tokens)
        self._last_ns[index] = now_ns

    # --- what the client gets ---

    def _send(self, fresh: list[int]) -> int:
        """When it left: before the call that sends it. Where cores are few, the client that this wakes takes the core,
        and the call comes back when that client has read it. So does the call for the head, which is made before.
        """
        parts = []
        generation, frames = self._generation, self._frames
        for index in fresh:
            choice, text = self._choices[index], self._new_text[index]
            usage = None
            if generation.continuous_usage:
                usage = Usage(len(generation.prompts[index // generation.n]), choice.token_count)
            if not self._begun[index]:
                self._begun[index] = True
                parts.append(frames.first(index, usage and usage._replace(completion_tokens=0)))
            reason = None if self._fails else choice.finish_reason
            if text or reason is not None:
                parts.append(frames.text(index, text, reason, choice.stop, usage))
        body = b"".join(parts)
        if body:
            self._start(200, SSE_HEADERS)
        now_ns = self._service.now()
        if body:
            self._writer.write(body)
        return now_ns

    def _start(self, status: int, headers: list[Header]) -> None:
        if not self._writer.started:
            self.status = status
            self._writer.start(status, headers)

    def _end_well(self, now_ns: int) -> None:
        usage = Usage(self.prompt_tokens, self.output_tokens)
        self.finish = "length" if any(c.finish_reason == "length" for c in self._choices) else "stop"
        if self._generation.stream:
            self._start(200, SSE_HEADERS)
            tail = self._frames.usage(usage) if self._generation.include_usage else b""
            self._writer.write(tail + DONE, more=False)
        else:
            answers = [
                Answer("".join(texts), choice.finish_reason or "stop", choice.stop)
                for texts, choice in zip(self._texts, self._choices, strict=True)
            ]
            body = self._frames.whole(answers, usage)
            self._start(200, [*JSON_HEADERS, (b"content-length", b"%d" % len(body))])
            self._writer.write(body, more=False)
        self._end(now_ns)

    def fail(self, error: ApiError) -> None:
        """End with an error: as the answer if none has begun, else as a frame."""
        if self.end_ns >= 0:
            return
        self.cancel_jobs()
        self.finish = "error"
        if self._writer.started:
            self._writer.write(error_frame(error.body()) + DONE, more=False)
        else:
            send_error(self._writer, error)
            self.status = error.status
        self._end(self._service.now())

    def _end(self, now_ns: int) -> None:
        self.end_ns = now_ns

    def cancel_jobs(self) -> None:
        """Stop what still generates, and free its slots."""
        for index, job in enumerate(self.jobs):
            if job is not None:
                self.jobs[index] = None
                self._service.cancel(job)

    def close(self) -> None:
        """The response is over, one way or the other."""
        self.cancel_jobs()
        if self.end_ns < 0:
            self.finish = "error" if self.is_cut else "abort"
            self.end_ns = self._service.now()
            self._writer.cancel()


def send_error(writer: Writer, error: ApiError, headers: Sequence[Header] = (), *, more: bool = False) -> None:
    """A whole response that is an error. With `more` it is left open, until something empty is written."""
    body = error.body()
    head = [*JSON_HEADERS, (b"content-length", b"%d" % len(body)), *headers]
    if error.retry_after_s is not None:
        head.append((b"retry-after", b"%d" % error.retry_after_s))
    writer.start(error.status, head)
    writer.write(body, more=more)
