"""The trainer: the interface that every framework implements to train one model on this process's devices.

``open_trainer`` opens a model's trainer, just as ``agent.inference.session`` opens its predictor. A
``Companion`` is a process that must run beside the ranks, such as a server of MXNet's kvstore.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES, Architectures
from inferometer.agent.artifacts.files import ArtifactCache, Artifacts, resolve_model, with_labels
from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import (
    CPU,
    Device,
    FrameworkDetails,
    PredictorOptions,
    Weights,
    container_architecture,
    read_environment,
)
from inferometer.agent.inference.predictor import checked_array, title_of
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.inference.requirements import require_supported
from inferometer.agent.inference.stages import SystemDescription
from inferometer.agent.preprocessing.preprocessor import preprocessor_of
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    FrameworkUnavailableError,
    TrainingError,
)
from inferometer.manifests.schema import Loss, ModelManifest


@dataclass(frozen=True, slots=True)
class OptimizerOptions:
    """An optimizer, with the same defaults as in DLBS.

    The learning rate stays the same in all steps. ``weight_decay`` is the L2 penalty, added to the gradient;
    for AdamW, the decoupled weight decay.

    Raises:
        ConfigurationError: A name is unknown, or a number is out of range.
    """

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ConfigurationError(f"optimizer is {self.name}; allowed: {', '.join(OPTIMIZERS)}")
        for name, most in (("learning_rate", 1e6), ("momentum", 1.0), ("weight_decay", 1e6)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; allowed: 0 to {most:g}")


OPTIMIZERS = ("sgd", "nag", "adam", "adamw", "rmsprop")


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank of this process among those that train one model together.

    Attributes:
        number: The rank's number, from 0 to ``count`` - 1.
        count: The number of ranks on all hosts.
        local: The rank's number on this host, which selects the GPU.
        address: The host and port where the ranks meet; empty for a single process.
        local_count: The number of ranks on this host, which share its cores.
        launcher: The id of the process that started the ranks on this host; None for a single process.
        timeout_s: The longest wait for other ranks, when the ranks meet and in each step.
        servers: The number of MXNet kvstore servers that add up gradients, each for a part of the parameters.
    """

    number: int = 0
    count: int = 1
    local: int = 0
    address: str = ""
    local_count: int = 1
    timeout_s: float = 300.0
    servers: int = 1
    launcher: int | None = None

    def __str__(self) -> str:
        return f"rank {self.number} of {self.count}"


def require_host(address: str) -> None:
    """Looks up the host at which the ranks meet, as a rank that cannot find it would keep others waiting.

    Raises:
        ConfigurationError: This machine finds no address for the host.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"{host}: the ranks meet at {address}, but {socket.gethostname()} finds no address for it: "
            f"{getattr(error, 'strerror', None) or error}; name a host that it finds, or an IP address"
        ) from error


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """The options of a trainer.

    Attributes:
        predictor: The threads, weights, precision and cuDNN setting; its device is not used. The updated
            parameters stay in float32; with float16, the loss is scaled.
        devices: The devices of this process, which share each batch; only MXNet supports several.
        optimizer: The optimizer.
        communication: How gradients are added up: ``gloo`` or ``nccl`` in PyTorch, the type of kvstore in
            MXNet; empty for a single device, where it is not needed.
        rank: The rank of this process among several.
        api: The API used for training, if the framework has several: MXNet's ``gluon`` or ``module``.
    """

    predictor: PredictorOptions = PredictorOptions()  # noqa: RUF009 - frozen
    devices: tuple[Device, ...] = (CPU,)
    optimizer: OptimizerOptions = OptimizerOptions()
    communication: str = ""
    rank: Rank = Rank()
    api: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """A batch in host memory.

    Attributes:
        inputs: The shape is ``(samples, *dimensions)``, with the model's element type.
        targets: int64. For ``Loss.CROSS_ENTROPY`` (samples,): the index of the class. For ``Loss.CTC``
            (samples, length): the labels, from 1; 0 is the blank.
    """

    inputs: NDArray[Any]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.inputs)


class PlacedBatch(Protocol):
    """A batch on the trainer's devices, whose content only its trainer knows."""

    def __len__(self) -> int:
        """Returns the number of samples."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """The times of one step's parts, in nanoseconds, each synchronised with the devices.

    ``forward_ns`` includes the loss. ``communicate_ns`` is the summing of gradients over devices and
    processes, 0 for a single device, which ``backward_ns`` leaves out.
    """

    forward_ns: int
    backward_ns: int
    communicate_ns: int
    update_ns: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step.

    ``loss`` is the mean over this process's samples before the update, without loss scaling.
    """

    loss: float
    parts: StepParts | None = None


