"""One random generator for each component of a run, so that what one draws never shifts what another does."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """The components that draw. The number is part of every run's outcome: never change one, only add."""

    ARRIVALS = 0
    LENGTHS = 1
    CANCELS = 2  # which clients lose patience
    PATIENCE = 3  # and when
    PHASE = 4  # where in its scan the scheduler is when the run begins
    ENGINE_CORE = 10  # operations of a host-driven engine's core and worker thread
    API_SERVER = 11  # ... of its API server
    TOKENIZER = 12  # ... of a tokenizer thread
    DETOKENIZER = 13  # ... of a detokenizer process
    CPU_SCHEDULER = 14  # ... of Blink's scheduler when it is placed on the CPU
    EXECUTOR_INTAKE = 15  # ... of the thread that hands requests to a compiled executor
    EXECUTOR_OUTPUT = 16  # ... and of the one that fetches its responses
    FAULTS = 20  # a drill's load and fault plan
    READS = 21  # delays of READs under faults
    MORE_FAULTS = 22  # a drill's bad descriptors and time limits
    SERVING = 30  # times of tokens that a server is told to keep to
    SERVER_FAILURES = 31  # failures that a server is told to show
    REPLICAS = 40  # the seed of each replica of a fleet but the first
    ROUTER = 41  # choices of a router
    OUTAGES = 42  # when a replica fails, and for how long
    PREFIXES = 43  # which prompts begin alike


def generator(seed: int, stream: Stream) -> np.random.Generator:
    """The generator of a component: PCG64, spawned from the scenario's seed by the component's number."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(int(stream),))))
