"""Slow tests run without the tracer of coverage, which would make them three times as slow."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a slow test reaches, small ones reach too: nothing is lost from the report but time."""
    if config.pluginmanager.has_plugin("pytest_cov"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.no_cover)
