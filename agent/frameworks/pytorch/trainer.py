"""The trainer for PyTorch: architectures on one device, alone or with other processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from inferometer.agent.files import replacing
from inferometer.agent.frameworks.pytorch.modules import (
    CUDNN_BENCHMARK,
    build_architecture,
    find_device,
    framework_details,
    named_tensors,
    read_weights,
    reason_of,
    use_threads,
)
from inferometer.agent.frameworks.pytorch.ranks import Ranks, communication_of
from inferometer.agent.hardware.environment import FrameworkDetails, Precision
from inferometer.agent.inference.predictor import prediction_failure, title_of
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.agent.training.trainer import (
    OptimizerOptions,
    PlacedBatch,
    StepParts,
    StepResult,
    Trainer,
    TrainerOptions,
    TrainingBatch,
)
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    DeviceError,
    InferometerError,
    OutputError,
    TrainingError,
)
from inferometer.manifests.schema import Loss, ModelManifest

_AUTOCAST = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}
_ONE_VALUE = "Expected more than 1 value per channel when training"


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A batch on the device."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.inputs)


class PyTorchTrainer(Trainer):
    """A model in code that PyTorch trains on one device of this process.

    If a module returns several tensors in training, such as those of auxiliary classifiers, the first one is
    the output, and the loss covers only that output. In bfloat16 and float16, the forward pass runs under
    autocast, and parameters, gradients and the loss are in float32. Random numbers of the training, such as
    those of dropout, depend only on the seed and the rank, and do not affect those of the process.

    For several ranks, see ``Ranks`` on the overlap of communication.
    """

    _found_threads: int | None = None
    _device = torch.device("cpu")
    _training: _Training | None = None
    _ranks: Ranks | None = None
    _holds_cudnn = False

    @classmethod
    def check(cls, manifest: ModelManifest, options: TrainerOptions) -> None:
        _chosen(manifest, options)

    def load(self) -> None:
        self._device, communication = _chosen(self.manifest, self.options)
        self._use_threads()
        self._found_threads = torch.get_num_threads()
        module = self._build()
        try:
            if (wanted := self.options.predictor.cudnn_benchmark) is not None:
                CUDNN_BENCHMARK.hold(wanted=wanted)
                self._holds_cudnn = True
            if self.options.rank.count > 1:
                self._ranks = Ranks(str(self), self.options.rank, communication, self._device)
                with self._translated("begin alike", TrainingError):
                    self._ranks.begin_alike(module)
            self._training = _Training(module, self._device, self.options)
            self._training.output_shape = self._find_output_shape(self._training)
        except BaseException:
            self.close()
            raise

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._loaded().output_shape

    def place(self, batch: TrainingBatch) -> PlacedBatch:
        self._loaded()
        batch = self.checked(batch)
        self._use_threads()
        with self._translated(f"copy a batch of {len(batch)}", TrainingError):
            placed = _Placed(self._copied(batch.inputs), self._copied(batch.targets))
            self._synchronize()
        return placed

    def step(self, batch: PlacedBatch, *, parts: bool = False) -> StepResult:
        training = self._loaded()
        if not isinstance(batch, _Placed):
            raise TrainingError(f"{self}: the batch is {type(batch).__name__}, which place() did not return")
        self._use_threads()
        apart = parts or (self._ranks is not None and self._ranks.parallel is None)
        with self._translated(f"train on a batch of {len(batch)}", TrainingError), training.drawing():
            result = self._apart(training, batch, parts) if apart else self._at_once(training, batch)
        self.check_scale(training.scale, result)
        return result

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        training = self._loaded()
        inputs = self.checked_inputs(inputs)
        self._use_threads()
        with self._translated(f"run a batch of {len(inputs)}", TrainingError):
            scores: NDArray[np.float32] = training.evaluate(self._copied(inputs)).cpu().numpy()
        return scores

    def save(self, path: Path) -> None:
        state = {name: tensor.cpu() for name, tensor in self._loaded().module.state_dict().items()}
        try:
            with replacing(path, alone=True) as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:
            raise OutputError(f"{path}: cannot be written: {reason_of(error)}") from error

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        self._loaded()
        if self._ranks is None:
            return np.array(values, np.int64)[np.newaxis]
        with self._translated("gather", TrainingError):
            return self._ranks.gather(np.asarray(values, np.int64))

    def profiler(self, level: TraceLevel) -> Profiler | None:
        from inferometer.agent.frameworks.pytorch.profiler import PyTorchProfiler  # most runs need none

        module = self._loaded().module
        return PyTorchProfiler(module, level, gpu=self._device.type == "cuda", training=True)

    def details(self) -> FrameworkDetails:
        return framework_details()

    @property
    def threads(self) -> int | None:
        """The number of threads that PyTorch reported in the thread that loaded the model."""
        return self._found_threads

    def close(self) -> None:
        self._training = None
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None
        if self._holds_cudnn:
            CUDNN_BENCHMARK.release()
            self._holds_cudnn = False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _build(self) -> torch.nn.Module:
        architecture, weights = self.artifacts.architecture, self.artifacts.weights
        if architecture is None:
            raise ArtifactError(f"{self}: is not built in code (architecture), so it cannot be trained")
        module = build_architecture(str(self), architecture, weights, self.options.predictor)
        if weights is not None:
            read_weights(str(self), module, weights)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ArtifactError(f"{self}: has no parameters that can be trained")
        with self._translated(f"move the model to {self.options.devices[0]}", DeviceError):
            return module.to(self._device)

    def _find_output_shape(self, training: _Training) -> tuple[int, ...]:
        wanted = self.manifest.inputs[0].parameters
        with self._translated("run the model", ArtifactError):
            zeros = np.zeros((1, *wanted.dimensions), wanted.element_type.value)
            shape = tuple(training.evaluate(self._copied(zeros)).shape)
        return self.sample_shape([shape])

    def _at_once(self, training: _Training, batch: _Placed) -> StepResult:
        """Runs a step whose communication overlaps with its backward pass."""
        training.optimizer.zero_grad(set_to_none=True)
        weight = None if self._ranks is None else self._ranks.weigh(len(batch))
        loss = self._loss_of(training, batch)
        training.backward(loss if weight is None else weight.of(loss))
        training.update()
        value = loss.item()
        self._synchronize()
        return StepResult(value)

    def _apart(self, training: _Training, batch: _Placed, parts: bool) -> StepResult:
        """Runs a step whose parts run one after the other, each synchronised."""
        times_ns = [self._now_ns()]
        training.optimizer.zero_grad(set_to_none=True)
        with nullcontext() if self._ranks is None else self._ranks.apart():
            loss = self._loss_of(training, batch)
            times_ns.append(self._now_ns())
            training.backward(loss)
        times_ns.append(self._now_ns())
        if self._ranks is not None:
            self._ranks.add_up(list(training.parameters.values()), len(batch))
            times_ns.append(self._now_ns())
        training.update()
        times_ns.append(self._now_ns())
        if self._ranks is not None:
            self._ranks.overlap(training.module)
        forward, backward, *communicate, update = np.diff(times_ns).tolist()
        return StepResult(
            loss.item(), StepParts(forward, backward, sum(communicate), update) if parts else None
        )

    def _loss_of(self, training: _Training, batch: _Placed) -> torch.Tensor:
        parallel = self._ranks and self._ranks.parallel
        scores = training.run(parallel or training.module, batch.inputs)
        if self.loss is Loss.CROSS_ENTROPY:
            return functional.cross_entropy(scores, batch.targets)
        samples, steps, _ = scores.shape
        losses = functional.ctc_loss(
            functional.log_softmax(scores, dim=2).transpose(0, 1),
            batch.targets,
            torch.full((samples,), steps),
            torch.full((samples,), batch.targets.shape[1]),
            blank=0,
            reduction="none",  # its mean divides by the lengths of the targets too
        )
        return losses.mean()

    def _copied(self, array: NDArray[Any]) -> torch.Tensor:
        if self._device.type != "cuda":
            return torch.tensor(array)
        pinned = torch.empty(array.shape, dtype=torch.tensor(array[:0]).dtype, pin_memory=True)
        pinned.numpy()[...] = array  # torch.tensor does not pin what it makes of an array
        return pinned.to(self._device, non_blocking=True)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _now_ns(self) -> int:
        self._synchronize()
        return time.perf_counter_ns()

    def _use_threads(self) -> None:
        use_threads(self.options.predictor.operator_threads)

    def _loaded(self) -> _Training:
        if self._training is None:
            raise TrainingError(f"{self}: is not loaded")
        return self._training

    @contextmanager
    def _translated(self, done: str, otherwise: type[InferometerError]) -> Iterator[None]:
        """Converts exceptions from PyTorch and from a model's code, which may raise anything."""
        try:
            yield
        except InferometerError:
            raise
        except Exception as error:
            if self._ranks is not None and (lost := self._ranks.failure(error)) is not None:
                raise lost from error
            reason = reason_of(error)
            if _ONE_VALUE in reason:
                reason = "its batch normalization accepts no batch of 1 in training; use a batch of 2 or more"
            raise prediction_failure(
                f"{self}: PyTorch failed to {done}: {reason}", error, otherwise
            ) from error


