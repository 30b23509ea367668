"""The stages of a batch before and after its prediction: their times, their results, and what they do.

Threads prepare the inputs: they read them and preprocess them into a model's tensors. ``Postprocessor``
converts outputs to predictions according to the model's task. Results are predictions in columns, the times
of the stages, failed inputs, and a description of the open model.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import Device, DeviceKind, Environment, Precision, Weights
from inferometer.agent.preprocessing.inputs import EncodedImage, Fetch, Input, Origin, Tensors, Url
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.agent.tasks.predictions import OF_WHOLE_BATCH, Outputs, PredictedInputs, RawOutputs
from inferometer.agent.tasks.registry import POSTPROCESSORS
from inferometer.manifests.errors import InputError, PredictionError, SessionError
from inferometer.manifests.schema import ModelManifest, ModelOutput


class Stage(str, Enum):
    """A step of the pipeline."""

    READ = "read"
    PREPROCESS = "preprocess"
    PREDICT = "predict"
    POSTPROCESS = "postprocess"
    SCORE = "score"
    """Not part of the pipeline: the evaluation compares predictions with the dataset's ground truth."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time that one batch took in each stage, in nanoseconds of a monotonic clock.

    ``read_ns`` and ``preprocess_ns`` are sums over the inputs. Several threads may process them at once, so
    these sums can exceed the elapsed time. ``predict_ns`` is measured from when the predictor receives the
    batch in host memory until its outputs are in host memory: it includes transfers and synchronization, and
    excludes preprocessing, postprocessing and waits for other batches.
    """

    read_ns: int
    preprocess_ns: int
    predict_ns: int
    postprocess_ns: int


@dataclass(slots=True)  # each request has one, and to make a frozen one takes three times as long
class QueueTimes:
    """The times of a request that was batched with other requests, in nanoseconds.

    Attributes:
        queue_ns: From the request's arrival in the queue until its batch began.
        batch_ns: From then until the prediction began: the batch is assembled into one tensor, and may wait
            for other batches that use the same model or framework.
        batch_size: The number of inputs in the batch, over all of its requests.
    """

    queue_ns: int
    batch_ns: int
    batch_size: int


@dataclass(slots=True, eq=False)
class Inferred:
    """The request's rows of the model's outputs, and its batch's times and, if it was queued, queue times."""

    outputs: Tensors
    predict_ns: int
    queue: QueueTimes | None = None


Infer: TypeAlias = Callable[[Tensors], Inferred]
"""Runs a model on a preprocessed batch."""


@dataclass(frozen=True, slots=True)
class InputFailure:
    """An input without a prediction: the stage that failed, and the reason on one line."""

    input_id: str
    stage: Stage
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class BatchResult:
    """The result of one batch.

    Attributes:
        input_ids: The inputs that were predicted, in the order of the rows of ``outputs``.
        outputs: The predictions; None if every input of the batch failed.
        failures: The inputs that were not predicted; with ``input_ids``, they make up the whole batch.
        times: The stage times; ``predict_ns`` covers the inputs that reached the model, not those that could
            not be read or preprocessed.
        queue: The times in the queue; None if the batch was not queued.
    """

    input_ids: tuple[str, ...]
    outputs: Outputs | None
    failures: tuple[InputFailure, ...]
    times: StageTimes
    queue: QueueTimes | None = None

    def shares_memory(self, batch: Tensors) -> bool:
        """Returns whether the outputs may share the batch's memory, as when a model returns its input."""
        tensors = self.outputs.tensors if isinstance(self.outputs, RawOutputs) else {}
        return any(
            np.may_share_memory(tensor, array) for tensor in tensors.values() for array in batch.values()
        )


LOCAL_AGENT = "local"
"""The value of ``agent`` for a system in this process."""


