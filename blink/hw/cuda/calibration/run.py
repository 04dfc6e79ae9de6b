"""The programme on this machine's GPU, from the engine on."""

from __future__ import annotations

from collections.abc import Callable

from blink.common.config import Scenario
from blink.frontend.tokenizer import Tokenizer
from blink.hw.cuda.calibration.programme import Programme, measure
from blink.hw.cuda.calibration.serving import open_machine
from blink.hw.cuda.lockstep import load_kernels
from blink.perf.calibration.measurements import Measurements


def measure_machine(
    scenario: Scenario,
    model: str,
    programme: Programme,
    *,
    tokenizer: Tokenizer | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """Measure the torch engine with this model under a scenario's limits. Raises InputError for what cannot run."""
    with open_machine(scenario, model, say) as machine:
        return measure(
            load_kernels(), machine.engine, machine.on_gpu, machine.on_host, scenario, programme,
            tokenizer=tokenizer, say=say,
        )  # fmt: skip
