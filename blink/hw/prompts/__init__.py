"""What a model is asked where nobody gives a scenario: a packaged scenario, and prompts of a line each."""

from __future__ import annotations

from pathlib import Path

from blink.common.config.toml import inline
from blink.common.errors import InputError
from blink.common.profile import list_profiles

SCENARIO = Path(__file__).with_name("scenario.toml")
_PROMPTS = Path(__file__).with_name("prompts.txt")


def default_prompts() -> list[str]:
    """The packaged prompts."""
    return _PROMPTS.read_text(encoding="utf-8").splitlines()


def model_override(model: str) -> str:
    """What makes SCENARIO one of another model, as `--set` takes it.

    Raises InputError for what has no shape that a plan of the GPU's memory could be made from.
    """
    if model in list_profiles("model"):
        return f"model.profile={model}"
    config = Path(model) / "config.json"
    if config.is_file():
        return f"model={inline({'hf_config': config.resolve().as_posix()})}"
    raise InputError(
        f"--model: {model!r} is not allowed without a SCENARIO; allowed: a model profile (blink profiles list), or a "
        "folder with a config.json"
    )
