"""The scheduler's process: maps the block that it inherits and runs the library until it is told to stop.

Run as a script, so that it imports nothing but the standard library: `child.py LIBRARY FD SIZE THREADS PARENT_PID`.
"""

import ctypes
import mmap
import signal
import sys


def main(library: str, fd: str, size_bytes: str, threads: str, parent: str) -> None:
    """Returns when the stop word is set or the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops this process in order
    memory = mmap.mmap(int(fd), int(size_bytes))
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    run = ctypes.CDLL(library).blink_native_run
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32), None
    run(base, int(threads), int(parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
