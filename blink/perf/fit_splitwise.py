"""Prompt and token times of the A100 rows of splitwise-sim: `python -m blink.perf.fit_splitwise CSV`.

Rows with an even batch size are fitted, those with an odd one (batch 1, every prompt length) are predicted. Both models
and every degree of tensor parallelism share one set of constants. The measured engine launched its kernels from the
CPU one by one, so a step takes the longer of the roofline and of its launches. The one input is the CSV file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from blink.common.errors import InputError
from blink.common.units import NS_PER_MS
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.search import Constants, fit_constants
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

SHAPES = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
GPU, ENGINE, HARDWARE = "a100-80gb", "torch-capture", "a100-80gb"
EFFICIENCIES = ("memory_efficiency", "flops_efficiency", "attention_bandwidth_efficiency", "attention_flops_efficiency")
LAUNCH, REDUCE = "kernel_launch_ns", "all_reduce_latency_ns"
START_LAUNCH_NS = 10_000.0
FIELDS = (
    "model",
    "hardware",
    "prompt_size",
    "batch_size",
    "token_size",
    "prompt_time",
    "token_time",
    "tensor_parallel",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The mean of equal measurements: `prompt_ms` for the whole batch, `token_ms` for one decode step."""

    model: str
    tensor_parallel: int
    prompt: int
    batch: int
    output: int
    prompt_ms: float
    token_ms: float

    @property
    def fitted(self) -> bool:
        """Whether it takes part in the fit."""
        return self.batch % 2 == 0

    @property
    def group(self) -> str:
        """Rows that are reported together."""
        return f"{self.model} x{self.tensor_parallel}, {'even batch' if self.fitted else 'batch 1'}"


@dataclass(frozen=True, slots=True)
class Predicted:
    """A row beside the model's times in ms."""

    row: Row
    prompt_ms: float
    token_ms: float

    @property
    def errors(self) -> tuple[float, float]:
        """Of prompt and token time, relative to the measurement."""
        return self.prompt_ms / self.row.prompt_ms - 1.0, self.token_ms / self.row.token_ms - 1.0


def read_rows(path: Path) -> list[Row]:
    """The A100 rows, repeated measurements averaged. InputError names file, row and field."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    repeats: dict[tuple[str, int, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for number, raw in enumerate(found, 2):
        for name in FIELDS:
            if raw.get(name) is None:
                raise InputError(f"{path}: row {number}: {name}: missing; needed: {', '.join(FIELDS)}")
        if raw["hardware"] != HARDWARE:
            continue
        if raw["model"] not in SHAPES:
            raise InputError(f"{path}: row {number}: model: {raw['model']!r}; allowed: {', '.join(SHAPES)}")
        try:
            sizes = (int(raw[name]) for name in ("tensor_parallel", "prompt_size", "batch_size", "token_size"))
            times = float(raw["prompt_time"]), float(raw["token_time"])
        except ValueError as error:
            raise InputError(f"{path}: row {number}: {error}") from None
        ways, prompt, batch, output = sizes
        repeats[raw["model"], ways, prompt, batch, output].append(times)
    if not repeats:
        raise InputError(f"{path}: holds no row of {HARDWARE}")
    return [Row(*key, *_means(times)) for key, times in sorted(repeats.items())]


def _means(times: list[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(prompt for prompt, _ in times) / len(times), math.fsum(token for _, token in times) / len(times)


class Fit:
    """Predictions of rows under different constants."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._gpu, self._engine = GpuProfile.load(GPU), EngineProfile.load(ENGINE)
        self._shapes = {name: ModelShape.load(shape) for name, shape in SHAPES.items()}

    def predict(self, rows: list[Row], constants: Constants) -> list[Predicted]:
        """Every row with these constants; the KV length of a token is that in the middle of the output."""
        values = {name: constants[name] for name in EFFICIENCIES} | {REDUCE: round(constants[REDUCE])}
        gpu = dataclasses.replace(self._gpu, **values)  # type: ignore[arg-type]  # floats, and one integer
        models: dict[tuple[str, int], StepModel] = {}
        found = []
        for row in rows:
            key = row.model, row.tensor_parallel
            if key not in models:
                models[key] = StepModel(self._shapes[row.model], gpu, 2, row.tensor_parallel, self._engine)
            step = models[key]
            launches_ns = step.kernel_count() * constants[LAUNCH]
            kv_tokens = row.batch * (row.prompt + row.output // 2)
            prompt_ns = max(step.prefill_ns(row.batch, row.prompt), launches_ns)
            token_ns = max(step.decode_ns(row.batch, kv_tokens), launches_ns)
            found.append(Predicted(row, prompt_ns / NS_PER_MS, token_ns / NS_PER_MS))
        return found

    def loss(self, constants: Constants) -> float:
        """Mean absolute logarithm of predicted over measured, of the fitted rows: no outlier outweighs the others."""
        terms = []
        for found in self.predict([row for row in self.rows if row.fitted], constants):
            terms.append(abs(math.log(found.prompt_ms / found.row.prompt_ms)))
            terms.append(abs(math.log(found.token_ms / found.row.token_ms)))
        return math.fsum(terms) / len(terms)

    def fit(self) -> Constants:
        """The constants that fit the rows of even batch size best."""
        start = {name: getattr(self._gpu, name) for name in EFFICIENCIES}
        start |= {LAUNCH: START_LAUNCH_NS, REDUCE: float(self._gpu.all_reduce_latency_ns)}
        bounds = dict.fromkeys(EFFICIENCIES, (0.05, 1.0)) | {LAUNCH: (500.0, 1e5), REDUCE: (1000.0, 1e6)}
        return fit_constants(start, bounds, self.loss)


def report(fit: Fit, constants: Constants) -> str:
    """The constants, and for each group of rows the median and the largest error of prompt and token times."""
    lines = [f"{name} = {round(value, 4)}" for name, value in constants.items()]
    lines += [
        "",
        f"{'group':30} {'rows':>4} {'prompt |error|: median':>22} {'max':>6} {'token: median':>14} {'max':>6}",
    ]
    groups: dict[str, list[Predicted]] = defaultdict(list)
    for found in fit.predict(fit.rows, constants):
        groups[found.row.group].append(found)
    for name, rows in sorted(groups.items()):
        prompt, token = ([abs(row.errors[index]) for row in rows] for index in (0, 1))
        lines.append(
            f"{name:30} {len(rows):4d} {statistics.median(prompt):22.1%} {max(prompt):6.0%} "
            f"{statistics.median(token):14.1%} {max(token):6.0%}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the fit; 2 with one line on stderr if the file is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.perf.fit_splitwise", description=__doc__)
    parser.add_argument("csv", type=Path, help="splitwise-sim's table of measured runs")
    parser.add_argument("--rows", action="store_true", help="print every row, too")
    options = parser.parse_args(arguments)
    try:
        fit = Fit(read_rows(options.csv))
        constants = fit.fit()
        print(report(fit, constants))
        for found in fit.predict(fit.rows, constants) if options.rows else ():
            row = found.row
            print(
                f"{row.group:30} prompt {row.prompt:5d} batch {row.batch:3d} output {row.output:5d} "
                f"prompt {row.prompt_ms:9.1f} -> {found.prompt_ms:9.1f} ms  token {row.token_ms:6.2f} -> "
                f"{found.token_ms:6.2f} ms"
            )
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
