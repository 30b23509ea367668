"""The predictor: one model on one device, in one framework. Every framework implements this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from numpy.typing import NDArray
from typing_extensions import Self

from agent.artifacts import Artifacts
from agent.device import CPU, Device
from manifests.schema import ModelManifest

Tensors: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays in host memory by the name of the model's input or output, each with the batch as its first axis."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """What a predictor is opened with.

    Attributes:
        device: Where the model runs.
        threads: The number of threads that one operator may use on the CPU; None leaves the framework's default.
    """

    device: Device = CPU
    threads: int | None = None


class Predictor(ABC):
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
