"""The trainer for MXNet 1.x: gluon architectures, trained by gluon or by the Module API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.files import replacing
from inferometer.agent.frameworks.mxnet.kvstore import GradientExchange, kvstore_of
from inferometer.agent.frameworks.mxnet.networks import (
    GluonNetwork,
    ModuleNetwork,
    Shard,
    TrainedNetwork,
    build_network,
    symbol_of,
)
from inferometer.agent.frameworks.mxnet.optimizers import ServerOptimizer, Updates, build_optimizer
from inferometer.agent.frameworks.mxnet.runtime import (
    FAILURES,
    ONE_AT_A_TIME,
    WORKERS,
    copied_to,
    find_context,
    framework_details,
    mxnet,
    reason,
)
from inferometer.agent.frameworks.mxnet.step_profiler import MXNetStepProfiler
from inferometer.agent.hardware.environment import FrameworkDetails, Precision
from inferometer.agent.inference.predictor import prediction_failure, title_of
from inferometer.agent.tracing.recorder import Profiler, TraceLevel
from inferometer.agent.training.trainer import (
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
    InferometerError,
    OutputError,
    TrainingError,
)
from inferometer.manifests.schema import ModelManifest

_APIS = ("gluon", "module")
_FIRST_SCALE = 65536.0
_STEPS_TO_DOUBLE = 2000


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A batch split over the devices; the shard of a device without samples is None."""

    shards: tuple[Shard | None, ...]
    samples: int

    def __len__(self) -> int:
        return self.samples


@dataclass(slots=True, eq=False)
class _Training:
    """A network and the objects that train it."""

    network: TrainedNetwork
    net: Any
    output_shape: tuple[int, ...]
    updates: Updates
    exchange: GradientExchange | None = None
    scale: float = 1.0
    good_steps: int = 0

    def wait(self) -> None:
        """Waits until all queued work has finished; raises the errors of that work."""
        if self.exchange is None:
            mxnet.nd.waitall()
        else:
            self.exchange.wait()


