"""What the clients ask for: how many requests, when, of which lengths, and what they give up on."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blink.common.config.fields import REQUIRED, Float, Int, Table, Text, option, refuse

TOKENS_MAX = (1 << 20) - 1  # what a slot's token count can hold
REQUESTS_MAX = 10_000_000
DIALECT_TEXT = "Dialect of the trace file; `auto` recognises it."

Tokens = Annotated[Int, Field(ge=1, le=TOKENS_MAX)]
TokenRange = Annotated[tuple[Tokens, Tokens], Field(json_schema_extra={"form": "[minimum, maximum]"})]


class PoissonArrivals(Table):
    """Exponential gaps: clients that do not know of each other."""

    kind: Literal["poisson"]
    rate: Float = option(REQUIRED, "Mean request rate.", "requests/s", gt=0, le=1e6)


class GammaArrivals(Table):
    """Gamma-distributed gaps; coefficient of variation 1/sqrt(burstiness)."""

    kind: Literal["gamma"]
    rate: Float = option(REQUIRED, "Mean request rate.", "requests/s", gt=0, le=1e6)
    burstiness: Float = option(
        REQUIRED, "Shape of the gamma distribution: below 1 burstier than Poisson, above 1 more regular.", gt=0, le=1e6
    )


class ConstantArrivals(Table):
    """Equal gaps."""

    kind: Literal["constant"]
    rate: Float = option(REQUIRED, "Request rate.", "requests/s", gt=0, le=1e6)


RatePoint = tuple[Annotated[Float, Field(ge=0, le=1e9)], Annotated[Float, Field(gt=0, le=1e6)]]


class CurveArrivals(Table):
    """A Poisson process whose rate changes with time: clients that do not know of each other, by the time of day."""

    kind: Literal["curve"]
    points: Annotated[tuple[RatePoint, ...], Field(min_length=2)] = option(
        REQUIRED, "`[seconds, requests/s]` each, the first at 0; straight lines between them, the last rate after it."
    )

    @model_validator(mode="after")
    def _rise(self) -> Self:
        times = [at_s for at_s, _ in self.points]
        if times[0] != 0 or times != sorted(set(times)):
            raise refuse("points", "the seconds must begin at 0 and rise, each once")
        return self


class AllAtOnceArrivals(Table):
    """Every request at time 0."""

    kind: Literal["all-at-once"]


class ClosedLoopArrivals(Table):
    """A fixed number of clients, each of which sends its next request when the last one ends."""

    kind: Literal["closed-loop"]
    concurrency: Int = option(REQUIRED, "Clients, so requests in flight at most.", "requests", ge=1, le=REQUESTS_MAX)


class TraceArrivals(Table):
    """The times that the trace file holds."""

    kind: Literal["trace"]


Arrivals = Annotated[
    PoissonArrivals
    | GammaArrivals
    | ConstantArrivals
    | CurveArrivals
    | AllAtOnceArrivals
    | ClosedLoopArrivals
    | TraceArrivals,
    Field(discriminator="kind"),
]
OPEN_LOOP = ("poisson", "gamma", "constant", "curve")


class FixedLengths(Table):
    """The same lengths for every request."""

    kind: Literal["fixed"]
    prompt_tokens: Tokens = option(REQUIRED, "Prompt length.", "tokens")
    output_tokens: Tokens = option(REQUIRED, "Tokens until the model says EOS.", "tokens")


class UniformLengths(Table):
    """Whole numbers, equally likely between two bounds that both belong to it."""

    kind: Literal["uniform"]
    prompt_tokens: TokenRange = option(REQUIRED, "Prompt length, `[minimum, maximum]`.", "tokens")
    output_tokens: TokenRange = option(REQUIRED, "Tokens until the model says EOS, `[minimum, maximum]`.", "tokens")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if low > high:
                raise refuse(name, f"= [{low}, {high}]: minimum must not exceed maximum")
        return self


class LognormalLength(Table):
    """A log-normal length, cut to bounds; `mean` is the mean after the cut."""

    mean: Float = option(REQUIRED, "Mean length after the cut.", "tokens", gt=0)
    sigma: Float = option(REQUIRED, "Standard deviation of ln(length) before the cut.", gt=0, le=10)
    minimum: Tokens = option(1, "Shortest length.", "tokens")
    maximum: Tokens = option(8192, "Longest length.", "tokens")

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.minimum >= self.maximum:
            raise refuse("maximum", f"= {self.maximum}: must be above minimum = {self.minimum}")
        if not self.minimum < self.mean < self.maximum:
            raise refuse(
                "mean", f"= {self.mean}: must be between minimum = {self.minimum} and maximum = {self.maximum}"
            )
        return self


class LognormalLengths(Table):
    """Independent log-normal lengths of prompt and output."""

    kind: Literal["lognormal"]
    prompt_tokens: LognormalLength = option(REQUIRED, "Distribution of the prompt length.")
    output_tokens: LognormalLength = option(REQUIRED, "Distribution of the tokens until the model says EOS.")


class SharegptLikeLengths(Table):
    """Log-normal lengths with the published means of ShareGPT v3."""

    kind: Literal["sharegpt-like"]


class FileLengths(Table):
    """Pairs of lengths out of a trace file; its times are not used."""

    kind: Literal["file"]
    file: Text = option(REQUIRED, "Path of the trace file.")
    dialect: Text = option("auto", DIALECT_TEXT)
    order: Literal["in-order", "resampled"] = option(
        "resampled", "`in-order`: the file's first rows, as they come; `resampled`: drawn with replacement."
    )


Lengths = Annotated[
    FixedLengths | UniformLengths | LognormalLengths | SharegptLikeLengths | FileLengths, Field(discriminator="kind")
]


class TraceSource(Table):
    """A file of recorded requests that stands in for `lengths`, and for `arrivals` where it has times."""

    file: Text = option(REQUIRED, "Path of the trace file.")
    dialect: Text = option("auto", DIALECT_TEXT)
    limit: Int | None = option(None, "Rows to use, from the first. Unset: all.", "requests", ge=1, le=REQUESTS_MAX)
    rate_scale: Float = option(
        1.0, "How many times as often requests arrive; pauses inside a session stay as they are.", "ratio", gt=0, le=1e6
    )
    time_scale: Float = option(
        1.0, "Factor on every time of the trace: arrivals and pauses inside a session.", "ratio", gt=0, le=1e6
    )


class TracedOutput(Table):
    """Each client asks for exactly as many tokens as the trace or the draw holds."""

    kind: Literal["traced"]


class CapOutput(Table):
    """Every client asks for the same number; the model may say EOS before."""

    kind: Literal["cap"]
    value: Tokens = option(REQUIRED, "Tokens that every request asks for.", "tokens")


class MultipleOutput(Table):
    """Each client asks for a multiple of what the model will say, rounded up: a reservation that is too large."""

    kind: Literal["multiple"]
    value: Float = option(REQUIRED, "Factor on the traced or drawn length.", "ratio", ge=1, le=1000)


OutputTokensMax = Annotated[TracedOutput | CapOutput | MultipleOutput, Field(discriminator="kind")]


class Cancel(Table):
    """Clients that hang up."""

    fraction: Float = option(0.0, "Share of requests whose client hangs up if not served by then.", "share", ge=0, le=1)
    after_s: Float = option(
        10.0, "Mean of the exponential patience, from the sending of the request.", "s", gt=0, le=1e6
    )


class SharedPrefix(Table):
    """Prompts of one group begin with the same tokens, such as a system prompt; what follows is each one's own."""

    groups: Int = option(REQUIRED, "Different beginnings, each as likely as the others.", "prefixes", ge=1, le=1 << 20)
    tokens: Tokens = option(REQUIRED, "Length of the common beginning; a shorter prompt is all of it.", "tokens")


