"""The interface of a load target, which accepts queries without waiting for answers, and its inputs.

A bounded number of inputs is prepared before the clock of a run starts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from inferometer.agent.inference.session import no_fetch
from inferometer.agent.inference.stages import (
    Gate,
    InputFailure,
    Preparation,
    PreparedInput,
    Stage,
    SystemDescription,
)
from inferometer.agent.preprocessing.inputs import (
    EncodedImage,
    Fetch,
    Payload,
    Pixels,
    Tensors,
    Url,
    batch_size,
    size_of,
)
from inferometer.agent.preprocessing.model_preprocessor import ModelPreprocessor
from inferometer.evaluators.datasets.arrays import MAX_BYTES, SYNTHETIC_INPUTS, payload_of, synthetic_arrays
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.statistics import random_state
from inferometer.manifests.errors import DatasetError, InputError
from inferometer.manifests.inputs import ImageParameters, InputParameters

MAX_INPUTS = 1024
"""The maximum number of inputs: more than a processor's caches hold, but few enough to prepare in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInputs:
    """Preprocessed inputs, so that under load the model only predicts.

    Attributes:
        rows: Each input as a batch of one: the model's input tensors by name. There is at least one row. Rows
            differ in shape if the model has dynamic axes.
        source: Their description in words.
        failures: The inputs that failed and are left out.
    """

    rows: tuple[Tensors, ...]
    source: str
    failures: tuple[InputFailure, ...] = ()

    def __len__(self) -> int:
        """Returns the number of inputs."""
        return len(self.rows)

    @classmethod
    def of_batch(cls, batch: Tensors, source: str) -> PreparedInputs:
        """Returns the rows of a batch as inputs; ``batch`` contains the model's tensors by name."""
        size = batch_size(batch)
        rows = ({name: array[n : n + 1] for name, array in batch.items()} for n in range(size))
        return cls(tuple(rows), source)

    @property
    def are_alike(self) -> bool:
        """Whether all rows have the same shapes."""
        first = shapes_of(self.rows[0])
        return all(shapes_of(row) == first for row in self.rows)