class _Training:
    """A module in training: its parameters, its optimizer and its random numbers."""

    def __init__(self, module: torch.nn.Module, device: torch.device, options: TrainerOptions) -> None:
        self.module = module.train()
        self.parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.optimizer = _optimizer(list(self.parameters.values()), options.optimizer)
        self.output_shape: tuple[int, ...] = ()
        self._type = _AUTOCAST.get(options.predictor.precision)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._type is torch.float16)
        self._device = device
        seed = options.predictor.seed + options.rank.number
        self._states = [torch.Generator(each).manual_seed(seed).get_state() for each in self._generators]

    @property
    def _generators(self) -> tuple[torch.device, ...]:
        """The devices on which modules draw random numbers."""
        host = torch.device("cpu")
        return (host,) if self._device.type == "cpu" else (host, self._device)

    @property
    def scale(self) -> float:
        """The scale of the loss; 1 without scaling."""
        return self._scaler.get_scale()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Uses the random number state of this training within the context; takes some microseconds."""
        others = [_state(each) for each in self._generators]
        _restore(self._generators, self._states)
        try:
            yield
        finally:
            self._states = [_state(each) for each in self._generators]
            _restore(self._generators, others)

    def run(self, module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the first output of a module, in float32."""
        with self._precision():
            answer = module(inputs)
        _, output = next(named_tensors(answer))
        return output.float()

    def evaluate(self, inputs: torch.Tensor) -> torch.Tensor:
        """Runs the module as in a prediction, then sets it back to training mode."""
        self.module.eval()
        try:
            # a module may keep a tensor for later steps, which inference_mode would make useless for them
            with torch.no_grad():
                return self.run(self.module, inputs)
        finally:
            self.module.train()

    def backward(self, loss: torch.Tensor) -> None:
        """Computes the gradients, which are scaled in float16."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # as torch has it

    def update(self) -> None:
        """Updates the parameters, unless a scaled gradient has overflowed."""
        self._scaler.step(self.optimizer)
        self._scaler.update()

    def _precision(self) -> AbstractContextManager[object]:
        if self._type is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._type)


def _state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _restore(devices: tuple[torch.device, ...], states: list[torch.Tensor]) -> None:
    for device, state in zip(devices, states, strict=True):
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


def _optimizer(parameters: list[torch.nn.Parameter], options: OptimizerOptions) -> torch.optim.Optimizer:
    """Returns PyTorch's optimizer; Adam's coefficients and RMSProp's smoothing are PyTorch's defaults."""
    rate, momentum, decay = options.learning_rate, options.momentum, options.weight_decay
    match options.name:
        case "sgd":
            return torch.optim.SGD(parameters, rate, momentum, weight_decay=decay)
        case "nag":  # which without momentum is SGD, and PyTorch refuses it
            return torch.optim.SGD(parameters, rate, momentum, weight_decay=decay, nesterov=momentum > 0)
        case "adam":
            return torch.optim.Adam(parameters, rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, rate, weight_decay=decay)
        case "rmsprop":
            return torch.optim.RMSprop(parameters, rate, weight_decay=decay, momentum=momentum)
    raise ConfigurationError(f"optimizer is {options.name}, which PyTorch's trainer does not support")


def _chosen(manifest: ModelManifest, options: TrainerOptions) -> tuple[torch.device, str]:
    """Returns the device and the library that adds up gradients; raises the errors of ``Trainer.check``."""
    if options.api:
        raise ConfigurationError(f"api is {options.api}; PyTorch has one API: leave it out")
    if len(options.devices) != 1:
        raise ConfigurationError(
            f"devices: found {len(options.devices)}; PyTorch trains on one per process: start a process "
            "for each"
        )
    rank = options.rank
    if not 0 <= rank.number < rank.count:
        raise ConfigurationError(f"rank is {rank.number}; allowed: 0 to {rank.count - 1}")
    if rank.count > 1 and not rank.address:
        raise ConfigurationError(f"rank {rank.number} of {rank.count} has no address where the ranks meet")
    device = find_device(title_of(manifest), options.devices[0])
    if options.predictor.precision is Precision.FLOAT16 and device.type == "cpu":
        raise ConfigurationError(
            f"{title_of(manifest)}: PyTorch trains in float16 on a GPU only; on a CPU use bfloat16"
        )
    return device, communication_of(options.communication, device)
