"""What a host does to a thread that works on it: stretches of work, and the gaps in the life of a thread that spins.

Run as a script (`host_work.py SECONDS`), so that it imports the standard library alone: it prints one JSON object.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GAP_NS = 20_000
"""A spinning thread that does not see the clock for so long was not running."""
LINES = 64
_BODY = {"model": "m", "stream": True, "max_tokens": 128, "messages": [{"role": "user", "content": "word " * 200}]}


def gaps_ns(seconds: float) -> list[tuple[int, int]]:
    """(when, how long) of each gap in which a thread that only reads the clock did not run, from its start."""
    clock, found = time.perf_counter_ns, []
    begun = before = clock()
    end = begun + int(seconds * 1e9)
    while before < end:
        now = clock()
        if now - before > GAP_NS:
            found.append((before - begun, now - before))
        before = now
    return found


def parse() -> None:
    """The body of a chat request to an object and back."""
    json.loads(json.dumps(_BODY))


def frames() -> None:
    """LINES server-sent events of one token each."""
    for index in range(LINES):
        f'data: {{"id": "{index}", "choices": [{{"delta": {{"content": " word"}}}}]}}\n\n'.encode()


def copy() -> None:
    """64 KiB, as large as the array of slot states."""
    bytes(bytearray(1 << 16))


WORK = {"parse": parse, "frames": frames, "copy": copy}


def stretches_ns(seconds: float) -> dict[str, list[int]]:
    """How long each repetition of each kind of work took."""
    clock, found = time.perf_counter_ns, {}
    for name, work in WORK.items():
        times, end = [], clock() + int(seconds * 1e9)
        while (now := clock()) < end:
            work()
            times.append(clock() - now)
        found[name] = times
    return found


def measure(seconds: float) -> dict[str, Any]:
    """Both, for about `seconds` each."""
    return {"seconds": seconds, "gaps_ns": gaps_ns(seconds), "stretches_ns": stretches_ns(seconds / len(WORK))}


def measure_on(seconds: float, cores: frozenset[int] | None = None) -> dict[str, Any]:
    """The same in a process of its own that may run on these cores; its interpreter has no other thread."""
    import os

    command = [sys.executable, "-I", "-S", str(Path(__file__)), str(seconds)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if cores:
        os.sched_setaffinity(child.pid, cores)
    text, _ = child.communicate(timeout=60 + 10 * seconds)
    if child.returncode:
        raise RuntimeError(f"measuring host work ended with {child.returncode}")
    found: dict[str, Any] = json.loads(text)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]))))
