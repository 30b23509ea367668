"""The predictor: the interface that every framework implements for one model on one device.

``found_names`` matches the inputs of a manifest, which may be numbered, with the inputs that a framework
found in a model.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from inferometer.agent.artifacts.files import Artifacts, InputSignature, ModelSignature
from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import FrameworkDetails, Precision, PredictorOptions, bound_to
from inferometer.agent.preprocessing.inputs import Tensors, dtype_of, quoted
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    DeviceLostError,
    InferometerError,
    OutOfMemoryError,
    PredictionError,
    suggestion,
)
from inferometer.manifests.inputs import FIRST_INPUT, AxisSizes, TensorSpec, is_numbered_layer
from inferometer.manifests.schema import ModelManifest


def number_of(name: str) -> int | None:
    """Returns the number that a manifest's name stands for, such as 1 for ``#1``; None for other names."""
    if is_numbered_layer(name):
        return int(name[1:])
    return 0 if name == FIRST_INPUT else None


def has_numbers(tensors: Sequence[TensorSpec]) -> bool:
    """Returns whether a manifest numbers its inputs; ``data`` alone can also be an ordinary name."""
    return any(is_numbered_layer(each.name) for each in tensors)


def found_names(where: object, tensors: Sequence[TensorSpec], found: Sequence[str]) -> dict[str, str]:
    """Maps each of a manifest's inputs, which may be numbered, to its name in the model.

    ``found`` are all inputs of the model in its order; messages begin with ``where``.

    Raises:
        ArtifactError: The names do not match.
    """
    numbered, known = has_numbers(tensors), set(found)
    names = {}
    for tensor in tensors:
        number = number_of(tensor.name)
        if tensor.name not in known and numbered and number is not None and number < len(found):
            names[tensor.name] = found[number]
        else:
            names[tensor.name] = tensor.name
    taken = set(names.values())
    for wanted, name in names.items():
        if name not in known:
            several = f"it has {len(found)}: {', '.join(found)}"
            advice = suggestion(wanted, found) if len(tensors) > 1 or len(found) == 1 else several
            single = "single " if len(tensors) == 1 else ""
            raise ArtifactError(f'{where}: has no {single}input "{wanted}"; {advice}')
    for name in found:
        if name not in taken:
            several = ", ".join(found)
            if len(tensors) == 1:
                raise ArtifactError(
                    f'{where}: has no single input "{tensors[0].name}"; it has {len(found)}: {several}'
                )
            raise ArtifactError(f'{where}: has the input "{name}", which the manifest lacks')
    return names


_NO_TURN = nullcontext()


def inputs_of_examples(
    model: str, examples: Sequence[InputSignature], float_type: str = "float32", arguments: Sequence[str] = ()
) -> tuple[InputSignature, ...]:
    """Derives from examples the inputs of a model in memory that does not declare them.

    Several unnamed examples get the names of the model's ``arguments``; messages name the ``model``.

    Raises:
        ConfigurationError: There are no examples.
    """
    if not examples:
        raise ConfigurationError(f"{model} does not describe its input; give inputs, an array of samples")
    inputs = []
    for place, example in enumerate(examples):
        element_type = example.element_type or float_type
        if element_type.startswith("float"):
            element_type = float_type
        name = FIRST_INPUT
        if len(examples) > 1:
            name = arguments[place] if len(arguments) >= len(examples) else f"input{place}"
        inputs.append(InputSignature(example.name or name, element_type, example.shape))
    return tuple(inputs)


