"""The source of the batches of a training run or of a run of the loader alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How batches are loaded.

    Attributes:
        backend: ``synthetic``, or the format of the dataset, such as ``recordio``.
        place: For ``synthetic``: ``host``, or ``device`` for one batch that stays on the device. Empty for
            others.
        reader: ``own``, or ``framework`` for the framework's own iterator of this format.
        workers: The workers that read and preprocess; 0 for none, in the thread of the steps.
        processes: Whether the workers are processes; else they are threads.
        prefetch: Batches that are loaded ahead; 0 loads a batch on demand.
        shuffle: Whether the order is drawn anew for each epoch.
        seed: The seed of that order, and of synthetic data.
        cached_before: The share of the dataset's bytes that was in the page cache before the run, 0…1; None
            if it is not known.
        dropped: Whether the dataset was dropped from the page cache before the run.
    """

    backend: str = "synthetic"
    place: str = ""
    reader: str = "own"
    workers: int = 0
    processes: bool = False
    prefetch: int = 0
    shuffle: bool = False
    seed: int = 0
    cached_before: float | None = None
    dropped: bool = False

    def __str__(self) -> str:
        """Returns the workers and how far they work ahead, in a few words."""
        if not self.workers:
            return "the thread of the steps"
        kind = "process" if self.processes else "thread"
        plural = "" if self.workers == 1 else "es" if self.processes else "s"
        return f"{self.workers} {kind}{plural}, {self.prefetch} batches ahead"
