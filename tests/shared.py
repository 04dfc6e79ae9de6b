"""Where the optional shared data lies: traces and measurements that are not part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("BLINK_SHARED", ROOT.parent / "shared"))


def shared_path(relative: str) -> Path:
    """The path of a shared file, or a skip of the calling test with the reason."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"shared data absent: {relative} (set BLINK_SHARED to its folder)")
    return path