class Predictor(Closeable):
    """One model on one device.

    Not thread-safe: only one ``predict`` at a time is allowed. Exceptions of the framework are translated to
    the exceptions of ``manifests.errors``.
    """

    instances_by: ClassVar[Literal["threads", "processes"]] = "threads"
    """What runs several instances of a model at once: threads of this process, or a process for each.

    Threads require that the framework computes outside the interpreter's lock, and that its predictors do not
    wait for each other.
    """
    precisions: ClassVar[frozenset[Precision]] = frozenset({Precision.FLOAT32})
    """The precisions to which the class can cast a model in code; if it casts nothing, keep the default."""
    fixed_outputs: Mapping[str, int] = MappingProxyType({})
    """The sizes of the first axes of outputs that declare a fixed one, although batches may have any size.

    Such an output belongs to the whole batch, as a constant does. It is set by ``load``, as far as known.
    """

    hangs = False
    """Whether its prediction takes longer than an agent allows; the agent's ``PredictorWatch`` sets it."""

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: PredictorOptions) -> None:
        self.manifest = manifest
        self.artifacts = artifacts
        self.options = options

    @classmethod
    def signature_of_file(cls, path: Path) -> ModelSignature:
        """Reads the inputs of a model's file that has no manifest; loads as little as possible.

        The name of the file ends in one of the framework's ``FrameworkEntry.suffixes``.

        Raises:
            ArtifactError: The file is not a model, or this framework cannot determine its inputs (the
                default).
        """
        raise ArtifactError(f"{path}: its framework does not describe a model's inputs; write a manifest")

    @classmethod
    def signature_of_object(cls, model: object, examples: Sequence[InputSignature]) -> ModelSignature:
        """Returns the signature of a model in memory: its inputs, and the attributes that identify it.

        Args:
            model: The model, of one of the framework's ``FrameworkEntry.classes``.
            examples: The dtype and shape of each tensor of an example batch, with a name or an empty text;
                empty if there is no example.

        Raises:
            ConfigurationError: The inputs cannot be determined without an example.
            ArtifactError: This framework does not support models in memory (the default).
        """
        raise ArtifactError(f"{type(model).__name__}: its framework does not support models in memory")

    @classmethod
    def check(cls, manifest: ModelManifest, options: PredictorOptions, *, in_memory: bool = False) -> None:
        """Rejects what the framework does not support before any file of the model is read or downloaded.

        ``load`` rejects the same; by default, only ``load`` does. Implementations check the device here. A
        model that is ``in_memory`` need not be built.

        Raises:
            DeviceError: The device is missing, or this build of the framework cannot use it.
            ArtifactError: Another package that the model requires is missing.
            ConfigurationError: The device cannot run the precision.
        """

    @classmethod
    def read_device_memory(cls, index: int) -> dict[str, int]:
        """Returns the bytes that this process's tensors take of a GPU, and begins new peaks; after ``load``.

        ``DeviceAllocated`` is that of tensors, and ``DeviceReserved`` has what is kept for others too, each
        with its ``Peak`` since the last call. The default is nothing: the framework does not count it.
        """
        return {}

    @classmethod
    def limit_device_memory(cls, index: int, limit_bytes: int) -> None:
        """Limits ``DeviceReserved`` before ``load``; frameworks with ``read_device_memory`` implement it."""
        raise NotImplementedError

    @abstractmethod
    def load(self) -> None:
        """Loads the model onto the device.

        Raises:
            DeviceError: The device is missing, or this build of the framework cannot use it. Another device
                is never used instead.
            ArtifactError: The framework cannot load a file.
        """

    @abstractmethod
    def predict(self, inputs: Tensors) -> Tensors:
        """Runs the model on a batch and returns its outputs once the device has finished.

        Batches may have any size; their tensors are named as in ``tensors``.

        Returns:
            The outputs in the model's order, in host memory; they stay valid after the next call.

        Raises:
            PredictionError: The framework failed.
        """

    def casts_to(self, *, asked: bool = False) -> Precision | None:
        """Returns the precision to which a model in code is cast; None if it is not cast.

        Implementations that cast must call it first in ``load``. A model in a file or in memory has its own
        precision and is not cast. Inputs are cast too; outputs are float32 for every precision. ``asked`` is
        whether float32 was requested explicitly rather than by default.

        Raises:
            ConfigurationError: The options request a precision that the model does not support.
        """
        in_memory = self.artifacts.in_memory is not None
        return self.cast_of(self.manifest, self.options.precision, in_memory=in_memory, asked=asked)

    @classmethod
    def cast_of(
        cls, manifest: ModelManifest, wanted: Precision, *, in_memory: bool, asked: bool
    ) -> Precision | None:
        """Returns the precision to which a model would be cast, without reading files; see ``casts_to``."""
        default = wanted is Precision.FLOAT32 and not asked
        if manifest.has_own_precision or in_memory:
            # of a file, the element types of the inputs are all that tells its precision
            halves = Precision.FLOAT16.value in {each.element_type.value for each in manifest.tensors}
            if not default and wanted is not (Precision.FLOAT16 if halves else Precision.FLOAT32):
                place = "in memory" if in_memory else "a file"
                raise ConfigurationError(
                    f"{title_of(manifest)} is {place} and has its own precision; only a model that is built "
                    f"in code (architecture) can be cast to {wanted.value}"
                )
            return None
        if wanted not in cls.precisions and not default:
            known = " or ".join(each.value for each in Precision if each in cls.precisions)
            raise ConfigurationError(
                f"{title_of(manifest)}: {manifest.framework.name} cannot cast it to {wanted.value}; "
                f"use {known}"
            )
        return None if wanted is Precision.FLOAT32 else wanted

    def turn(self) -> AbstractContextManager[object]:
        """Returns a context that the caller enters before it times a prediction, and leaves afterwards.

        A framework that runs only one predictor per process at a time waits here for the others, so that
        their work is not timed. The default does not wait, but binds the thread if the options say so.
        """
        processors = self.options.processors
        return bound_to(processors) if processors else _NO_TURN

    @property
    def is_alive(self) -> bool:
        """Whether it can predict: no prediction hangs and, if it has a process of its own, that runs."""
        return not self.hangs

    @property
    def any_thread(self) -> bool:
        """Whether ``predict`` may be called in any thread at no extra cost and never waits.

        False, the default, keeps the model in one thread. If it is True, an agent predicts on the thread that
        handles all its calls, as long as that takes only microseconds. The model must compute in the calling
        thread, in a time that does not depend on the values of the input.
        """
        return False

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the loaded model's layers, and at deeper levels, of their operators.

        Returns:
            None if the framework does not profile layers, which is the default.
        """
        return None

    def declared_outputs(self) -> tuple[InputSignature, ...]:
        """Returns the outputs, batch first, as far as the model declares them. It is called after ``load``.

        The default returns none: the outputs are then known only after a prediction.
        """
        return ()

    def axis_sizes(self) -> Mapping[str, tuple[AxisSizes | None, ...]]:
        """Returns the sizes that the model allows for the axes of its inputs, without the batch axis.

        The default returns none: the axes may have any size.
        """
        return {}

    def details(self) -> FrameworkDetails:
        """Returns the framework's build and settings; called once after ``load``.

        The default returns empty details.
        """
        return FrameworkDetails()

    def checked_input(self, inputs: Tensors) -> NDArray[Any]:
        """Returns the array for the model's only input, in C order, if it matches the manifest.

        Implementations call it first, so that an invalid batch gives the same error in every framework.

        Raises:
            PredictionError: The name, the element type or the shape does not match, or the batch is empty.
        """
        if len(self.tensors) > 1:
            raise PredictionError(f"{self}: takes {len(self.tensors)} inputs, but was given only one")
        [array] = self.checked_inputs(inputs).values()
        return array

    def checked_inputs(self, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """Returns the arrays of all inputs, in C order and in the manifest's order, if they match it.

        Implementations call it first, so that an invalid batch gives the same error in every framework.

        Raises:
            PredictionError: A name, element type or shape does not match, the batch is empty, or its size is
                not the same in all tensors.
        """
        model, tensors = str(self), self.tensors
        names = [each.name for each in tensors]
        if len(inputs) != len(names) or any(name not in inputs for name in names):
            takes = f"one, {quoted(names)}" if len(names) == 1 else quoted(names)
            raise PredictionError(f"{model}: found the inputs {quoted(inputs) or 'none'}; it takes {takes}")
        checked = {
            each.name: checked_array(model, each, inputs[each.name], PredictionError) for each in tensors
        }
        if len(checked) > 1 and len({len(array) for array in checked.values()}) > 1:
            sizes = ", ".join(f"{len(array)} of {name}" for name, array in checked.items())
            raise PredictionError(f"{model}: the batch differs in size: {sizes}")
        return checked

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors that the model takes, in the manifest's order."""
        return self.manifest.tensors

    def __str__(self) -> str:
        return title_of(self.manifest)

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """The number of threads that one operator may use on the CPU; None if unknown.

        Valid after ``load``.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the model; calling it again does nothing."""

    def __enter__(self) -> Self:
        self.load()
        return self