@dataclass(frozen=True, slots=True)
class SystemDescription:
    """An open model and the system that runs it.

    If only the server is known, the manifest names it as the framework, and ``framework_version`` is the
    server's version, empty if unknown. ``threads`` is the number of threads per operator on the CPU, None if
    unknown. ``preprocess_threads`` read and preprocess ahead, with ``overlap`` also during predictions.
    ``environment`` describes the machine that runs the model, as far as known. ``agent`` is ``local`` for
    this process, otherwise an address. ``seed`` is the seed of random weights, None for others. ``precision``
    is set for a model in code; it is None for a model in a file or in memory, which has its own, or if a
    server does not report it. ``cudnn_benchmark`` is the requested value; None for the framework's default.
    """

    manifest: ModelManifest
    checksums: Mapping[str, str]
    framework_version: str
    device: Device
    threads: int | None
    preprocess_threads: int
    overlap: bool
    environment: Environment
    agent: str = LOCAL_AGENT
    weights: Weights = Weights.PRETRAINED
    seed: int | None = None
    precision: Precision | None = Precision.FLOAT32
    cudnn_benchmark: bool | None = None

    @property
    def weights_text(self) -> str:
        """The source of the weights, with the seed of random ones."""
        random = self.weights is Weights.RANDOM
        return f"random, seed {self.seed}" if random else self.weights.value

    @property
    def precision_text(self) -> str:
        """The precision of a model in code and the requested cuDNN setting; empty if neither is set."""
        found = [] if self.precision is None else [self.precision.value]
        if self.cudnn_benchmark is not None:
            found.append(f"cudnn_benchmark={str(self.cudnn_benchmark).lower()}")
        return ", ".join(found)

    @property
    def is_local(self) -> bool:
        """Whether the model runs in this process, and not on an agent."""
        return self.agent == LOCAL_AGENT

    @property
    def is_of_server(self) -> bool:
        """Whether the model runs on a server, which does not report its device."""
        return self.device.kind is DeviceKind.REMOTE


