"""Puts the device scheduler's sources into the package: the native backend compiles them on first use."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithKernels(build_py):
    """Copies `kernels/` to `blink/kernels` of a wheel. A source tree is used as it stands."""

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "blink" / "kernels"
            shutil.copytree(ROOT / "kernels", target, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithKernels})
