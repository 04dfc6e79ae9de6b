"""The frontend of a ring, with prompts that clients sent and tokens that go to them: the stub's, or a model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.frontend.submission import Submission
from blink.frontend.token_reader import News
from blink.hw.native.frontend_child import ServingFrontend, Setup
from blink.hw.native.tokens import mix, seed_of
from blink.hw.ring import TakenRing, Tokens, eos_word
from blink.hw.texts import Texts
from blink.serve.backend import Finish, Job, finish_of
from blink.serve.keeper_link import KeeperLink
from blink.serve.stub import StubText

_WORD = (1 << 64) - 1
_SEED = 0xFFFF_FFFF


class _Forgetful(list[I64]):
    """A server does not keep every gap that ever was."""

    def append(self, _: I64) -> None: ...


class Live:
    """A job in the ring or before it. `key` and `text` are the stub's."""

    __slots__ = ("job", "key", "request", "text")

    def __init__(self, job: Job, request: Request, key: int = 0, text: Sequence[int] = ()) -> None:
        self.job, self.request, self.key, self.text = job, request, key, text


class LiveFrontend(ServingFrontend):
    """What both kinds do. `before_tokens` is called before tokens are told."""

    def __init__(
        self, setup: Setup, instance: TakenRing, link: KeeperLink, recorder: Recorder, texts: Texts | None = None
    ) -> None:
        self._live: dict[int, Live] = {}
        self.before_tokens: Callable[[], None] = lambda: None
        super().__init__(setup, instance, link, recorder, texts)
        self._gaps = _Forgetful()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        live = self._live[job.number] = self._live_of(job)
        self.receive(live.request)

    def _live_of(self, job: Job) -> Live:
        raise NotImplementedError

    def _request(self, job: Job, eos_at: int) -> Request:
        sent_ns = job.arrived_ns - self._start_ns
        return Request(job.number, -1, len(job.prompt), eos_at, job.output_tokens_max, sent_ns)

    def give_up(self, job: Job) -> None:
        """Its client is gone."""
        live = self._live.pop(job.number, None)
        if live is not None and live.request.outcome is Outcome.UNFINISHED:
            self.cancel(live.request)

    def abandon(self) -> list[Job]:
        """The ring is out of reach: jobs whose clients wait, none of which is told anything more from here."""
        jobs = [live.job for live in self._live.values()]
        self._live.clear()
        return jobs

    @property
    def live_count(self) -> int:
        """Jobs whose clients wait."""
        return len(self._live)

    def _submission(self, request: Request) -> Submission:
        job = self._live[request.request_id].job
        sampling, prompt = job.sampling, np.array(job.prompt, np.uint32)
        self._noted(request, prompt)
        return Submission(
            request.request_id, request.prompt_tokens, request.output_tokens_max, sampling.temperature,
            sampling.top_p, sampling.top_k, self._seed(job), prompt.tobytes(),
        )  # fmt: skip

    def _noted(self, request: Request, prompt: Tokens) -> None:
        """Its prompt is about to be sent."""

    def _seed(self, job: Job) -> int:
        """Of sampling, 32 bits."""
        seed = (job.sampling.seed or 0) & _WORD
        return (seed ^ seed >> 32) & _SEED

    def _tell_times(self, live: Live) -> None:
        """What is known of a job's times, unless it has been told."""
        if live.job.stored_ns < 0:
            for name in ("published_ns", "claimed_ns", "stored_ns"):
                time_ns = getattr(live.request, name)
                if time_ns >= 0:
                    setattr(live.job, name, time_ns + self._start_ns)

    def _tell(self, request: Request, now_ns: int) -> None:
        live = self._live.pop(request.request_id, None)
        if live is not None and request.outcome is not Outcome.CANCELLED:
            live.job.take((), Finish.ERROR if request.status < 0 else finish_of(request.status))

    def _recycle(self, slots: list[int]) -> None:
        super()._recycle(slots)
        for slot in slots:  # the generation that ended is still named by records that are under way
            self._by_life.pop((slot, self.slots.generation(slot) - 2), None)


class StubFrontend(LiveFrontend):
    """The stub's tokens become the job's text; one that is wrong becomes wrong text."""

    def __init__(self, setup: Setup, instance: TakenRing, link: KeeperLink, recorder: Recorder, text: StubText) -> None:
        self._text = text
        super().__init__(setup, instance, link, recorder)

    def _live_of(self, job: Job) -> Live:
        key = self._text.key(job)
        eos_at = self._text.eos_at(job, key)
        text = self._text.text(key, min(eos_at, job.output_tokens_max))
        return Live(job, self._request(job, eos_at), key, text)

    def _noted(self, request: Request, prompt: Tokens) -> None:
        self._seeds[request.request_id] = seed_of(request.request_id, prompt)

    def _check(self, news: News, count: I64, tokens: Tokens) -> None:
        before = self.counters.wrong_tokens
        self.before_tokens()
        super()._check(news, count, tokens)
        wrong = self.counters.wrong_tokens - before
        for slot, start, end in zip(
            news.slots.tolist(), news.token_from.tolist(), news.token_count.tolist(), strict=True
        ):
            live = self._live.get(self._by_slot[slot].request_id)
            if live is not None and end > start:
                self._tell_times(live)
                errors = [int(wrong > 0 and self._wrong[slot] > 0)] * (end - start)
                given = self._text.piece(live.key, start, errors) if wrong else live.text[start:end]
                live.job.take(given, None)


class ModelFrontend(LiveFrontend):
    """A model's tokens, as they are or through `readable`. EOS ends a text on the device, where it may.

    `eos_at` of its requests is the slot's word (`eos_word`), not a count: how long a model's text is, nobody knows.
    """

    def __init__(
        self,
        setup: Setup,
        instance: TakenRing,
        link: KeeperLink,
        recorder: Recorder,
        seed: int,
        readable: Callable[[Tokens], list[int]],
    ) -> None:
        """`seed` is of requests that bring none. `readable` makes tokens of the model tokens of the tokenizer."""
        self._server_seed, self._readable = seed, readable
        super().__init__(setup, instance, link, recorder, Texts(self._prompt, self._taken))

    def _live_of(self, job: Job) -> Live:
        sampling = job.sampling
        return Live(job, self._request(job, eos_word(sampling.min_tokens, ignored=sampling.ignore_eos)))

    def _prompt(self, request: Request) -> Tokens:
        return np.array(self._live[request.request_id].job.prompt, np.uint32)

    def _seed(self, job: Job) -> int:
        if job.sampling.seed is not None:
            return super()._seed(job)
        mixed = mix(np.array([self._server_seed + (job.number << 16) & _WORD], np.uint64))
        return int(mixed[0]) & _SEED

    def _assign(self, submission: Submission, slot: int, now: int) -> Request:
        request = super()._assign(submission, slot, now)
        self._ring.set_eos(slot, request.eos_at)
        return request

    def _give(self, texts: Texts, news: News, count: I64, tokens: Tokens) -> None:
        self.before_tokens()
        super()._give(texts, news, count, tokens)

    def _taken(self, request: Request, index: int, tokens: Tokens) -> None:
        live = self._live.get(request.request_id)
        if live is not None:
            self._tell_times(live)
            live.job.take(self._readable(tokens), None)
