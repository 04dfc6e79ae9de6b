"""Measurements that were not published with Blink: a recorded vLLM run, the A100 rows of splitwise-sim."""

from __future__ import annotations

from pathlib import Path

from blink.common.config import load_scenario
from blink.perf import fit_splitwise
from blink.sim.engines import replay

MEASURED = "A recorded run of vLLM"
SPLITWISE = "The A100 rows of splitwise-sim"
FITTED_REQUESTS = 100
NOT_COMPARED = {
    MEASURED: "Not compared: give --measured with a scenario whose trace is the recorded run, such as\n"
    "scenarios/vllm-rtx4090-measured.toml, where the file that it names is present.",
    SPLITWISE: "Not compared: give --splitwise with the CSV file of measurements from splitwise-sim.",
}
"""What stands in a comparison's place where its data is not given."""


def sections(measured: str | None, splitwise: str | None) -> dict[str, str]:
    """Title and text of each comparison. InputError for data that is absent or wrong."""
    return {
        MEASURED: _measured(measured) if measured else NOT_COMPARED[MEASURED],
        SPLITWISE: _splitwise(Path(splitwise)) if splitwise else NOT_COMPARED[SPLITWISE],
    }


def _measured(scenario: str) -> str:
    return replay.report(*replay.replay(load_scenario(scenario)), FITTED_REQUESTS)


def _splitwise(path: Path) -> str:
    fit = fit_splitwise.Fit(fit_splitwise.read_rows(path))
    return fit_splitwise.report(fit, fit.fit())
