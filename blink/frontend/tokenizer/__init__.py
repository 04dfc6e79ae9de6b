"""Tokenizers of the frontend: a built-in one, one from a small model's package, any local folder.

Every package that one of them needs is imported when it is opened.
"""

from __future__ import annotations

from pathlib import Path

from blink.common.errors import InputError
from blink.frontend.tokenizer.base import Message, TextStream, Tokenizer

__all__ = ["BUILT_IN", "Message", "TextStream", "Tokenizer", "open_tokenizer"]

BUILT_IN = ("bytes", "smollm2")
"""Names that need no folder. `smollm2` needs the package that carries the model."""


def open_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a built-in name or of a folder with a tokenizer.json. Raises InputError for anything else."""
    if name == "bytes":
        from blink.frontend.tokenizer.byte_level import ByteTokenizer

        return ByteTokenizer()
    if name == "smollm2":
        from blink.frontend.tokenizer.smollm2 import load

        return load()
    if not (Path(name) / "tokenizer.json").is_file():
        allowed = ", ".join(BUILT_IN)
        raise InputError(f"--tokenizer: {name!r} is not allowed; allowed: {allowed}, or a folder with a tokenizer.json")
    from blink.frontend.tokenizer.folder import FolderTokenizer

    return FolderTokenizer(Path(name))
