"""Tests marked `rdma` need a verbs device. Where this machine has none they run in a guest that has Soft-RoCE.

One guest runs them all: the first of them boots it, and each gets the report that its run in the guest made.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

from tests.rdma.guest.image import image, missing
from tests.rdma.guest.machine import Guest
from tests.shared import ROOT

REPORTS = "BLINK_RDMA_REPORTS"
"""In the guest: the file that gets a line of JSON for each report."""
GUEST_SILENCE_S = 240
"""A guest from which no report has come for so long hangs. How long all of them take depends on the machine."""
_RUNS_ITSELF = "two_guests"


@lru_cache
def has_device() -> bool:
    """Whether this machine has a verbs device itself."""
    if os.environ.get("RDMA_DEVICE"):
        return True
    from blink.common.errors import InputError
    from blink.hw.verbs.device import device_names

    try:
        return bool(device_names())
    except InputError:
        return False


@lru_cache
def why_not() -> str:
    """Why there can be no guest; empty if there can be one."""
    if sys.version_info[:2] != (3, 11) and not has_device():
        return "the guest runs this interpreter with Debian's pyverbs, which is made for Python 3.11"
    if not Path("/etc/debian_version").exists():
        return "the guest's kernel comes from Debian's package, and this machine is no Debian"
    packages = missing()
    return f"no RDMA device, and no guest without: apt-get install {' '.join(packages)}" if packages else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with a reason what can run nowhere; where BLINK_RDMA_REQUIRED is set, that is an error."""
    if os.environ.get("BLINK_RDMA_REQUIRED") and not has_device() and why_not():
        raise pytest.UsageError(f"BLINK_RDMA_REQUIRED is set: {why_not()}")
    for item in items:
        if item.get_closest_marker("rdma") and why_not() and (not has_device() or _boots_guests(item)):
            item.add_marker(pytest.mark.skip(reason=why_not()))


def _boots_guests(item: pytest.Item) -> bool:
    return _RUNS_ITSELF in getattr(item, "fixturenames", ())


def _goes_to_the_guest(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("rdma") is not None and item.get_closest_marker("skip") is None
    return marked and not has_device() and not _boots_guests(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report what the guest says of a test."""
    if not _goes_to_the_guest(item):
        return None
    found = _guest_reports(item.session)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in found.get(item.nodeid) or [_died(item, found)]:
        report.nodeid = item.nodeid
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # what the test before left for this one, which did not take it
    return True


_reports: dict[str, list[pytest.TestReport]] = {}
_said: list[str] = []


def _guest_reports(session: pytest.Session) -> dict[str, list[pytest.TestReport]]:
    if _said:
        return _reports
    names = [item.nodeid for item in session.items if _goes_to_the_guest(item)]
    from blink.hw.native.build import cache_folder, find_compiler
    from blink.hw.native.library import load_library

    if find_compiler() is not None:
        load_library()  # compiled here: under emulation it takes minutes
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            REPORTS: "/run/guest/reports",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        environment |= {
            name: os.environ[name] for name in ("BLINK_CACHE", "XDG_CACHE_HOME", "CXX") if name in os.environ
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=15", *names]
        path = Path(folder) / "reports"
        guest = Guest(image(cache_folder() / "guest"), Path(folder), command, cwd=ROOT, environment=environment)
        try:
            code = guest.wait(GUEST_SILENCE_S, lambda: path.exists() and path.stat().st_size)
        finally:
            guest.close()
        _said.append(f"the guest ended with exit code {code}\n{guest.said()}")
        if os.environ.get("BLINK_RDMA_SAID"):
            print(_said[0], file=sys.__stderr__)
        for line in path.read_text().splitlines() if path.exists() else ():
            report = session.config.hook.pytest_report_from_serializable(config=session.config, data=json.loads(line))
            _reports.setdefault(report.nodeid, []).append(report)
    return _reports


def _died(item: pytest.Item, found: dict[str, list[pytest.TestReport]]) -> pytest.TestReport:
    why = "\n".join([f"{item.nodeid}: no report came from the guest ({len(found)} others did)", *_said])
    return pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the guest: say it to the host."""
    path = os.environ.get(REPORTS)
    if path:
        data = _config.hook.pytest_report_to_serializable(config=_config, report=report)
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the configuration for reports."""
    global _config
    _config = config
