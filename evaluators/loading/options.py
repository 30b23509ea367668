"""The options of a loader, and the loading options that a run records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options with which batches are loaded.

    Attributes:
        backend: ``synthetic``, or the format of the dataset, such as ``recordio``.
        place: For ``synthetic``: ``host``, or ``device`` for one batch that stays on the device. Empty for
            other backends.
        reader: ``own``, or ``framework`` for the framework's own iterator of this format.
        workers: The number of workers that read and preprocess; with 0, the thread of the steps does so.
        processes: Whether the workers are processes; otherwise, they are threads.
        prefetch: The number of batches that are loaded ahead; 0 loads each batch on demand.
        shuffle: Whether each epoch has a new random order.
        seed: The seed of that order, and of synthetic data.
        cached_before: The share of the dataset's bytes that was in the page cache before the run, 0…1; None
            if unknown.
        dropped: Whether the dataset was dropped from the page cache before the run.
        further: Options of the request that have no field here, if they differ from their defaults.
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
    further: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DataOptions:
        """Returns the options that have these ``values``."""
        own = {each.name for each in fields(cls)}
        others = {name: value for name, value in values.items() if name not in own}
        return cls(**{name: value for name, value in values.items() if name in own}, further=others)

    @property
    def values(self) -> dict[str, Any]:
        """All options by name, as they are stored."""
        known = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "further"}
        return {**known, **self.further}

    @property
    def conditions(self) -> dict[str, str]:
        """The further options, as the conditions of a comparison."""
        return {
            name.replace("_", " "): f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in self.further.items()
        }

    def __str__(self) -> str:
        """Returns a short description of the workers and of how far they load ahead."""
        if not self.workers:
            return "the thread of the steps"
        kind = "process" if self.processes else "thread"
        plural = "" if self.workers == 1 else "es" if self.processes else "s"
        return f"{self.workers} {kind}{plural}, {self.prefetch} batches ahead"


MOST_SAMPLES = 2**31 - 1
"""The maximum number of samples in a batch, and the maximum number of batches in a run."""
MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The options of a loader.

    Attributes:
        batch_size: The number of samples in a batch of this rank; the last batch of an epoch may hold fewer.
        workers: The number of workers that read and preprocess; with 0, the caller's thread does so.
        processes: Whether the workers are processes; otherwise, they are threads.
        prefetch: The number of batches that are loaded ahead; 0 loads each batch on demand.
        shuffle: Whether each epoch has a new random order, given by ``seed`` and the epoch's number.
        seed: The seed, the same on every rank.
        rank: The number of this rank.
        ranks: The number of ranks. All get the same number of batches, each from its own samples.

    Raises:
        ConfigurationError: A number is out of range, or ``prefetch`` or ``processes`` is set without workers.
    """

    batch_size: int
    workers: int = 0
    processes: bool = False
    prefetch: int = 0
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        least_ones = {"batch_size": 1, "workers": 0, "prefetch": 0, "seed": 0, "rank": 0, "ranks": 1}
        for name, least in least_ones.items():
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        largest = {"batch_size": MOST_SAMPLES, "workers": MOST_WORKERS, "prefetch": MOST_SAMPLES}
        for name, most in largest.items():
            if getattr(self, name) > most:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; at most {most}")
        if self.prefetch and not self.workers:
            raise ConfigurationError(f"prefetch is {self.prefetch}, but there are no workers to load ahead")
        if self.processes and not self.workers:
            raise ConfigurationError("workers are 0, so none can be a process; give at least one")
        if self.rank >= self.ranks:
            raise ConfigurationError(f"rank is {self.rank} of {self.ranks}; allowed: 0 to {self.ranks - 1}")
