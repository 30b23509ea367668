"""Where the runs of a plan run: on this machine, on a cluster, on agents elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol


class Place(Protocol):
    """Somewhere that runs have their processes.

    Attributes:
        name: What the journal calls it; jobs of another place are not looked for here.
        capacity: How many jobs it is given at once.
    """

    name: str
    capacity: int

    def start(self, folder: Path) -> str:
        """Starts the process of the run in a folder, and returns the id of its job.

        Raises:
            InferometerError: It cannot be started, here or anywhere: the plan ends.
        """
        ...

    def gone(self, jobs: Iterable[str]) -> Mapping[str, str]:
        """Returns those of some jobs that have ended, each with what is known of how; empty for nothing."""
        ...

    def stop(self, job: str) -> None:
        """Ends a job at once; one that has ended is left alone."""
        ...