class Postprocessor:
    """Converts a model's outputs to predictions, according to the model's task. Thread-safe.

    ``feature_limit`` limits how much a task keeps, such as the best classes of each input; 0 keeps all.
    ``fixed`` is ``Predictor.fixed_outputs``.

    Attributes:
        wants_inputs: Whether the task uses information about the inputs besides their number.
        invalid_row: The reason reported for an input whose row is invalid.

    Raises:
        ConfigurationError: The task has no postprocessing here.
        ManifestError: The manifest lacks a field that the task requires.
    """

    def __init__(
        self, output: ModelOutput, feature_limit: int, fixed: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._task = POSTPROCESSORS.find(output.type)(output, feature_limit)
        self._is_raw = output.type == "raw"
        self._fixed = fixed
        self.wants_inputs = self._task.wants_inputs
        self.invalid_row = self._task.invalid_row

    def __call__(
        self, tensors: Tensors, size: int, origins: Sequence[Origin | None] = ()
    ) -> tuple[Outputs, NDArray[np.bool_]]:
        """Returns the predictions for a batch's valid rows, and a mask of these rows.

        The mask has an entry for each input, which is false if an output cannot be a prediction, for example
        if a score is not a finite number. ``origins`` has one for each of ``size`` inputs; it is empty for
        tasks that do not use them.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """
        inputs = PredictedInputs.of(size, origins) if origins else PredictedInputs(size)
        if not (size == 1 and self._task.takes_unbatched):
            hint = "; for a model of one input at a time, use batch_size 1"
            whole = whole_batch_outputs(
                tensors, inputs.rows, self._fixed, hint if self._task.takes_unbatched else ""
            )
            if whole and not self._is_raw:
                tensors = {name: OF_WHOLE_BATCH if name in whole else each for name, each in tensors.items()}
        return self._task(tensors, inputs)


def whole_batch_outputs(
    tensors: Tensors, size: int, fixed: Mapping[str, int], hint: str = ""
) -> frozenset[str]:
    """Returns the names of the outputs of a batch that belong to the whole batch, such as a loss.

    They are single numbers, and tensors whose first axis has the ``fixed`` size that the model declares. A
    fixed size of 1 is ignored for one input: some exporters write it for the batch axis. For
    ``fixed``, see ``Predictor.fixed_outputs``.

    Raises:
        PredictionError: Another output does not have a row for each input; the message ends with ``hint``.
    """
    whole = {
        name
        for name, tensor in tensors.items()
        if not tensor.ndim or (len(tensor) == fixed.get(name) and not len(tensor) == size == 1)
    }
    for name, tensor in tensors.items():
        if name not in whole and len(tensor) != size:
            raise PredictionError(
                f"output {name} has shape {list(tensor.shape)} for a batch of {size} inputs{hint}"
            )
    return frozenset(whole)


_OPEN = nullcontext()


class Gate:
    """Lets many threads prepare inputs or one thread predict, but never both at once.

    On a CPU, both compete for the cores and for the interpreter's lock, which distorts prediction times. A
    prediction waits until the inputs in progress are prepared, and no other input is begun until it ends.
    Then the waiting preparations precede the next prediction, so a client that predicts without pause cannot
    starve others. With ``overlap``, the gate is always open. A preparation waits at most ``timeout_s`` for a
    prediction, because it may hang; None means no limit.
    """

    def __init__(
        self, overlap: bool, timeout_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.overlap = overlap
        self._timeout_s = timeout_s
        self._clock = clock
        self._running_since_s: float | None = None
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._preparing = 0
        self._predicting = 0
        self._waiting_to_prepare = 0
        self._ended_predictions = 0

    @property
    def is_free(self) -> bool:
        """Whether a prediction would begin at once."""
        return self.overlap or not self._preparing

    @contextmanager
    def prepare(self) -> Iterator[None]:
        """Holds the gate while one input is preprocessed, but not while it is read from disk or network."""
        if self.overlap:
            yield
            return
        with self._condition:
            if self._predicting:
                self._wait_for_a_prediction()
            else:
                self._preparing += 1
        try:
            yield
        finally:
            self._end_preparing()

    def predict(self) -> AbstractContextManager[object]:
        """Holds the gate while one batch is predicted."""
        return _OPEN if self.overlap else self  # a generator would be several times slower

    def __enter__(self) -> None:
        """Waits until no preparation is in progress, and blocks preparations until ``__exit__``."""
        with self._lock:
            self._predicting += 1
            try:
                while self._preparing:
                    self._condition.wait()
            except BaseException:  # an interrupt
                self._end_prediction()
                raise
            self._running_since_s = self._clock()

    def __exit__(self, *_: object) -> None:
        """Releases the preparations that are waiting for the prediction."""
        with self._lock:
            self._end_prediction()

    def _end_prediction(self) -> None:
        """Ends a prediction; the caller holds the lock."""
        self._predicting -= 1
        self._running_since_s = None
        self._ended_predictions += 1
        if self._waiting_to_prepare:
            # counted here and not when the threads wake up, which the next prediction would precede
            self._preparing += self._waiting_to_prepare
            self._waiting_to_prepare = 0
            self._condition.notify_all()

    def _wait_for_a_prediction(self) -> None:
        """Waits, holding the lock, until a prediction has ended and has counted this thread as preparing.

        After the timeout, the thread counts itself as preparing.
        """
        ended = self._ended_predictions
        self._waiting_to_prepare += 1
        try:
            while self._ended_predictions == ended:
                left_s = self._timeout_s  # for the next prediction; None means no limit
                if left_s is not None and self._running_since_s is not None:
                    left_s = max(0.0, self._running_since_s + left_s - self._clock())
                if left_s == 0:
                    self._waiting_to_prepare -= 1
                    self._preparing += 1
                    return
                self._condition.wait(left_s)
        except BaseException:  # an interrupt
            if self._ended_predictions == ended:
                self._waiting_to_prepare -= 1
            else:
                self._end_preparing()
            raise

    def _end_preparing(self) -> None:
        with self._condition:
            self._preparing -= 1
            self._condition.notify_all()


BATCHES_AHEAD = 2
"""The minimum number of batches that are prepared together."""
INPUTS_AHEAD = 256
"""The number of inputs prepared together if batches are so small that this exceeds ``BATCHES_AHEAD``."""
BYTES_AHEAD = 64 * 1024 * 1024
"""The memory limit for the tensors prepared together, unless ``BATCHES_AHEAD`` batches need more."""


def round_size(tensor_bytes: int, batch_size: int) -> int:
    """Returns how many batches to prepare together if each input takes ``tensor_bytes``."""
    inputs = min(INPUTS_AHEAD, BYTES_AHEAD // tensor_bytes)
    return max(BATCHES_AHEAD, inputs // max(1, batch_size))


Clock: TypeAlias = Callable[[], int]
"""A monotonic clock in nanoseconds."""
_SHARES = 8
"""The tasks per thread: with one each, a thread with small images would wait for one with large images."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInput:
    """One input after reading and preprocessing: its tensors, or its failure.

    Attributes:
        batch: The tensors of the whole batch, which contain the input's tensors at index ``place``.
        read_ns: How long reading took.
        preprocess_ns: How long preprocessing took, not including the wait at the gate.
        read_at_ns: When reading began, according to the clock.
        preprocess_at_ns: When preprocessing began; 0 if reading failed.
        rows: The input's tensors with dynamic axes, not yet part of a batch; None if there are none.
        origin: The image geometry or text behind the input, if requested.
    """

    input_id: str
    batch: Tensors
    place: int
    failure: InputFailure | None
    read_ns: int
    preprocess_ns: int
    read_at_ns: int = 0
    preprocess_at_ns: int = 0
    thread: int = 0
    rows: Tensors | None = None
    origin: Origin | None = None


_Slot: TypeAlias = tuple[Input, Tensors, int]
"""An input, its batch's tensors, and its index in them; writing there directly saves a copy."""


class Preparation:
    """Reads and preprocesses inputs, in the calling thread if ``threads`` is 0. Thread-safe.

    With ``keep_origins``, each prepared input keeps its origin.
    """

    def __init__(
        self,
        preprocessor: ModelPreprocessor,
        fetch: Fetch,
        gate: Gate,
        *,
        threads: int,
        clock: Clock,
        keep_origins: bool = False,
    ) -> None:
        self._preprocessor = preprocessor
        self._fetch = fetch
        self._gate = gate
        self._threads = threads
        self._clock = clock
        self._keep_origins = keep_origins
        self._closed = False
        self._spare: dict[int, deque[Tensors]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess") if threads else None

    def begin(self, inputs: Sequence[Input]) -> Preparing:
        """Starts preparing inputs; see ``begin_round``."""
        return self.begin_round([inputs])

    def begin_round(self, batches: Sequence[Sequence[Input]]) -> Preparing:
        """Starts preparing several batches as one.

        Raises InputError if one of them is empty, and SessionError if the preparation is closed.
        """
        if not all(batches):
            raise InputError("the batch is empty; it needs at least one input")
        slots = [
            (item, tensors, place)
            for batch, tensors in zip(batches, map(self._new_batch, batches), strict=True)
            for place, item in enumerate(batch)
        ]
        if not self._pool:
            done: Future[list[PreparedInput]] = Future()
            done.set_result(self._prepare_all(slots))
            return Preparing([done])
        share = -(-len(slots) // (self._threads * _SHARES))
        slices = [slots[start : start + share] for start in range(0, len(slots), share)]
        try:
            return Preparing([self._pool.submit(self._prepare_all, part) for part in slices])
        except RuntimeError as error:
            if self._closed:
                raise closed() from error
            raise

    def take_back(self, batch: Tensors, size: int) -> None:
        """Keeps the tensors of a finished batch of ``size`` inputs for reuse.

        New memory would cost a page fault for every 4 KiB, about a tenth of the preparation time.
        """
        self._spare.setdefault(size, deque()).append(batch)

    def forget_spare(self) -> None:
        """Frees the memory that was kept for reuse."""
        self._spare.clear()

    def close(self) -> None:
        """Stops the threads; calling it again does nothing."""
        self._closed = True
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def _new_batch(self, inputs: Sequence[Input]) -> Tensors:
        try:
            return self._spare[len(inputs)].pop()
        except LookupError:
            return self._preprocessor.new_batch(len(inputs))

    def _prepare_all(self, slots: Sequence[_Slot]) -> list[PreparedInput]:
        prepared = []
        for slot in slots:
            if self._closed:  # the rest is not needed, and reading it may take long
                raise closed()
            prepared.append(self._prepare(*slot))
        return prepared

    def _prepare(self, item: Input, batch: Tensors, place: int) -> PreparedInput:
        """Reads and preprocesses one input; waiting at the gate is included in neither of the two times."""
        thread = threading.get_native_id() if self._pool else 0
        read_at = self._clock()
        try:
            payload = item.read()
            if isinstance(payload, Url):
                payload = EncodedImage(self._fetch(payload.address))
        except InputError as error:
            failure = InputFailure(item.id, Stage.READ, str(error))
            read_ns = self._clock() - read_at
            return PreparedInput(item.id, batch, place, failure, read_ns, 0, read_at, 0, thread)
        read_ns = self._clock() - read_at
        with self._gate.prepare():
            started = self._clock()
            failed = rows = origin = None
            try:
                rows = self._preprocessor.prepare(payload, batch, place)
                if self._keep_origins:
                    origin = self._preprocessor.origin(payload)
            except InputError as error:
                failed = InputFailure(item.id, Stage.PREPROCESS, str(error))
            preprocess_ns = self._clock() - started
            return PreparedInput(
                item.id, batch, place, failed, read_ns, preprocess_ns, read_at, started, thread, rows, origin
            )


class Preparing:
    """Inputs in preparation. Iteration waits for each input, in order.

    It raises SessionError if the preparation was closed before it reached an input.
    """

    def __init__(self, parts: Sequence[Future[list[PreparedInput]]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[PreparedInput]:
        try:
            for part in self._parts:
                yield from part.result()
        except CancelledError as error:
            raise closed() from error

    def cancel(self) -> None:
        """Cancels the inputs whose preparation has not begun."""
        for part in self._parts:
            part.cancel()


def closed() -> SessionError:
    """Returns the error of a session that is closed."""
    return SessionError("the session is closed; open another")