def title_of(manifest: ModelManifest) -> str:
    """Returns a model's name and version, with which messages begin."""
    return f"model {manifest.name} {manifest.version}"


def checked_array(
    model: str, wanted: TensorSpec, array: NDArray[Any], error: type[InferometerError]
) -> NDArray[Any]:
    """Returns the array for one of a model's tensors, in C order, if it matches the manifest.

    Raises an ``error`` that begins with the ``model`` if the element type or the shape does not match, or if
    the batch is empty.
    """
    where, allowed = f'{model}: input "{wanted.name}"', wanted.element_type.value
    if array.dtype != dtype_of(wanted):
        raise error(f"{where}: found {array.dtype}; allowed: {allowed}")
    if not array.size or not wanted.takes(array.shape[1:]):
        allowed = ", ".join(map(str, ("batch", *wanted.written)))
        raise error(f"{where}: found the shape {array.shape}; allowed: ({allowed})")
    return np.ascontiguousarray(array)


class PredictorWatch(Protocol):
    """Makes the predictions of predictors, and observes them."""

    @property
    def timeout_s(self) -> float | None:
        """The longest time, in seconds, to wait for a prediction; None for no limit."""

    def predict(self, predictor: Predictor, inputs: Tensors) -> Tensors:
        """Predicts a batch; see ``Predictor.predict``."""


