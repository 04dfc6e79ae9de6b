"""Compiles the scheduler of `kernels/` for the host, once for each version of its sources, and keeps the library."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blink.common.errors import InputError

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O2", "-std=c++17", "-pthread", "-shared", "-fPIC", "-Wall", "-Wextra")
_LONGEST_S = 120


def kernels_folder() -> Path:
    """The folder with the scheduler's sources: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "src" / "native.cpp").is_file():
            return folder
    raise InputError(f"{package / 'kernels'}: the scheduler's sources are missing; allowed: an installation with them")


def find_compiler() -> str | None:
    """The C++ compiler: $CXX if it is set, else the first of COMPILERS that is installed, None if there is none."""
    chosen = os.environ.get("CXX")
    if chosen:
        return shutil.which(chosen)
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def require_compiler() -> str:
    """The C++ compiler. Raises InputError that says what to install."""
    found = find_compiler()
    if found is None:
        asked = os.environ.get("CXX")
        looked = f"CXX={asked} is not a program" if asked else f"none of {', '.join(COMPILERS)} is installed"
        raise InputError(
            f"backend native: needs a C++17 compiler, {looked}; install g++ or clang "
            f"(Debian and Ubuntu: apt install g++; macOS: xcode-select --install) or set CXX"
        )
    return found


def cache_folder() -> Path:
    """Where libraries are kept: $BLINK_CACHE, or `blink` in the user's cache; a temporary folder if that fails."""
    chosen = os.environ.get("BLINK_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(chosen) if chosen else (Path(base) if base else Path.home() / ".cache") / "blink"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if chosen:
            raise InputError(f"BLINK_CACHE={chosen}: {error.strerror}; allowed: a folder that can be written") from None
        return Path(tempfile.mkdtemp(prefix="blink-"))
    return folder


def build(extra_flags: Sequence[str] = ()) -> Path:
    """The path of the compiled library; compiles it if these sources were never compiled with these flags.

    `extra_flags` come last, such as -DBLINK_MUTANT_... or -fsanitize=... . Raises InputError without a compiler, or
    with the compiler's first complaint.
    """
    compiler, kernels = require_compiler(), kernels_folder()
    source = kernels / "src" / "native.cpp"
    flags = [*FLAGS, *extra_flags]
    library = cache_folder() / f"libblink_native-{digest_of([version_of(compiler), *flags], kernels, [source])}.so"
    if not library.is_file():
        with beside(library) as unfinished:
            compile_with(
                "backend native", [compiler, *flags, f"-I{kernels / 'include'}", str(source), "-o", unfinished]
            )
    return library


def version_of(compiler: str) -> str:
    """A compiler's path and what it says of itself."""
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    return f"{compiler}\0{said.stdout}"


def digest_of(words: Sequence[str], kernels: Path, sources: Sequence[Path]) -> str:
    """A digest of everything that a compiled file depends on: compiler and flags in `words`, sources, all headers."""
    digest = hashlib.blake2b("\0".join(words).encode(), digest_size=12)
    for source in (*sources, *sorted((kernels / "include").rglob("*.h"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


@contextmanager
def beside(target: Path) -> Iterator[str]:
    """A path beside the target that becomes it: two processes that compile at once do not disturb each other."""
    handle, unfinished = tempfile.mkstemp(suffix=target.suffix, dir=target.parent)
    os.close(handle)
    try:
        yield unfinished
        Path(unfinished).replace(target)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def compile_with(what: str, command: Sequence[str]) -> None:
    """Run a compiler. Raises InputError with its first complaint; `what` stands before it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{what}: {command[0]} took longer than {_LONGEST_S} s") from None
    if done.returncode:
        complaints = done.stderr.splitlines()
        lines = [line for line in complaints if "error" in line] or complaints or ["?"]
        raise InputError(f"{what}: {command[0]} cannot compile the scheduler: {lines[0].strip()}")
