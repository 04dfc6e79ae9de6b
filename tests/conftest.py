"""How tests share a machine: what is traced for coverage, and what runs beside what."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

ONE_AT_A_TIME = ("hw", "serve", "rdma")
"""Folders of tests that start processes which spin on a core: two of them at once would only disturb each other."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run without the tracer of coverage, which would make them three times as slow.

    What a slow test reaches, small ones reach too: nothing is lost from the report but time.
    """
    if config.pluginmanager.has_plugin("pytest_cov"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.no_cover)


def worker_scope(node: str) -> str:
    """Tests of one scope share a worker: those of a file, and all of the folders above."""
    path = PurePosixPath(node.partition("::")[0])
    return "machine" if path.parent.name in ONE_AT_A_TIME else str(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """For pytest-xdist, whose own groups (`--dist loadgroup`) pytest 9.2 does not see: it appends them to a name that
    is not asked any more."""
    from xdist.scheduler import LoadScopeScheduling

    class ByScope(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return worker_scope(nodeid)

    return ByScope(config, log)
