"""What a report can be made of. A kind knows its folder by one file and makes a page of it; a new one is a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from blink.common.errors import InputError
from blink.report.html.page import Page


@dataclass(frozen=True, slots=True)
class Kind:
    """`marker`: the file that tells the kind. `module` has `page(folder: Path) -> Page` and is loaded when needed."""

    name: str
    marker: str
    module: str

    def page(self, folder: Path) -> Page:
        """The report of a folder. Raises InputError if what stands there is not of this kind."""
        make: Callable[[Path], Page] = import_module(self.module).page
        return make(folder)


KINDS = (
    Kind("sweep", "sweep.json", "blink.report.html.sweep_page"),
    Kind("plan", "plan.json", "blink.report.html.plan_page"),
    Kind("run", "summary.json", "blink.report.html.run_page"),
)


def page_of(folder: Path) -> Page:
    """The report of a folder that some command kept. Raises InputError for another folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; allowed: what blink run, sweep or plan --out made")
    for kind in KINDS:
        if (folder / kind.marker).is_file():
            return kind.page(folder)
    allowed = ", ".join(f"{kind.marker} of a {kind.name}" for kind in KINDS)
    raise InputError(f"{folder}: holds nothing to report; allowed: a folder with {allowed}")
