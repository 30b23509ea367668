"""The interface of a framework that runs single operators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.device import CPU, Device
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.operators.operator import Case, Operator

PARTS = "parts"
"""The form of a fused operator that runs its parts one after the other."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """The device, threads and element type with which a framework runs operators.

    Attributes:
        device: The device.
        threads: The CPU threads of an operator; None for ``default_threads``.
        dtype: The element type of all inputs but indices, by NumPy's name or ``bfloat16``.
    """

    device: Device = CPU
    threads: int | None = None
    dtype: str = "float32"


DeviceTimer: TypeAlias = Callable[[Callable[[], object]], int]
"""Runs a function, waits for the device, and returns the nanoseconds that the device took."""


class OperatorCall(Protocol):
    """One operator on its inputs, ready to run. Each run returns when the device has finished.

    Attributes:
        api: The API that runs, as the framework's documentation names it, such as ``torch.add``.
        fused: The fusion that the framework's own graph or trace shows; empty if nothing was fused.
    """

    api: str
    fused: str

    def forward(self) -> None:
        """Runs the operator as in inference, without keeping data for a gradient."""
        ...

    def forward_for_gradient(self) -> None:
        """Runs the operator and keeps the data that ``backward`` requires."""
        ...

    def backward(self) -> None:
        """Computes the gradients of the last ``forward_for_gradient``, once for each of those.

        They are those of the sum of all floating-point outputs, each weighted by ``cotangents`` of its shape,
        with respect to all differentiable inputs.
        """
        ...

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """Returns copies of the outputs of the last run; those of bfloat16 in float32."""
        ...

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        """Returns copies of the gradients of the last ``backward``, by the name of the input."""
        ...


class NotSupportedHereError(Exception):
    """An operator, or a form of it, that a framework lacks on this device; the message is the reason."""


class OperatorRunner(Closeable):
    """One framework's operators in this process. Not thread-safe.

    Args:
        options: The device, threads and element type.

    Raises:
        ConfigurationError: The framework does not support the threads or the element type.
        DeviceError: The device is not available.
    """

    def __init__(self, options: RunnerOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """The CPU threads of an operator; None if unknown."""

    @abstractmethod
    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> OperatorCall:
        """Copies the inputs to the device, and builds the call.

        Args:
            operator: The operator.
            case: Its sizes and parameters.
            inputs: The inputs from ``draw_inputs``; they are not changed.
            gradient: Whether ``forward_for_gradient`` and ``backward`` will be called.
            form: One of ``forms``; empty for the first.

        Raises:
            NotSupportedHereError: The framework lacks the operator, its gradient, or this form of it.
            OutOfMemoryError: The device has too little memory.
            PredictionError: The framework failed.
        """

    @abstractmethod
    def forms(self, name: str) -> tuple[str, ...]:
        """Returns the forms in which the framework runs the named operator; empty if it lacks the operator.

        In MXNet ``nd``, ``sym`` and ``gluon``, in PyTorch ``eager`` and ``compile``, in ONNX Runtime
        ``graph``. An operator of several parts also has ``parts``, which runs them one after the other.
        """

    @abstractmethod
    def missing(self, name: str) -> str:
        """Returns why the framework lacks the named operator."""

    @abstractmethod
    def uncovered(self) -> tuple[str, ...]:
        """Returns the operators of the framework's own registry that the table does not use, sorted."""

    @abstractmethod
    def details(self) -> FrameworkDetails:
        """Returns the framework's libraries, build and settings."""

    def peak_memory_bytes(self) -> int | None:
        """Returns the allocator's peak memory since the last call; None if the framework lacks it."""
        return None

    def device_timer(self) -> DeviceTimer | None:
        """Returns the timer of the device's own clock; None where only the host's clock is available."""
        return None


def element_type(name: str) -> np.dtype[Any]:
    """Returns NumPy's type for the inputs of an element type; bfloat16 is drawn in float32."""
    return np.dtype(np.float32 if name == "bfloat16" else name)


def element_bytes(name: str) -> int:
    """Returns the size of an element of a type in a framework."""
    return 2 if name == "bfloat16" else element_type(name).itemsize