# Only the message identifies these errors: frameworks use one class of exception for many things.
_OUT_OF_MEMORY = re.compile(
    r"out of memory"  # CUDA, and with it PyTorch and MXNet
    r"|can(?:'|no)t allocate memory"  # PyTorch on the CPU, and the system
    r"|failed to allocate"  # ONNX Runtime's arena; MXNet
    r"|smaller than requested bytes"  # ONNX Runtime's arena, of a GPU's memory
    r"|bad[_ ]alloc"  # C++
    r"|ALLOC_FAILED",  # cuDNN and cuBLAS
    re.IGNORECASE,
)
# The errors that leave a process's CUDA context unusable, by name and by message.
_DEVICE_LOST = re.compile(
    r"illegal memory access|illegal instruction|illegal address|misaligned address|invalid program counter"
    r"|hardware stack error|device-side assert|unspecified launch failure|launch timed out"
    r"|uncorrectable ECC|unspecified hardware error|GPU is lost|fallen off the bus|device (?:is )?lost"
    r"|context is destroyed|driver shutting down|device (?:is )?unavailable|mapping of buffer object failed"
    r"|cudaError(?:Illegal\w+|MisalignedAddress|InvalidPc|HardwareStackError|Assert|LaunchFailure|LaunchTimeout"
    r"|ECCUncorrectable|DevicesUnavailable|ContextIsDestroyed|CudartUnloading|NvlinkUncorrectable)",
    re.IGNORECASE,
)


def prediction_failure(
    message: str, error: BaseException, otherwise: type[InferometerError] = PredictionError
) -> InferometerError:
    """Returns the program's own error for an exception that a framework raised while running a model.

    It is OutOfMemoryError if memory ran out, DeviceLostError if CUDA reports a broken context, after which
    this process can no longer use the device, and ``otherwise`` in all other cases.
    """
    text = str(error)
    if _DEVICE_LOST.search(text):
        return DeviceLostError(f"{message}; this process can no longer use the device: restart it")
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        return OutOfMemoryError(message)
    return otherwise(message)
