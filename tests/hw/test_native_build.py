"""The scheduler's sources compile for the host once, and for the GPU where a compiler for it is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.common.layout import layout_hash
from blink.hw.native import build as build_module
from blink.hw.native.build import build
from blink.hw.native.library import load_library
from blink.hw.native.tokens import EOS_TOKEN, prompt_of, sampled, seed_of
from tests.hw.native_help import needs_compiler


@needs_compiler
def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    first = build(("-O0",))
    made_ns = first.stat().st_mtime_ns
    assert build(("-O0",)) == first
    assert first.stat().st_mtime_ns == made_ns
    assert list(tmp_path.iterdir()) == [first]


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build_module, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(InputError, match=r"needs a C\+\+17 compiler.*install g\+\+"):
        build()
    monkeypatch.setenv("CXX", "no-such-program")
    with pytest.raises(InputError, match="CXX=no-such-program is not a program"):
        build()


@needs_compiler
def test_a_failing_compilation_is_one_line_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLINK_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="cannot compile the scheduler") as failure:
        build(("-include", "no-such-header.h"))
    assert "\n" not in str(failure.value)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_the_library_describes_its_structures() -> None:
    library = load_library()
    assert library.layout_hash() == layout_hash()
    assert library.dtypes["record"].itemsize == 32
    for dtype in library.dtypes.values():
        widths = [dtype[name].itemsize for name in dtype.names or ()]
        assert sum(widths) == dtype.itemsize  # no implicit padding


def test_stub_tokens_depend_on_request_prompt_and_place() -> None:
    prompt = prompt_of(7, 20)
    changed = prompt.copy()
    changed[[3, 4]] = changed[[4, 3]]
    seeds = np.array([seed_of(7, prompt), seed_of(8, prompt), seed_of(7, changed), seed_of(7, prompt[:-1])], np.uint64)
    assert len(set(seeds.tolist())) == 4
    index = np.arange(4)
    tokens = sampled(np.repeat(seeds[:1], 4), index, np.array([9, 9, 3, 9]))
    assert tokens[2] == EOS_TOKEN
    assert len(set(tokens.tolist())) == 4