class MXNetTrainer(Trainer):
    """A model in code that MXNet trains on one or more devices of this process, alone or with others.

    Each device has a copy of the parameters and a share of each batch. In bfloat16 and float16, MXNet's
    ``amp`` makes convolutions, fully connected and, in float16, recurrent layers compute in that type;
    parameters, gradients and the loss are in float32. Each device computes the batch normalization statistics
    of its own samples; those of the first device are saved. Dropout draws from the process's generators,
    which ``load`` seeds with the seed and the rank.

    With the kvstore ``dist_async``, a step pushes the gradient of the mean loss over the samples of this rank
    alone, the servers update the parameters with it, and the step pulls the result; the time of the update is
    counted as communication.

    MXNet reports an operator's failure when its result is awaited, and ``step`` waits for everything.
    Parameters may be partly updated after a failed step.
    """

    _contexts: Sequence[Any] = ()
    _threads: int | None = None
    _training: _Training | None = None
    _failed = False

    @classmethod
    def check(cls, manifest: ModelManifest, options: TrainerOptions) -> None:
        with ONE_AT_A_TIME:
            _chosen(manifest, options)

    def load(self) -> None:
        with ONE_AT_A_TIME:
            self._contexts, kvstore = _chosen(self.manifest, self.options)
            for context in self._contexts:
                cpu = context.device_id if context.device_type == "cpu" else 0
                predictor = self.options.predictor
                self._threads = WORKERS.fix(predictor.threads, predictor.operator_threads, cpu)
            rank = self.options.rank
            draw = np.random.SeedSequence([self.options.predictor.seed, rank.number]).generate_state(1)
            mxnet.random.seed(int(draw[0]) >> 1)
            self._failed = False
            try:
                with self._translated(f"build it in {self.options.predictor.precision.value}", ArtifactError):
                    self._training = self._build()
                if kvstore:
                    self._start(self._training, kvstore)
            except BaseException:
                self._failed = True
                self.close()
                raise

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._loaded().output_shape

    def place(self, batch: TrainingBatch) -> PlacedBatch:
        """Copies a batch to the devices; the first devices may get one sample more. See ``Trainer``."""
        self._loaded()
        batch = self.checked(batch)
        inputs = np.array_split(batch.inputs, len(self._contexts))
        targets = np.array_split(batch.targets.astype(np.float32), len(self._contexts))
        with ONE_AT_A_TIME, self._translated(f"copy a batch of {len(batch)}", TrainingError):
            shards = tuple(
                (copied_to(context, share), copied_to(context, labels)) if len(share) else None
                for share, labels, context in zip(inputs, targets, self._contexts, strict=True)
            )
            mxnet.nd.waitall()
        return _Placed(shards, len(batch))

    def step(self, batch: PlacedBatch, *, parts: bool = False) -> StepResult:
        training = self._loaded()
        if not isinstance(batch, _Placed):
            raise TrainingError(f"{self}: the batch is {type(batch).__name__}, which place() did not return")
        with ONE_AT_A_TIME:
            with self._translated(f"train on a batch of {len(batch)}", TrainingError):
                result = self._step(training, batch, parts)
            self.check_scale(training.scale, result)
        return result

    def scores(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        training = self._loaded()
        inputs = self.checked_inputs(inputs)
        with ONE_AT_A_TIME, self._translated(f"run a batch of {len(inputs)}", TrainingError):
            outputs = training.network.scores(copied_to(self._contexts[0], inputs))
            scores: NDArray[np.float32] = outputs.asnumpy()
        return scores

    def save(self, path: Path) -> None:
        training = self._loaded()
        try:
            # opened here, because MXNet reports a file that it cannot open by a message of its C++ code
            with ONE_AT_A_TIME, replacing(path, alone=True) as file:
                training.network.update_block()
                training.net.save_parameters(str(file.name))
        except (OSError, *FAILURES) as error:
            raise OutputError(f"{path}: cannot be written: {reason(error)}") from error

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        training = self._loaded()
        values = np.array(values, np.int64)
        if training.exchange is None:
            return values[np.newaxis]
        with ONE_AT_A_TIME, self._translated("gather", TrainingError):
            return training.exchange.gather(values)

    def profiler(self, level: TraceLevel) -> Profiler | None:
        training = self._loaded()
        return MXNetStepProfiler(training.network, level, gpu=self.options.devices[0].is_gpu)

    def details(self) -> FrameworkDetails:
        return framework_details()

    @property
    def threads(self) -> int | None:
        """The number of threads of each MXNet CPU worker; None if they differ."""
        return self._threads

    def close(self) -> None:
        with ONE_AT_A_TIME:
            training, self._training = self._training, None
            if training is None:
                return
            with suppress(*FAILURES):  # a step that failed has reported it
                if not self._failed:
                    training.wait()
            if training.exchange is not None:
                training.exchange.leave(failed=self._failed)
            del training
            for context in self._contexts:
                if context.device_type == "gpu":
                    context.empty_cache()

    def _build(self) -> _Training:
        options, inputs = self.options, self.manifest.inputs[0].parameters
        if self.artifacts.architecture is None:
            raise ArtifactError(f"{self}: is not built in code (architecture), so it cannot be trained")
        module = options.api == "module"
        contexts = self._contexts[:1] if module else self._contexts  # the copies of Module are its own
        net = build_network(
            self, self.artifacts, options.predictor, [inputs.dimensions], contexts, gradients=True
        )
        element_type = inputs.element_type.value
        symbol = symbol_of(net, [inputs.input_layer], element_type)
        _, shapes, _ = symbol.infer_shape(**{inputs.input_layer: (1, *inputs.dimensions)})
        shape = self.sample_shape(shapes)
        data = mxnet.sym.var(inputs.input_layer, dtype=element_type)
        precision = options.predictor.precision
        network: TrainedNetwork
        if module:
            bound = ModuleNetwork(net, symbol, data, self.loss, precision, self._contexts)
            bound.bind(inputs.dimensions, element_type)
            network = bound
        else:
            network = GluonNetwork(net, symbol, data, self.loss, precision, self._contexts)
        if not network.trained:
            raise ArtifactError(f"{self}: has no parameters that can be trained")
        optimizer = build_optimizer(options.optimizer)
        scale = _FIRST_SCALE if precision is Precision.FLOAT16 else 1.0
        training = _Training(network, net, shape, Updates(optimizer, len(self._contexts)), scale=scale)
        mxnet.nd.waitall()
        return training

    def _start(self, training: _Training, kvstore: str) -> None:
        """Joins the other ranks, and sets all copies of the parameters to the values of rank 0."""
        with self._translated("create the kvstore", TrainingError):
            training.exchange = GradientExchange(self, kvstore, self.options.rank)
            weights = training.network.weights()
            optimizer = ServerOptimizer(len(weights), build_optimizer(self.options.optimizer))
            training.exchange.start(weights, training.network.states(), optimizer)

    def _step(self, training: _Training, batch: _Placed, parts: bool) -> StepResult:
        network, exchange = training.network, training.exchange
        times_ns = [time.perf_counter_ns()]

        def finish_part() -> None:
            if parts:
                training.wait()
                times_ns.append(time.perf_counter_ns())

        losses = network.forward(batch.shards)
        finish_part()
        # on the servers, no rank knows the samples of the others
        on_servers = exchange is not None and exchange.on_servers
        network.backward(training.scale / len(batch) if on_servers else training.scale)
        finish_part()
        total = len(batch)
        if exchange is not None and on_servers:
            exchange.update_on_servers(network.weights(), network.gradients())
            finish_part()
        elif exchange is not None:
            total = exchange.add_up(network.gradients(), len(batch))
            finish_part()
        if not on_servers and _holds(training):
            rescale = 1 / (total * training.scale)
            training.updates.update(network.weights(), network.gradients(), rescale)
        finish_part()
        training.wait()
        loss = sum(float(each.asnumpy().sum(dtype=np.float64)) for each in losses) / len(batch)
        if not parts:
            return StepResult(loss)
        forward, backward, *communicate, update = np.diff(times_ns).tolist()
        return StepResult(loss, StepParts(forward, backward, sum(communicate), update))

    def _loaded(self) -> _Training:
        if self._training is None:
            raise TrainingError(f"{self}: is not loaded")
        return self._training

    @contextmanager
    def _translated(self, what: str, otherwise: type[InferometerError]) -> Iterator[None]:
        """Converts MXNet's errors to this package's, after clearing failed work from the queue."""
        try:
            yield
        except InferometerError:
            self._failed = True
            raise
        except Exception as error:  # of any class: operators in Python raise what they like
            self._failed = True
            self._clear()
            raise prediction_failure(
                f"{self}: MXNet failed to {what}: {reason(error)}", error, otherwise
            ) from error

    def _clear(self) -> None:
        """Waits until all work has finished, and drops the failures that MXNet keeps with each array."""
        for _ in range(2):
            with suppress(*FAILURES):
                mxnet.nd.waitall()
            if self._training is not None:
                network = self._training.network
                for copies in (*network.weights(), *network.gradients(), *network.states()):
                    for array in copies:
                        with suppress(*FAILURES):
                            array.wait_to_read()


def _holds(training: _Training) -> bool:
    """Returns whether all gradients are finite; adapts the loss scale, which only float16 uses.

    The gradients are already summed over devices and ranks, so all of them get the same result.
    """
    if training.scale == 1.0:
        return True
    arrays = [copies[0] for copies in training.network.gradients()]
    if not mxnet.nd.multi_all_finite(*arrays, num_arrays=len(arrays)).asscalar():
        training.scale /= 2
        training.good_steps = 0
        return False
    training.good_steps += 1
    if training.good_steps == _STEPS_TO_DOUBLE:
        training.scale *= 2
        training.good_steps = 0
    return True


def _chosen(manifest: ModelManifest, options: TrainerOptions) -> tuple[list[Any], str]:
    """Returns the devices and the type of the kvstore (empty if no kvstore is needed).

    Raises the same errors as ``Trainer.check``.
    """
    model, rank = title_of(manifest), options.rank
    if options.api and options.api not in _APIS:
        raise ConfigurationError(f"api is {options.api}; allowed in MXNet: {', '.join(_APIS)}")
    if not options.devices or len({(each.kind, each.index) for each in options.devices}) < len(
        options.devices
    ):
        found = ", ".join(map(str, options.devices)) or "none"
        raise ConfigurationError(f"devices: found {found}; allowed: one or more distinct ones")
    if len({each.kind for each in options.devices}) > 1:
        raise ConfigurationError("devices: found CPUs and GPUs; allowed: either CPUs or GPUs")
    if not 0 <= rank.number < rank.count:
        raise ConfigurationError(f"rank is {rank.number}; allowed: 0 to {rank.count - 1}")
    contexts = [find_context(device, model) for device in options.devices]
    if options.predictor.precision is Precision.FLOAT16 and not options.devices[0].is_gpu:
        raise ConfigurationError(f"{model}: MXNet trains in float16 on a GPU only; on a CPU use bfloat16")
    if options.predictor.precision is Precision.FLOAT16 and options.api == "module":
        raise ConfigurationError(f"{model}: Module does not scale the loss for float16; use gluon")
    kvstore = kvstore_of(options.communication, rank, contexts)
    if options.predictor.precision is Precision.FLOAT16 and kvstore == "dist_async":
        raise ConfigurationError(
            f"{model}: the servers of dist_async do not know the loss scale of float16; use dist_sync"
        )
    return contexts, kvstore
