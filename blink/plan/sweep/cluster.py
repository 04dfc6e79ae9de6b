"""Points on several machines: the executor of Dask distributed, behind the interface of concurrent.futures.

`local:N` starts N worker processes here, on the loopback interface. `tcp://HOST:PORT` or `tls://HOST:PORT` is the
scheduler of a cluster that runs already. What is sent to a scheduler is pickled: name none that is not yours.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from blink.common.errors import InputError
from blink.common.optional import need
from blink.plan.point import interrupts_held_back, track_quietly
from blink.plan.sweep.identity import program_digest

LOCAL = "local:"
REMOTE = ("tcp://", "tls://", "ucx://")
LOCAL_MAX = 256
LOOPBACK, LOOPBACK_ANY = "127.0.0.1", "127.0.0.1:0"
CONNECT_S = 30
ALLOWED = f"allowed: {LOCAL}N, worker processes here, or tcp://HOST:PORT, the scheduler of a Dask cluster"


@contextmanager
def cluster_executor(name: str) -> Iterator[Executor]:
    """The executor of a cluster; what it starts here ends with it.

    A run whose worker dies is given to another, a few times (Dask's `allowed-failures`). Raises InputError after that;
    for another form, without Dask, if no scheduler answers, and if the workers have another version of this program,
    whose results would not be the same.
    """
    count = _local_count(name)
    if count is None and not name.startswith(REMOTE):
        raise InputError(f"--cluster: {name!r} is not allowed; {ALLOWED}")
    distributed = need("distributed", "--cluster", "cluster")
    with _quiet(), _client(distributed, name, count) as client:
        _check_workers(client, name)
        executor = client.get_executor(pure=False)
        try:
            yield executor
        except distributed.KilledWorker:
            raise InputError(
                f"--cluster {name}: one worker after the other ended over a run, as for want of memory"
            ) from None
        finally:
            # What still runs was given up: nobody waits for it.
            executor.shutdown(wait=False)


def _local_count(name: str) -> int | None:
    if not name.startswith(LOCAL):
        return None
    text = name.removeprefix(LOCAL)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LOCAL_MAX:
        raise InputError(f"--cluster: {name!r} is not allowed; {ALLOWED}, N from 1 to {LOCAL_MAX}")
    return int(text)


@contextmanager
def _client(distributed: Any, name: str, count: int | None) -> Iterator[Any]:
    if count is None:
        try:
            client = distributed.Client(name, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise InputError(f"--cluster {name}: no scheduler answers: {error or type(error).__name__}") from None
        with client:
            yield client
        return
    with TemporaryDirectory(prefix="blink-cluster-") as scratch:
        track_quietly()
        with interrupts_held_back():
            cluster = _local(distributed, count, scratch)
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            client.run(_ignore_interrupts)
            yield client


def _ignore_interrupts() -> None:
    """In a worker: Ctrl-C reaches all of a terminal, and what it means is the sweep's to decide."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _local(distributed: Any, count: int, scratch: str) -> Any:
    """Worker processes here, of one thread each: the simulator is Python. Nothing listens outside this machine."""
    return distributed.LocalCluster(
        n_workers=count,
        threads_per_worker=1,
        host=LOOPBACK,
        local_directory=scratch,
        dashboard_address=LOOPBACK_ANY,
        worker_dashboard_address=LOOPBACK_ANY,
        silence_logs=logging.ERROR,
    )


def _check_workers(client: Any, name: str) -> None:
    try:
        found = client.run(program_digest)
    except ImportError as error:
        raise InputError(f"--cluster {name}: a worker lacks this program: {error}") from None
    if not found:
        raise InputError(f"--cluster {name}: has no worker")
    if others := sorted(worker for worker, digest in found.items() if digest != program_digest()):
        raise InputError(f"--cluster {name}: worker {others[0]} has another version of this program; install the same")


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask tells of every worker that comes, goes or is stopped; who asked for a sweep need not read it."""
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
