"""The scheduler, several scan threads, an engine thread and a frontend under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from blink.hw.native.build import kernels_folder, require_compiler
from tests.hw.native_help import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]
SANITIZERS = ("thread", "address,undefined")
REQUESTS, SCAN_THREADS = "1500", "4"


def compiled(folder: Path, sanitizer: str, *flags: str) -> Path:
    """The stress program under a sanitizer; a skip where the compiler does not come with it."""
    kernels, program = kernels_folder(), folder / "stress"
    command = [require_compiler(), "-O1", "-g", "-std=c++17", "-pthread", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    command += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", *flags, f"-I{kernels / 'include'}"]
    command += [str(kernels / "src" / "stress.cpp"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and ("cannot find" in done.stderr or "unsupported option" in done.stderr):
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """The program's end; without address randomisation where the sanitizer cannot live with the kernel's."""
    command = [str(program), REQUESTS, SCAN_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "unexpected memory mapping" in done.stderr and shutil.which("setarch"):
        done = subprocess.run(["setarch", "-R", *command], capture_output=True, text=True, timeout=120, check=False)
    return done


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_nothing_to_report(sanitizer: str, tmp_path: Path) -> None:
    done = run(compiled(tmp_path, sanitizer))
    assert done.returncode == 0, done.stderr[:3000]
    assert not done.stderr
    assert f"requests {REQUESTS}, wrong tokens 0" in done.stdout


def test_the_thread_sanitizer_sees_a_count_that_is_published_before_its_token(tmp_path: Path) -> None:
    done = run(compiled(tmp_path, "thread", "-DBLINK_MUTANT_COUNT_BEFORE_TOKEN"))
    assert done.returncode != 0
    assert "data race" in done.stderr
