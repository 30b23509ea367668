"""The interface of a loader, which yields the batches of an epoch, and the options of a loader."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.inference.results import InputFailure
from inferometer.manifests.errors import ConfigurationError


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
        further: Options of the request that have no field here, where they differ from their defaults.
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
        """Returns the options of ``values``."""
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
        """Returns the workers and how far they work ahead, in a few words."""
        if not self.workers:
            return "the thread of the steps"
        kind = "process" if self.processes else "thread"
        plural = "" if self.workers == 1 else "es" if self.processes else "s"
        return f"{self.workers} {kind}{plural}, {self.prefetch} batches ahead"


MOST_SAMPLES = 2**31 - 1
"""The maximum size of a batch, and the maximum number of batches of a run."""
MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The options of a loader.

    Attributes:
        batch_size: Samples in a batch of this rank; the last batch of an epoch may hold fewer.
        workers: The workers that read and preprocess; 0 for none: the caller's thread does it.
        processes: Whether the workers are processes; else they are threads.
        prefetch: Batches that are loaded ahead; 0 loads a batch on demand.
        shuffle: Whether the order is drawn anew for each epoch, by ``seed`` and the epoch's number.
        seed: The seed, the same on every rank.
        rank: The number of this rank.
        ranks: The number of ranks. Each gets as many batches as the others, from samples of its own.

    Raises:
        ConfigurationError: A number is out of range, or ``prefetch`` and ``processes`` have no workers.
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
            raise ConfigurationError("workers are 0, so that none can be a process; give at least one")
        if self.rank >= self.ranks:
            raise ConfigurationError(f"rank is {self.rank} of {self.ranks}; allowed: 0 to {self.ranks - 1}")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A batch in host memory, with the times and failures of its loading.

    Attributes:
        inputs: ``(samples, *dimensions)``, of the model's element type; valid until the next batch is
            requested. Empty if all samples failed.
        labels: int64, (samples,): the index of each sample's class; (samples, length) for CTC.
        failures: The samples of this batch that failed, and are not in ``inputs``.
        read_ns: The time to read, summed over the samples.
        preprocess_ns: The time to decode and preprocess, summed over the samples.
        read_bytes: The bytes of the encoded samples.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    failures: tuple[InputFailure, ...] = ()
    read_ns: int = 0
    preprocess_ns: int = 0
    read_bytes: int = 0


class Loader(Closeable):
    """The interface of a source of batches, epoch after epoch. Not thread-safe: used from one thread."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        """Yields the batches of the epoch with a number, from 0. Close the iterator to end it early.

        Raises:
            DatasetError: The dataset is damaged, or a worker process was lost.
        """

    @property
    @abstractmethod
    def batches(self) -> int:
        """The number of batches in an epoch, the same on every rank."""

    def hold(self, batches: int) -> bool:
        """Stops loading ahead after ``batches`` batches, counted from the first one of the loader.

        The workers are idle once the caller has taken all of them.

        Returns:
            Whether the loader supports this. If not, only the start of a new epoch has no batch in progress.
        """
        return True

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the worker processes, whose CPU time belongs to the loader; empty for none."""
        return ()
