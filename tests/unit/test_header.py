"""The generated C header: it is the checked-in one, and both languages agree on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from blink.common import layout
from blink.common.header import header_path, header_text
from blink.common.states import SLOT_COUNT
from blink.common.transitions import TRANSITIONS

PROGRAM = """\
#include "ring_layout.h"
#include <stdio.h>
#define COUNT(name, from, to, actor) +1
int main(void) {
  struct blink_descriptor d;
  d.cancel = BLINK_GENERATION_NONE;
  printf("%d %u %llx %d %zu\\n", 0 BLINK_TRANSITIONS(COUNT), BLINK_SLOT_COUNT,
         (unsigned long long)BLINK_LAYOUT_HASH, (int)BLINK_CTL_TOKEN_COUNT_SHIFT, sizeof d.cancel * 8);
  return 0;
}
"""


def test_the_checked_in_header_is_up_to_date() -> None:
    assert header_path().read_text() == header_text(), "run python -m blink.common.header"


@pytest.mark.parametrize(
    ("compiler", "flags", "suffix"),
    [("gcc", ["-std=c11"], ".c"), ("g++", ["-std=c++17"], ".cpp")],
)
def test_the_header_compiles_and_says_the_same(compiler: str, flags: list[str], suffix: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    source, program = tmp_path / f"main{suffix}", tmp_path / "main"
    source.write_text(PROGRAM)
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler, *flags, *warnings, f"-I{header_path().parent}", str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    rows = sum(len(row.sources) for row in TRANSITIONS)
    shift = next(field.shift for field in layout.CTL_FIELDS if field.name == "token_count")
    assert said == [str(rows), str(SLOT_COUNT), f"{layout.layout_hash():x}", str(shift), "64"]


def test_the_header_names_every_field_once() -> None:
    text = header_text()
    for field in layout.DESCRIPTOR_FIELDS:
        assert text.count(f"offsetof(struct blink_descriptor, {field.name}) == {field.offset},") == 1
    for field in layout.CTL_FIELDS:
        assert f"#define BLINK_CTL_{field.name.upper()}_SHIFT {field.shift}\n" in text
