"""How tests share a machine: what is traced for coverage, and what runs beside what."""

from __future__ import annotations

import pytest

ONE_AT_A_TIME = ("hw", "serve", "rdma")
"""Folders of tests that start processes which spin on a core: two of them at once would only disturb each other."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run without the tracer of coverage, which would make them three times as slow.

    What a slow test reaches, small ones reach too: nothing is lost from the report but time. Under pytest-xdist the
    tests of a file share a worker, and so do all of the folders above.
    """
    covered = config.pluginmanager.has_plugin("pytest_cov")
    shared = config.pluginmanager.has_plugin("xdist")
    for item in items:
        if covered and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.no_cover)
        if shared:
            folder = item.path.parent.name
            item.add_marker(pytest.mark.xdist_group("machine" if folder in ONE_AT_A_TIME else item.path.name))