class Trainer(Closeable):
    """Trains one model on the devices of this process.

    Not thread-safe. Exceptions of the framework are translated to those of ``manifests.errors``:
    OutOfMemoryError, DeviceLostError, or a TrainingError that says what failed. The manifest's ``training``
    names the loss; only a model in code can be trained.
    """

    def __init__(self, manifest: ModelManifest, artifacts: Artifacts, options: TrainerOptions) -> None:
        self.manifest = manifest
        self.artifacts = artifacts
        self.options = options

    @property
    def loss(self) -> Loss:
        """The loss of the model."""
        return self.manifest.loss

    @classmethod
    def check(cls, manifest: ModelManifest, options: TrainerOptions) -> None:
        """Rejects what the framework does not support before a file of the model or the data is read.

        ``load`` rejects the same; by default, only ``load`` does. Implementations check the devices here.

        Raises:
            ConfigurationError: An option is not supported here; the message names an alternative.
            DeviceError: A device is missing.
        """

    @abstractmethod
    def load(self) -> None:
        """Builds the model and its optimizer on the devices, and meets the other ranks.

        All ranks begin with the parameters of rank 0.

        Raises:
            ConfigurationError: An option is not supported here; the message names an alternative.
            DeviceError: A device is missing.
            ArtifactError: The model cannot be built or trained.
            TrainingError: The other ranks cannot be reached.
        """

    @property
    @abstractmethod
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the model's output for one sample: (classes,), or (time steps, classes) for CTC.

        Valid after ``load``.
        """

    @abstractmethod
    def place(self, batch: TrainingBatch) -> PlacedBatch:
        """Copies a batch to the devices and returns once it is there.

        Raises:
            TrainingError: The batch does not match the model; see ``checked``.
            OutOfMemoryError: Memory ran out.
        """

    @abstractmethod
    def step(self, batch: PlacedBatch, *, parts: bool = False) -> StepResult:
        """Trains on a batch: forward, loss, backward, summing the gradients, update.

        Returns once the devices have finished. The gradient is taken of the mean loss over all samples in the
        batches of all ranks, however many each rank has.

        Args:
            batch: The return value of ``place``; it can be used again.
            parts: Whether to time the parts, which takes longer because of a synchronisation after each; must
                be the same on every rank.

        Returns:
            The result of the step; a loss that is not finite is returned unchanged.

        Raises:
            TrainingError: The framework failed, the connection to another rank was lost, or float16 cannot
                hold the gradients with any scale of the loss.
            OutOfMemoryError: Memory ran out.
        """

    @abstractmethod
    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Runs the model on ``(samples, *dimensions)`` and returns ``(samples, *output_shape)``.

        The model runs as in a prediction, without dropout, and the state of the training does not change.

        Raises:
            TrainingError: The inputs do not match, or the framework failed.
            OutOfMemoryError: Memory ran out.
        """

    def checked(self, batch: TrainingBatch) -> TrainingBatch:
        """Returns a batch in C order, if it matches the manifest and the loaded model.

        Implementations call it first in ``place``, so that an invalid batch gives the same error in every
        framework, and so that no invalid target reaches a GPU, which it could leave unusable.

        Raises:
            TrainingError: The element type or the shape of the inputs or of the targets does not match, a
                target is not a class of the model, or CTC has fewer time steps than its labels need.
        """
        inputs, targets = self.checked_inputs(batch.inputs), batch.targets
        ctc = self.loss is Loss.CTC
        shape = ("samples", "length") if ctc else ("samples",)
        if targets.dtype != np.int64 or targets.ndim != len(shape) or len(targets) != len(inputs):
            raise TrainingError(
                f"{self}: found targets of the type {targets.dtype} and the shape {targets.shape} for "
                f"{len(inputs)} samples; allowed: int64, ({', '.join(shape)})"
            )
        least, classes = int(ctc), self.output_shape[-1]
        outside = (targets < least) | (targets >= classes)
        if outside.any():
            raise TrainingError(
                f"{self}: found the target {targets[outside][0]}; allowed: {least} to {classes - 1}, of "
                f"{classes} classes" + ("; 0 is the blank" if ctc else "")
            )
        if ctc:  # equal labels that follow one another need a blank between them
            needed = targets.shape[1] + int((targets[:, 1:] == targets[:, :-1]).sum(axis=1).max())
            if not targets.shape[1] or needed > self.output_shape[0]:
                raise TrainingError(
                    f"{self}: found {targets.shape[1]} labels for a sample, which need {needed} time steps; "
                    f"allowed: 1 or more labels that need at most {self.output_shape[0]}"
                )
        return TrainingBatch(inputs, np.ascontiguousarray(targets))

    def sample_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape of the model's only output without its batch axis, given a batch of one.

        Raises ArtifactError if the loss takes no output of this shape.
        """
        axes = ("time steps", "classes") if self.loss is Loss.CTC else ("classes",)
        if len(shapes) != 1 or len(shapes[0]) != 1 + len(axes) or shapes[0][0] != 1:
            raise ArtifactError(
                f"{self}: its output for one sample has the shape {', '.join(map(str, shapes))}; allowed for "
                f"the loss {self.loss.value}: (1, {', '.join(axes)})"
            )
        return tuple(shapes[0][1:])

    def check_scale(self, scale: float, result: StepResult) -> None:
        """Checks the loss scale of float16, which is halved whenever a gradient overflows.

        Raises:
            TrainingError: It is below 1.
        """
        if scale < 1:
            raise TrainingError(
                f"{self}: float16 cannot hold the gradients: their scale fell to {scale:g}, with a loss of "
                f"{result.loss:g}; use bfloat16 or float32"
            )

    def checked_inputs(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Returns inputs in C order if they match the manifest; raises TrainingError if they do not."""
        return checked_array(str(self), self.manifest.tensors[0], inputs, TrainingError)

    @abstractmethod
    def save(self, path: Path) -> None:
        """Writes all weights to a file that a manifest of this architecture can name as ``weights_path``.

        Raises:
            OutputError: The file cannot be written.
        """

    @abstractmethod
    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives every rank the values of all ranks, ``(ranks, *shape)``; the ranks' shapes must be equal."""

    def profiler(self, level: TraceLevel) -> Profiler | None:
        """Returns a profiler of the layers, forward and backward; None, the default, if there is none."""
        return None

    def details(self) -> FrameworkDetails:
        """Returns the framework's build and settings; empty by default."""
        return FrameworkDetails()

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """The number of threads that one operator may use on the CPU; None if unknown."""

    @abstractmethod
    def close(self) -> None:
        """Frees the model and leaves the other ranks; calling it again does nothing."""

    def __enter__(self) -> Self:
        self.load()
        return self

    def __str__(self) -> str:
        return title_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Companion:
    """A process that runs beside ranks.

    ``work``, which must be picklable, runs until the ranks tell it to end; ``name`` is for messages.
    """

    name: str
    work: Callable[[], None]


