"""The question of `blink plan`: traffic, objectives, candidates, limits; one TOML file, checked at the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from blink.common.config.explain import explain
from blink.common.config.fields import REQUIRED, Bool, Float, Int, Table, Text, option, refuse
from blink.common.config.fleet import REPLICAS_MAX, Router
from blink.common.config.load import read_toml
from blink.common.errors import InputError
from blink.plan.variant import INTERFERENCE_LEVELS, SYSTEM_KINDS

HOURS_A_DAY = 24.0
CHUNK_MIN = 16
Names = Annotated[tuple[Text, ...], Field(min_length=1)]
Degrees = Annotated[tuple[Annotated[Int, Field(ge=1, le=64)], ...], Field(min_length=1)]
Dtype = Literal["bf16", "fp16", "fp8"]
Chunk = Annotated[Int, Field(ge=0, le=1 << 20)]
Drafts = Annotated[Int, Field(ge=0, le=64)]
CurvePoint = tuple[Annotated[Float, Field(ge=0, lt=HOURS_A_DAY)], Annotated[Float, Field(gt=0, le=1e6)]]


class Traffic(Table):
    """What has to be carried: a rate, a curve over the day, or the scenario's own trace; and how it grows."""

    rate: Float | None = option(None, "Requests/s, Poisson, at the busiest time.", "requests/s", gt=0, le=1e6)
    curve: Annotated[tuple[CurvePoint, ...], Field(min_length=2)] | None = option(
        None, "Over the day: `[hour, requests/s]` each, straight lines between them, and over midnight."
    )
    trace: Text | None = option(None, "Path of a file of recorded requests; it is carried as it stands.")
    growth_per_month: Float = option(0.0, "By which share the traffic grows each month.", "share", ge=-0.5, le=5)
    months: Float = option(0.0, "For how long it has grown when the fleet must still carry it.", "months", ge=0, le=120)
    window_s: Float = option(
        120.0, "Simulated seconds of the busiest time. The first quarter fills the fleet and is not judged.", "s",
        ge=10, le=86_400,
    )  # fmt: skip

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("rate", "curve", "trace") if getattr(self, name) is not None]
        if not given:
            raise refuse("rate", "is missing: give rate, curve or trace")
        if len(given) > 1:
            raise refuse(given[1], f"{given[0]} is given too: give one of them")
        if self.curve and [hour for hour, _ in self.curve] != sorted({hour for hour, _ in self.curve}):
            raise refuse("curve", "the hours must rise, each once")
        return self

    @property
    def growth(self) -> float:
        """The traffic at the end over that of today."""
        return float((1.0 + self.growth_per_month) ** self.months)

    @property
    def peak_rate(self) -> float | None:
        """Requests/s at the busiest time, grown; None for a trace, which has times of its own."""
        today = self.rate if self.curve is None else max(rate for _, rate in self.curve)
        return None if today is None else today * self.growth


class Goodput(Table):
    """A share of requests that keep every bound that is set."""

    share: Float = option(REQUIRED, "Share of the requests that must keep all of them.", "share", gt=0, le=1)
    ttft_ms: Float | None = option(None, "Time to first token, at most.", "ms", gt=0)
    tpot_ms: Float | None = option(None, "Time per output token after the first, at most.", "ms", gt=0)
    e2e_ms: Float | None = option(None, "Time from sending to the last token, at most.", "ms", gt=0)

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise refuse("ttft_ms", "is missing: give ttft_ms, tpot_ms or e2e_ms")
        return self


class Objectives(Table):
    """What the clients must see."""

    p99_ttft_ms: Float | None = option(None, "P99 of the time to first token, at most.", "ms", gt=0)
    p99_tpot_ms: Float | None = option(None, "P99 of the time per output token after it, at most.", "ms", gt=0)
    goodput: Goodput | None = option(None, "A share of requests that keep bounds of their own.")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.p99_ttft_ms is None and self.p99_tpot_ms is None and self.goodput is None:
            raise refuse("p99_ttft_ms", "is missing: give p99_ttft_ms, p99_tpot_ms or goodput")
        return self


class Candidates(Table):
    """What may carry it; every combination is one candidate. What is not given stays as the scenario has it."""

    systems: Names | None = option(None, f"Serving stacks: {', '.join(SYSTEM_KINDS)}.")
    models: Names | None = option(None, "Model profiles that would do equally well.")
    gpus: Names | None = option(None, "GPU profiles.")
    tensor_parallel: Degrees | None = option(None, "GPUs over which each layer is split.", "GPUs")
    pipeline_parallel: Degrees | None = option(None, "Groups of such GPUs, each with a part of the layers.", "stages")
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)] | None = option(None, "Number formats of the model.")
    chunk_tokens: Annotated[tuple[Chunk, ...], Field(min_length=1)] | None = option(
        None, "Chunked prefill: tokens of a piece, from 16 on; 0: as the engine has it.", "tokens"
    )
    prefix_caching: Annotated[tuple[Bool, ...], Field(min_length=1)] | None = option(
        None, "Whether keys and values of prompts are kept for those that begin alike."
    )
    draft_tokens: Annotated[tuple[Drafts, ...], Field(min_length=1)] | None = option(
        None, "Speculative decoding: tokens that are proposed before each step; 0: none.", "tokens"
    )
    draft_acceptance: Float | None = option(
        None, "With draft_tokens: probability that a proposed token is accepted.", "share", ge=0, le=1
    )
    draft_cost: Float = option(
        0.1, "With draft_tokens: time of a draft step and memory of the draft's weights, over the model's.", "ratio",
        ge=0, le=1,
    )  # fmt: skip
    interference: Names = option(
        ("none",), f"What else runs on the hosts: {', '.join(INTERFERENCE_LEVELS)}; two are compared."
    )
    prices: dict[Text, Text] = option({}, "GPU profile -> price profile, where it is not the scenario's.")
    router: Router = option("least-outstanding", "As in a scenario's [fleet].")
    fleet: Text = option("one-rack", "Fleet profile.")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, allowed in (("systems", SYSTEM_KINDS), ("interference", INTERFERENCE_LEVELS)):
            for value in getattr(self, name) or ():
                if value not in allowed:
                    raise refuse(name, f"{value!r} is not known; allowed: {', '.join(allowed)}")
        for name in (
            "systems", "models", "gpus", "tensor_parallel", "pipeline_parallel", "dtypes", "chunk_tokens",
            "prefix_caching", "draft_tokens", "interference",
        ):  # fmt: skip
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise refuse(name, "a value is given twice")
        for tokens in self.chunk_tokens or ():
            if 0 < tokens < CHUNK_MIN:
                raise refuse("chunk_tokens", f"{tokens} is not allowed; allowed: 0, or from {CHUNK_MIN} on")
        if any(self.draft_tokens or ()) and self.draft_acceptance is None:
            raise refuse("draft_acceptance", "is missing: needed with draft_tokens above 0")
        for gpu in self.prices:
            if self.gpus is None or gpu not in self.gpus:
                raise refuse("prices", f"{gpu!r} is not among candidates.gpus")
        return self


