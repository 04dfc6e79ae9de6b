"""The programme on this machine's GPU, from the engine on."""

from __future__ import annotations

from collections.abc import Callable

from blink.common.config import Scenario
from blink.frontend.tokenizer import Tokenizer
from blink.hw.cuda.calibration.programme import Programme, measure
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.model_run import engine_limits
from blink.hw.engines.torch_engine import TorchEngine
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
    kernels = load_kernels()
    say(f"building {model}")
    engine = TorchEngine.of_model(model, engine_limits(scenario))
    try:
        return measure(kernels, engine, scenario, programme, tokenizer=tokenizer, say=say)
    finally:
        engine.close()
