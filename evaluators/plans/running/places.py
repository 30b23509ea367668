"""Where the runs of a plan run: on this machine, on a cluster, on agents elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JobNews:
    """What is known of a job.

    Attributes:
        ended: Whether it has ended.
        reason: How it ended, or where it is, in one line.
        restarts: How often the place has started it again by itself.
        counts: Whether an end without a result counts towards the failure of the run.
        void: Whether a result of the run is none, because what it ran on was not there.
    """

    ended: bool
    reason: str
    restarts: int = 0
    counts: bool = True
    void: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a run gets from a place that has several machines, which do not run all cells.

    Attributes:
        words: Added to its command line.
        lock: The name of the lock that it holds while it runs; empty for the machine of its process.
    """

    words: tuple[str, ...] = ()
    lock: str = ""


class Place(Protocol):
    """Somewhere that runs have their processes.

    Attributes:
        name: What the journal calls it; jobs of another place are not looked for here.
        survives: Whether its jobs go on when the driver ends.
        poll_s: How long to wait between two looks at its jobs, in seconds.
    """

    name: str
    survives: bool
    poll_s: float

    @property
    def capacity(self) -> int:
        """How many jobs it is given at once."""
        ...

    def start(self, folder: Path) -> str:
        """Starts the process of the run in a folder, and returns the id of its job.

        Raises:
            InferometerError: It cannot be started, here or anywhere: the plan ends.
        """
        ...

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """Returns what is known of some jobs; those of which nothing is new may be left out."""
        ...
