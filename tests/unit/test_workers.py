"""Which tests share a worker of pytest-xdist: asked of a run, since a plugin may ignore it and say nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.conftest import ONE_AT_A_TIME, worker_scope
from tests.shared import ROOT

FILES = ("tests/unit/test_policy.py", "tests/rdma/test_hello.py", "tests/hw/test_native_looker.py")
_DONE = re.compile(r"\[(gw\d)\] .*PASSED (\S+?)::")


def test_folders_that_spin_are_one_scope_and_every_other_file_is_its_own() -> None:
    for folder in ONE_AT_A_TIME:
        assert worker_scope(f"tests/{folder}/test_x.py::test_a[b/c::d]") == "machine"
    assert worker_scope("tests/unit/test_x.py::test_a") == "tests/unit/test_x.py"


def test_a_run_with_two_workers_keeps_them_together() -> None:
    pytest.importorskip("xdist")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *FILES]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    workers = defaultdict[str, set[str]](set)
    for worker, path in _DONE.findall(said):
        workers[worker_scope(path)].add(worker)
    assert len(workers) == 2, said
    assert {len(found) for found in workers.values()} == {1}, workers
