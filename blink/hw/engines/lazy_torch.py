"""PyTorch, imported when an engine is made: one sentence where it is missing."""

from __future__ import annotations

from typing import Any

from blink.common.errors import InputError
from blink.common.optional import need


def need_torch(what: str = "the torch engine") -> Any:
    return need("torch", what, "torch")


def need_gpu(what: str) -> Any:
    """PyTorch on a machine with a GPU that it sees."""
    torch = need_torch(what)
    if not torch.cuda.is_available():
        raise InputError(f"{what} needs an NVIDIA GPU; PyTorch sees none")
    return torch
