"""Busy processes: what a host's other tenants do to a loop that needs it. Compression and page faults, nothing else.

Run as a script, so that it imports the standard library alone: `busy.py` works until its parent is gone.
"""

import bz2
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK_BYTES = 1 << 20
PAGE_BYTES = 4096


def work(parent: int) -> None:
    """Compress, then touch fresh memory, for as long as the parent lives."""
    block = random.Random(1).randbytes(BLOCK_BYTES // 2) + bytes(BLOCK_BYTES // 2)
    while os.getppid() == parent:
        bz2.compress(block)
        with mmap.mmap(-1, 16 * BLOCK_BYTES) as fresh:
            for page in range(0, len(fresh), PAGE_BYTES):
                fresh[page] = 1


@contextmanager
def busy_processes(count: int, cores: frozenset[int] | None = None) -> Iterator[list[int]]:
    """So many of them while the context is open, by process id; `cores`: where they may run."""
    command = [sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid())]
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    try:
        for process in processes:
            if cores:
                os.sched_setaffinity(process.pid, cores)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    work(int(sys.argv[1]))
