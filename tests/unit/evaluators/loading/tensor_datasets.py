"""Datasets of numbered tensors for the loader, which worker processes can open too."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.manifests.errors import DatasetError, InputError
from inferometer.manifests.inputs import TensorParameters

PARAMETERS = TensorParameters(dimensions=(2, 3))
BYTES = 24


def tensor(place: int) -> np.ndarray:
    return np.full((2, 3), place, np.float32)


class Numbered(Dataset):
    """The tensor of sample n holds n, and its class is n mod 7; each place of ``failing`` cannot be read."""

    def __init__(self, count: int, failing: tuple[int, ...] = ()) -> None:
        super().__init__(DatasetIdentity("tensors", "numbered", None, None, count))
        self.failing = failing

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        return Sample(f"n{index}", partial(self.read, index), str(index % 7))

    def read(self, index: int) -> Tensor:
        if index in self.failing:
            raise InputError(f"n{index} is damaged")
        return Tensor(tensor(index))


class Misshapen(Numbered):
    """The samples of ``misshapen`` have another shape than the model takes."""

    def __init__(self, count: int, failing: tuple[int, ...] = (), misshapen: tuple[int, ...] = ()) -> None:
        super().__init__(count, failing)
        self.misshapen = misshapen

    def read(self, index: int) -> Tensor:
        return Tensor(np.zeros(4, np.float32)) if index in self.misshapen else super().read(index)


class Counting(Numbered):
    """Counts what was read, and tells when a place was."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.lock = threading.Lock()
        self.read_places: list[int] = []
        self.was_read = [threading.Event() for _ in range(count)]

    def read(self, index: int) -> Tensor:
        with self.lock:
            self.read_places.append(index)
        self.was_read[index].set()
        return super().read(index)


class Slow(Numbered):
    """Each read lasts until ``delay_s`` after it began; a process may be passed it too."""

    def __init__(self, count: int, delay_s: float) -> None:
        super().__init__(count)
        self.delay_s = delay_s

    def read(self, index: int) -> Tensor:
        wait_until(time.perf_counter() + self.delay_s)
        return super().read(index)


class Killing(Numbered):
    """The process that reads a place of ``failing`` is killed, as by the kernel where memory runs out."""

    def read(self, index: int) -> Tensor:
        if index in self.failing:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


class Damaged(Numbered):
    """Reading a place of ``failing`` shows that the whole dataset is damaged."""

    def read(self, index: int) -> Tensor:
        if index in self.failing:
            raise DatasetError(f"numbered: record {index} lies beyond the end of the file")
        return super().read(index)


class Unopenable(Numbered):
    """Opens here, and in no other process."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _refuse, ()


class Unpicklable(Numbered):
    """Has a lock, which pickle cannot pass on."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.lock = threading.Lock()


def _refuse() -> Numbered:
    raise DatasetError("numbered: the file is gone")


def wait_until(deadline_s: float) -> None:
    """Waits to a deadline on the clock of ``time.perf_counter``, by yielding the processor near its end."""
    while (left_s := deadline_s - time.perf_counter()) > 0:
        time.sleep(max(left_s - 0.001, 0))