class Workload(Table):
    """Requests, in number and in kind."""

    requests: Int | None = option(None, "Requests to send.", "requests", ge=1, le=REQUESTS_MAX)
    duration_s: Float | None = option(
        None, "Send requests for this long, then drain. With `requests`: whichever ends first.", "s", gt=0, le=1e7
    )
    arrivals: Arrivals | None = option(None, "When requests are sent. With a trace that has times: not used.")
    lengths: Lengths | None = option(None, "Lengths of prompt and output. With a trace: not used.")
    trace: TraceSource | None = option(None, "Recorded requests in place of drawn ones.")
    output_tokens_max: OutputTokensMax = option(
        TracedOutput(kind="traced"), "How many tokens a client asks for; EOS comes at the traced or drawn length."
    )
    cancel: Cancel = option(Cancel(), "Clients that hang up.")
    shared_prefix: SharedPrefix | None = option(
        None, "What drawn prompts have in common, for serving.prefix_caching and prefix-affinity. Unset: nothing."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.trace is None:
            self._drawn()
        return self

    def _drawn(self) -> None:
        if self.arrivals is None:
            raise refuse("arrivals", "is missing: needed unless workload.trace is given")
        if self.lengths is None:
            raise refuse("lengths", "is missing: needed unless workload.trace is given")
        kind = self.arrivals.kind
        if kind == "trace":
            raise refuse("trace", "is missing: arrivals.kind = 'trace' needs workload.trace.file")
        if kind in OPEN_LOOP and self.requests is None and self.duration_s is None:
            raise refuse("requests", f"is missing: {kind} arrivals need requests or duration_s")
        if kind not in OPEN_LOOP and self.requests is None:
            raise refuse("requests", f"is missing: {kind} arrivals need it")
        if kind not in OPEN_LOOP and self.duration_s is not None:
            raise refuse("duration_s", f"= {self.duration_s}: {kind} arrivals end with requests, leave it out")
