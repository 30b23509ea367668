"""The predictor: one model on one device, in one framework. Every framework implements this."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from agent.artifacts import Artifacts
from agent.closeable import Closeable
from agent.device import CPU, Device
from agent.environment import usable_cores
from agent.trace_level import TraceLevel
from agent.tracing.profiler import Profiler
from manifests.errors import ConfigurationError, PredictionError
from manifests.schema import ModelManifest

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays in host memory by the name of the model's input or output; the first axis is the batch."""


class Weights(str, Enum):
    """Where a model's weights come from.

    ``RANDOM`` ones are drawn from a seed, for models that are built in code: enough to measure speed, and
    nothing else.
    """

    PRETRAINED = "pretrained"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """What a predictor is opened with.

    Attributes:
        device: Where the model runs.
        threads: Threads that one operator may use on the CPU; None leaves the framework's default.
        weights: Where the weights come from.
        seed: What random weights are drawn from.
        spare_cores: Cores that the framework's default number of threads leaves to others, such as to who
            sends queries on time: between two operators the threads wait for the next one without sleeping,
            and keep all others from the cores that they are on.
    """

    device: Device = CPU
    threads: int | None = None
    weights: Weights = Weights.PRETRAINED
    seed: int = 0
    spare_cores: int = 0

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ConfigurationError(f"threads: found {self.threads}; allowed: 1 or more")

    def default_threads(self, frameworks_own: int) -> int:
        """Returns the number of threads where none is given: the framework's own, less the spare cores."""
        if not self.spare_cores:
            return frameworks_own
        return max(1, min(frameworks_own, usable_cores() - self.spare_cores))


class Predictor(Closeable):
    """One model on one device.

    Not thread-safe: one ``predict`` at a time. Whatever the framework raises comes out as an error of the
    tree in ``manifests.errors``.

    Args:
        manifest: The model.
        artifacts: Its files, checked.
        options: Device and threads.
    """

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        self.manifest = manifest
        self.artifacts = artifacts
        self.options = options

    @abstractmethod
    def load(self) -> None:
        """Brings the model onto the device.

        Raises:
            DeviceError: The device is not there, or this build of the framework cannot use it. There is no
                falling back to another one.
            ArtifactError: A file is not what the framework can load.
        """

    @abstractmethod
    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the model on a batch and returns its outputs once the device has finished.

        Args:
            inputs: By the manifest's ``input_layer``; the batch may have any size.

        Returns:
            The outputs in the model's order, in host memory; they stay valid after the next call.

        Raises:
            PredictionError: The framework failed.
        """

    def turn(self) -> AbstractContextManager[object]:
        """Entered before a prediction is timed, and left after it.

        A framework that lets one predictor of the process work at a time waits here for the others, so that
        their work is not in this one's time. By default there is nothing to wait for.
        """
        return nullcontext()

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns what records the layers of the loaded model, and from deeper levels what they are made of.

        Args:
            level: FRAMEWORK_TRACE or deeper.

        Returns:
            None where the framework tells nothing of layers, which is the default.
        """
        return None

    def checked_input(self, inputs: Tensors) -> NDArray[Any]:
        """Returns the array of the model's one input, in C order, if it is what the manifest says.

        Implementations call it first, so that a wrong batch reads the same in every framework.

        Raises:
            PredictionError: The name, the element type or the shape is another one, or the batch is empty.
        """
        wanted = self.manifest.inputs[0].parameters
        if set(inputs) != {wanted.input_layer}:
            found = ", ".join(f'"{name}"' for name in inputs) or "none"
            raise PredictionError(f'{self}: found the inputs {found}; it takes one, "{wanted.input_layer}"')
        array = inputs[wanted.input_layer]
        if array.dtype != np.dtype(wanted.element_type.value):
            allowed = wanted.element_type.value
            raise PredictionError(
                f'{self}: input "{wanted.input_layer}": found {array.dtype}; allowed: {allowed}'
            )
        if not array.size or array.shape[1:] != wanted.dimensions:
            allowed = ", ".join(map(str, ("batch", *wanted.dimensions)))
            raise PredictionError(
                f'{self}: input "{wanted.input_layer}": found the shape {array.shape}; allowed: ({allowed})'
            )
        return np.ascontiguousarray(array)

    def __str__(self) -> str:
        return f"model {self.manifest.name} {self.manifest.version}"

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """The number of threads that one operator may use on the CPU; None where the framework does not tell.

        Valid after ``load``.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the model; calling it again does nothing."""

    def __enter__(self) -> Self:
        self.load()
        return self