def shapes_of(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of tensors by name."""
    return {name: array.shape for name, array in tensors.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ReadInputs:
    """Inputs in memory, which are preprocessed under load.

    Attributes:
        payloads: The data of the inputs; at least one, and none is a ``Url``.
        source: Their description in words.
        failures: The inputs that failed and are left out.
    """

    payloads: tuple[Payload, ...]
    source: str
    failures: tuple[InputFailure, ...] = ()

    def __len__(self) -> int:
        """Returns the number of inputs."""
        return len(self.payloads)


LoadInputs: TypeAlias = PreparedInputs | ReadInputs


def prepare_inputs(
    dataset: Dataset,
    preprocessor: ModelPreprocessor,
    *,
    fetch: Fetch = no_fetch,
    max_inputs: int = MAX_INPUTS,
    max_bytes: int = MAX_BYTES,
) -> PreparedInputs:
    """Reads and preprocesses the first inputs of a dataset for a model.

    At most ``max_inputs`` are prepared, and their tensors take at most ``max_bytes``, unless one takes more.

    Raises:
        DatasetError: None of them can be read and preprocessed.
        FrameworkUnavailableError: The library that decodes images is not installed.
    """
    count = min(max_inputs, max(1, max_bytes // preprocessor.tensor_bytes))
    samples = list(itertools.islice(dataset, count))
    if not samples:
        raise DatasetError(f"dataset {dataset.identity.name} is empty; load needs at least one input")
    gate = Gate(overlap=True)  # nothing is predicted yet
    preparation = Preparation(preprocessor, fetch, gate, threads=1, clock=time.perf_counter_ns)
    try:
        prepared = list(preparation.begin(samples))
    finally:
        preparation.close()
    failures = tuple(item.failure for item in prepared if item.failure is not None)
    rows = tuple(_row(item, preprocessor) for item in prepared if item.failure is None)
    return PreparedInputs(rows, _source(dataset, len(rows), failures), failures)


def _row(item: PreparedInput, preprocessor: ModelPreprocessor) -> Tensors:
    """Returns a prepared input as a batch of one, without a copy."""
    batch = {name: array[item.place : item.place + 1] for name, array in item.batch.items()}
    return preprocessor.assembled(batch, None, [item.rows])


def read_inputs(
    dataset: Dataset, *, fetch: Fetch = no_fetch, max_inputs: int = MAX_INPUTS, max_bytes: int = MAX_BYTES
) -> ReadInputs:
    """Reads the first inputs of a dataset, fetching those that are at URLs; see ``prepare_inputs``.

    Raises:
        DatasetError: None of them can be read.
    """
    payloads: list[Payload] = []
    failures: list[InputFailure] = []
    taken_bytes = 0
    for item in itertools.islice(dataset, max_inputs):
        try:
            read = item.read()
            if isinstance(read, Url):
                read = EncodedImage(fetch(read.address))
        except InputError as error:
            failures.append(InputFailure(item.id, Stage.READ, str(error)))
            continue
        taken_bytes += size_of(read)
        if payloads and taken_bytes > max_bytes:
            break
        payloads.append(read)
    return ReadInputs(tuple(payloads), _source(dataset, len(payloads), failures), tuple(failures))


def synthetic_tensors(
    inputs: Sequence[InputParameters],
    seed: int | Sequence[int],
    *,
    count: int = SYNTHETIC_INPUTS,
    max_bytes: int = MAX_BYTES,
    size: int | None = None,
) -> PreparedInputs:
    """Returns random tensors of the shapes and dtypes that a model requires.

    Floats are uniform in [0, 1), and integers of 8 bits in their whole range. Other integers are 0 or 1: they
    may be token ids, and every vocabulary has these two. Strings are ``STRING_CHARACTERS`` lower-case
    letters. Dynamic axes have the given ``size``, or one of their own. The same seed gives the same tensors
    on every machine. ``count`` inputs are made, or fewer if they would take more than ``max_bytes``.
    """
    tensors = [tensor for each in inputs for tensor in each.tensors]
    drawn = synthetic_arrays(tensors, seed, count=count, max_bytes=max_bytes, size=size)
    source = _count(batch_size(drawn), "synthetic tensor" if len(drawn) == 1 else "synthetic input")
    sizes = {
        n for each in tensors for n, fixed in zip(each.sized(size), each.dimensions, strict=True) if not fixed
    }
    dynamic = f", dynamic axes of {' and '.join(map(str, sorted(sizes)))}" if sizes else ""
    return PreparedInputs.of_batch(drawn, f"{source}, seed {seed}{dynamic}")


def synthetic_payloads(
    inputs: Sequence[InputParameters],
    seed: int,
    *,
    count: int = SYNTHETIC_INPUTS,
    max_bytes: int = MAX_BYTES,
    size: int | None = None,
) -> ReadInputs:
    """Returns random inputs that are not preprocessed.

    For a model whose input is one image, they are decoded images of its height and width, so that the latency
    includes no decoding, and hardly any resizing; other inputs are those of ``synthetic_tensors``.
    """
    parameters = inputs[0]
    if len(inputs) > 1 or not isinstance(parameters, ImageParameters):
        prepared = synthetic_tensors(inputs, seed, count=count, max_bytes=max_bytes, size=size)
        return ReadInputs(tuple(map(payload_of, prepared.rows)), prepared.source)
    shape = (parameters.height, parameters.width, 3)
    count = min(count, max(1, max_bytes // (shape[0] * shape[1] * shape[2])))
    random = random_state(seed)
    images = [Pixels(random.randint(0, 256, shape).astype(np.uint8)) for _ in range(count)]
    return ReadInputs(tuple(images), f"{_count(count, 'synthetic image')}, decoded, seed {seed}")


def _source(dataset: Dataset, count: int, failures: Sequence[InputFailure]) -> str:
    """Returns a description of the inputs in words; raises DatasetError if there are none."""
    name = dataset.identity.name
    if count:
        text = f"the first {count + len(failures)} of {len(dataset)} inputs of {name}"
        return f"{text}, {len(failures)} left out" if failures else text
    if not failures:
        raise DatasetError(f"dataset {name} is empty; load needs at least one input")
    first = f"input {failures[0].input_id}: "
    raise DatasetError(
        f"dataset {name}: none of the first {len(failures)} inputs can be used; "
        f"{first}{failures[0].message.removeprefix(first)}"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Answers(Protocol):
    """Receives the outcomes of queries. Thread-safe; times are on the clock of the run, in nanoseconds."""

    def answered(self, query: int, done_ns: int, **times: int) -> None:
        """Receives a right answer.

        Args:
            query: The number of the query.
            done_ns: When the answer was complete.
            times: What is known of ``queue_ns``, ``batch_ns``, ``predict_ns`` and ``batch_size``; see
                ``queries.Queries``.
        """
        ...

    def failed(self, query: int, done_ns: int, reason: str) -> None:
        """Receives a failure, with its reason in one line."""
        ...


@runtime_checkable
class CheckedAnswers(Answers, Protocol):
    """Receives answers whose content is checked only after the run, and then the results of the checks."""

    def confirmed(self, query: int, **times: int) -> None:
        """Receives the times of an answer that proved right; see ``answered``."""
        ...

    def refuted(self, query: int, reason: str) -> None:
        """Receives the one-line reason why an answer is invalid, so that its query has failed."""
        ...


class QueryTarget(Protocol):
    """The interface of a target that a run requires."""

    def begin(self, answers: Answers) -> None:
        """Begins a run, whose outcomes go to ``answers``."""
        ...

    def submit(self, query: int) -> None:
        """Accepts a query, and returns at once.

        Only one thread at a time may call it. A query that cannot be accepted, for example because a queue is
        full, fails: this is reported like any other failure, and nothing is raised.
        """
        ...

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for ``timeout_s``; later outcomes are dropped."""
        ...


class LoadTarget(QueryTarget, Protocol):
    """One open model under load, with its inputs: query n predicts input n modulo their number."""

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether the model runs in this process; closing then waits for a prediction in progress."""
        ...

    def reconnect(self) -> None:
        """Reconnects for the next runs, if there is a connection. Must be called between runs."""
        ...

    def close(self) -> None:
        """Ends the queries in flight; the model stays open. Calling it again does nothing."""
        ...


@runtime_checkable
class LoadableSystem(Protocol):
    """A system that provides its own load target, such as a remote agent."""

    def load_target(self, inputs: LoadInputs) -> LoadTarget:
        """Returns a target that puts load on the system; the caller closes it."""
        ...