CompanionsOf: TypeAlias = Callable[[Rank], Sequence[Companion]]
"""Returns the processes to run on a rank's host beside it."""


def open_trainer(
    manifest: ModelManifest,
    options: TrainerOptions,
    registry: Registry,
    *,
    architectures: Architectures = BUILTIN_ARCHITECTURES,
    cache: ArtifactCache | None = None,
) -> tuple[Trainer, SystemDescription]:
    """Builds a model on this process's devices and meets other ranks; the caller must close the trainer.

    If there is no ``cache``, any pretrained weights must be on this machine.

    Returns:
        The loaded trainer and its system, described with the first device and without preprocessing threads,
        as these belong to the loader.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: The framework is unknown or not installed.
        ConfigurationError: The framework cannot train models, or an option is not supported here.
        ArtifactError: The model is read from a file, or one of its files is missing or changed.
        ManifestError: The manifest requires something that is not supported, or other hardware.
        DeviceError: A device is not available.
        TrainingError: The other ranks cannot be reached.
    """
    trainer_type = check_trainer(manifest, options, registry)
    preprocessor = preprocessor_of(manifest.inputs[0].parameters)
    entry = registry.find(manifest.framework.name)
    random = options.predictor.weights is Weights.RANDOM
    manifest = with_labels(manifest, needed=False, cache=None if random else cache)
    artifacts = resolve_model(manifest, entry.name, architectures, cache, random=random)
    versions = {**registry.versions, **(artifacts.architecture.versions if artifacts.architecture else {})}
    trainer = trainer_type(manifest, artifacts, options)
    try:
        trainer.load()
        description = SystemDescription(
            manifest=manifest,
            checksums=artifacts.checksums,
            framework_version=entry.installed_version or "",
            device=options.devices[0],
            threads=trainer.threads,
            preprocess_threads=0,
            overlap=False,
            environment=read_environment(versions, preprocessor.libraries, trainer.details()),
            weights=options.predictor.weights,
            seed=options.predictor.seed if random else None,
            precision=options.predictor.precision,
            cudnn_benchmark=options.predictor.cudnn_benchmark,
        )
    except BaseException:
        trainer.close()
        raise
    return trainer, description


def check_trainer(manifest: ModelManifest, options: TrainerOptions, registry: Registry) -> type[Trainer]:
    """Returns a model's trainer after all checks that need neither its files nor the data.

    Raises the errors of ``open_trainer`` that concern framework, options, devices and manifest.
    """
    require_supported(manifest, container_architecture())
    entry = registry.find(manifest.framework.name)
    if not entry.trainer:
        able = ", ".join(each.name for each in registry.entries if each.trainer)
        raise ConfigurationError(f"framework {entry.name} cannot train models; allowed: {able or 'none'}")
    trainer = entry.import_part(entry.trainer)
    if not (isinstance(trainer, type) and issubclass(trainer, Trainer)):
        raise FrameworkUnavailableError(f"framework {entry.name}: {entry.trainer} is not a Trainer")
    if manifest.model.architecture is None:
        raise ArtifactError(
            f"model {manifest.name} {manifest.version} for {entry.name} is read from a file; only a model "
            "that is built in code (architecture) can be trained"
        )
    trainer.check(manifest, options)
    return trainer


def find_companions(entry: FrameworkEntry, communication: str) -> CompanionsOf | None:
    """Returns the function that creates the ranks' companions; None if a framework has none.

    Raises:
        FrameworkUnavailableError: The framework is not installed.
    """
    if not entry.companions:
        return None
    companions = entry.import_part(entry.companions)
    if not callable(companions):
        raise FrameworkUnavailableError(f"framework {entry.name}: {entry.companions} is not a function")
    return partial(companions, communication)
