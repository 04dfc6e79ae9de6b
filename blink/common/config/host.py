"""The server around the GPU: its CPU, the other jobs on it, what is done against them, its power and its price."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from blink.common.config.fields import REQUIRED, Bool, Int, Table, Text, option, refuse

THREADS_MAX = 1 << 16


class Host(Table):
    """The server that holds the GPU."""

    profile: Text = option("xeon-6336y-2s", "Name of a shipped host profile, or the path of a TOML file of that form.")
    reserved_cores: Int = option(
        6,
        "Hardware threads kept for inference, as far as other jobs' own threads go. 0: it competes with them on all.",
        "hardware threads",
        ge=0,
        le=THREADS_MAX,
    )


class InterferenceJob(Table):
    """One job beside the engine: a profile with a number of threads, or a file of measured host work."""

    profile: Text | None = option(
        None, "Name of a shipped interferer profile, or the path of a TOML file of that form."
    )
    file: Text | None = option(
        None,
        "Path of a CSV file of your own measurements, in place of a profile: columns `base_ns` and `elapsed_ns`, one "
        "row for each stretch of host work, undisturbed and beside the job.",
    )
    threads: Int = option(
        REQUIRED, "Threads of the job. With a file: 0 leaves it out.", "threads", ge=0, le=THREADS_MAX
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.profile is None and self.file is None:
            raise refuse("profile", "is missing: give profile or file")
        if self.profile is not None and self.file is not None:
            raise refuse("file", "profile is given too: give one of them")
        return self


class InterferenceMix(Table):
    """The other jobs on the host's CPU."""

    jobs: tuple[InterferenceJob, ...] = option((), 'The jobs, as `{profile = "pbzip2", threads = 45}`.')
    threads: Int | None = option(
        None,
        "Threads of all jobs together, in the proportion that jobs gives. Unset: as jobs says.",
        "threads",
        ge=0,
        le=THREADS_MAX,
    )
    placement: Literal["spread", "near"] = option(
        "spread", "Over the sockets: `spread` evenly, `near` filling the engine's socket first."
    )

    @model_validator(mode="after")
    def _something_to_scale(self) -> Self:
        if self.threads and not sum(job.threads for job in self.jobs):
            raise refuse("threads", f"= {self.threads}: jobs has no threads that it could scale")
        if self.threads is not None and any(job.file for job in self.jobs):
            raise refuse("threads", f"= {self.threads}: measurements in a file cannot be scaled, leave it out")
        return self


class MitigationSet(Table):
    """What is done against the other jobs."""

    huge_pages_victim: Bool = option(False, "2 MB pages for the engine.")
    huge_pages_interferer: Bool = option(False, "1 GB pages for the other jobs.")
    pinning: Bool = option(False, "Each thread of the engine is bound to one hardware thread.")
    dedicated_cores: Bool = option(
        False, "The reserved cores are isolated from the kernel's own roaming work too. Needs host.reserved_cores."
    )
    cat_ways: Int | None = option(
        None, "LLC ways that are the engine's alone (Intel CAT). Unset: one LLC for all.", "ways", ge=1, le=64
    )
    nice: Int = option(0, "Nice level of the engine.", ge=-20, le=19)


class Power(Table):
    """What the server draws."""

    profile: Text = option("two-socket-server", "Name of a shipped power profile, or the path of a TOML file.")


class Prices(Table):
    """What the hardware costs."""

    profile: Text = option("cloud-2026", "Name of a shipped price profile, or the path of a TOML file.")