class Caps(Table):
    """What the fleet may take."""

    gpus_max: Int = option(64, "GPUs, at most.", "GPUs", ge=1, le=REPLICAS_MAX)
    power_kw_max: Float | None = option(None, "Wall power at the busiest time, at most.", "kW", gt=0)
    usd_per_month_max: Float | None = option(None, "Cost, at most.", "USD/month", gt=0)


class Follow(Table):
    """Whether the number of replicas follows the day: as [fleet.autoscale] of a scenario, up to the fleet's number."""

    target: Float | None = option(
        None, "Requests under way that a replica is meant to have. Unset: as many as in the busiest hour that fewer "
        "replicas carry.", "requests", gt=0, le=1e6,
    )  # fmt: skip
    replicas_min: Int = option(1, "Replicas, at least.", "replicas", ge=1, le=REPLICAS_MAX)
    interval_s: Float = option(15.0, "How often the load is looked at.", "s", gt=0, le=3600)
    lag_s: Float = option(30.0, "From the decision until a new replica begins to warm up.", "s", ge=0, le=3600)
    down_after_s: Float = option(
        300.0, "For how long fewer must have been wanted before one is drained.", "s", ge=0, le=86_400
    )


class Search(Table):
    """How hard the answer is looked for."""

    seeds: Int = option(3, "Runs with which an answer is verified.", "runs", ge=2, le=50)
    cost_ratio_max: Float = option(
        1.5, "Candidates that are proven to cost so many times the cheapest fleet are not simulated.", "ratio", ge=1
    )


class Question(Table):
    """A question of capacity."""

    name: Text = option(REQUIRED, "Name of the question, as reports print it.")
    description: str | None = option(None, "The question in words.")
    scenario: Text = option(REQUIRED, "Path of the scenario that all candidates share: lengths, limits, host, links.")
    set: tuple[Text, ...] = option((), "Options of the scenario that are changed, as `table.key=value`.")
    traffic: Traffic = option(REQUIRED, "What has to be carried.")
    slo: Objectives = option(REQUIRED, "What the clients must see.")
    candidates: Candidates = option(Candidates(), "What may carry it.")
    autoscale: Follow | None = option(None, "Whether it is tried to follow the curve with so much lag; needs a curve.")
    limits: Caps = option(Caps(), "What the fleet may take.")
    search: Search = option(Search(), "How hard the answer is looked for.")

    @model_validator(mode="after")
    def _follows(self) -> Self:
        if self.autoscale is not None and self.traffic.curve is None:
            raise refuse("autoscale", "is given without traffic.curve: there is nothing to follow")
        return self


def load_question(path: str | Path) -> Question:
    """Read a question. Relative paths in it are taken from its folder.

    Raises InputError: one line that names the file, the field, the value and what is allowed.
    """
    path = Path(path)
    document = read_toml(path)
    _relocate(document, path.parent)
    return parse_question(document, str(path))


def parse_question(document: dict[str, Any], source: str) -> Question:
    """The same from plain data; `source` names it in messages."""
    try:
        return Question.model_validate(document)
    except ValidationError as error:
        raise InputError(explain(error, document, source, {}, Question.model_json_schema())) from None


def _relocate(document: dict[str, Any], folder: Path) -> None:
    if isinstance(document.get("scenario"), str):
        document["scenario"] = (folder / document["scenario"]).as_posix()
    traffic = document.get("traffic")
    if isinstance(traffic, dict) and isinstance(traffic.get("trace"), str):
        traffic["trace"] = (folder / traffic["trace"]).as_posix()
    candidates = document.get("candidates")
    if isinstance(candidates, dict):
        candidates.update({name: _moved(value, folder) for name, value in candidates.items()})


def _moved(value: Any, folder: Path) -> Any:
    """Profiles that are paths, by the rule of the profiles' loader."""
    if isinstance(value, str) and (value.endswith(".toml") or "/" in value):
        return (folder / value).as_posix()
    if isinstance(value, list):
        return [_moved(entry, folder) for entry in value]
    if isinstance(value, dict):
        return {key: _moved(entry, folder) for key, entry in value.items()}
    return value
