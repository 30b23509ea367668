"""The inputs of a run under load: a bounded number, got ready before its clock starts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.gate import Gate
from agent.input_types import preprocessor_of
from agent.inputs import EncodedImage, Input, Payload, Pixels, Tensor, Url
from agent.preparation import Fetch, Preparation
from agent.preprocessor import tensor_bytes
from agent.results import InputFailure, Stage
from agent.session import no_fetch
from evaluators.datasets.base import Dataset
from manifests.errors import DatasetError, InputError
from manifests.inputs import ImageParameters, InputParameters

MAX_INPUTS = 1024
"""The most inputs of a run: more than the caches of a processor hold, and got ready within seconds."""
MAX_BYTES = 64 * 1024 * 1024
"""The memory that they may take; one is always taken."""
SYNTHETIC_INPUTS = 64
_READ_TOGETHER = 4  # inputs for each thread that reads, before their size is known


@dataclass(frozen=True, slots=True, eq=False)
class PreparedInputs:
    """Inputs that are preprocessed: under load the model only predicts.

    Attributes:
        tensors: inputs × the dimensions of the model's input, of its dtype; at least one.
        source: What they are, in words.
        failures: The inputs that were left out.
    """

    tensors: NDArray[Any]
    source: str
    failures: tuple[InputFailure, ...] = ()

    def __len__(self) -> int:
        """The number of inputs."""
        return len(self.tensors)


@dataclass(frozen=True, slots=True, eq=False)
class ReadInputs:
    """Inputs that are read, and in memory: under load they are preprocessed, too.

    Attributes:
        payloads: Their data; at least one, and no ``Url``.
        source: What they are, in words.
        failures: The inputs that were left out.
    """

    payloads: tuple[Payload, ...]
    source: str
    failures: tuple[InputFailure, ...] = ()

    def __len__(self) -> int:
        """The number of inputs."""
        return len(self.payloads)


LoadInputs: TypeAlias = PreparedInputs | ReadInputs


def prepare_inputs(
    dataset: Dataset,
    parameters: InputParameters,
    *,
    fetch: Fetch = no_fetch,
    threads: int = 1,
    max_inputs: int = MAX_INPUTS,
    max_bytes: int = MAX_BYTES,
) -> PreparedInputs:
    """Reads and preprocesses the first inputs of a dataset.

    Args:
        dataset: Gives the inputs.
        parameters: What the model takes.
        fetch: Gets what a URL names.
        threads: Threads that read and preprocess.
        max_inputs: The most inputs.
        max_bytes: The memory that their tensors may take, unless one takes more.

    Raises:
        DatasetError: None of them can be read and preprocessed.
        FrameworkUnavailableError: The library that decodes images is not installed.
    """
    count = min(max_inputs, max(1, max_bytes // tensor_bytes(parameters)))
    samples = list(itertools.islice(dataset, count))
    if not samples:
        raise DatasetError(f"dataset {dataset.identity.name} is empty; load needs at least one input")
    gate = Gate(overlap=True)  # nothing is predicted yet
    preparation = Preparation(
        preprocessor_of(parameters), fetch, gate, threads=threads, clock=time.perf_counter_ns
    )
    try:
        prepared = list(preparation.begin(samples))
    finally:
        preparation.close()
    failures = tuple(item.failure for item in prepared if item.failure is not None)
    good = [item.place for item in prepared if item.failure is None]
    _require_some(len(good), failures, dataset)
    tensors = prepared[0].batch
    return PreparedInputs(
        tensors[good] if failures else tensors, _source(dataset, len(good), failures), failures
    )


def read_inputs(
    dataset: Dataset,
    *,
    fetch: Fetch = no_fetch,
    threads: int = 1,
    max_inputs: int = MAX_INPUTS,
    max_bytes: int = MAX_BYTES,
) -> ReadInputs:
    """Reads the first inputs of a dataset, and fetches those that are at URLs.

    Args:
        dataset: Gives the inputs.
        fetch: Gets what a URL names.
        threads: Threads that read.
        max_inputs: The most inputs.
        max_bytes: The memory that they may take, unless one takes more.

    Raises:
        DatasetError: None of them can be read.
    """
    payloads: list[Payload] = []
    failures: list[InputFailure] = []
    taken_bytes = 0
    for read in _read_all(itertools.islice(dataset, max_inputs), fetch, max(1, threads)):
        if isinstance(read, InputFailure):
            failures.append(read)
            continue
        taken_bytes += _size_bytes(read)
        if payloads and taken_bytes > max_bytes:
            break
        payloads.append(read)
    _require_some(len(payloads), failures, dataset)
    return ReadInputs(tuple(payloads), _source(dataset, len(payloads), failures), tuple(failures))


def synthetic_tensors(
    parameters: InputParameters, seed: int, *, count: int = SYNTHETIC_INPUTS, max_bytes: int = MAX_BYTES
) -> PreparedInputs:
    """Returns random tensors of the shape and dtype that a model takes.

    Floats are uniform in [0, 1) and uint8 in 0…255. Other integers are 0 or 1: they may be numbers of
    tokens, and every vocabulary has these two.

    Args:
        parameters: What the model takes.
        seed: What they are drawn from; the same one gives the same tensors everywhere.
        count: How many there are.
        max_bytes: The memory that they may take, unless one takes more.
    """
    count = min(count, max(1, max_bytes // tensor_bytes(parameters)))
    random = _random(seed)
    dtype = np.dtype(parameters.element_type.value)
    shape = (count, *parameters.dimensions)
    tensors = np.empty(shape, dtype)
    for tensor in tensors:  # one by one: float64 of all of them would take twice the memory
        if dtype.kind == "f":
            tensor[...] = np.minimum(random.random_sample(tensor.shape), _BELOW_ONE)
        else:
            tensor[...] = random.randint(0, 256 if dtype == np.uint8 else 2, tensor.shape)
    return PreparedInputs(tensors, f"{_count(count, 'synthetic tensor')}, seed {seed}")


def synthetic_payloads(
    parameters: InputParameters, seed: int, *, count: int = SYNTHETIC_INPUTS, max_bytes: int = MAX_BYTES
) -> ReadInputs:
    """Returns random inputs that are still to be preprocessed.

    For a model that takes images they are decoded images of the model's own height and width, so that no
    decoding is in the latency, and hardly any resizing; others are as those of ``synthetic_tensors``.

    Args:
        parameters: What the model takes.
        seed: What they are drawn from.
        count: How many there are.
        max_bytes: The memory that they may take, unless one takes more.
    """
    if not isinstance(parameters, ImageParameters):
        prepared = synthetic_tensors(parameters, seed, count=count, max_bytes=max_bytes)
        return ReadInputs(tuple(map(Tensor, prepared.tensors)), prepared.source)
    shape = (parameters.height, parameters.width, 3)
    count = min(count, max(1, max_bytes // (shape[0] * shape[1] * shape[2])))
    random = _random(seed)
    images = [Pixels(random.randint(0, 256, shape).astype(np.uint8)) for _ in range(count)]
    return ReadInputs(tuple(images), f"{_count(count, 'synthetic image')}, decoded, seed {seed}")


_BELOW_ONE = 1 - 2.0**-11
"""The largest number below 1 that float16 holds, so that no element type rounds up to 1."""


def _random(seed: int) -> np.random.RandomState:
    # its methods are frozen: another version of numpy draws the same
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def _read_all(samples: Iterator[Input], fetch: Fetch, threads: int) -> Iterator[Payload | InputFailure]:
    """The data of inputs in order, read by threads, a few ahead."""

    def read(item: Input) -> Payload | InputFailure:
        try:
            payload = item.read()
            return EncodedImage(fetch(payload.address)) if isinstance(payload, Url) else payload
        except InputError as error:
            return InputFailure(item.id, Stage.READ, str(error))

    with ThreadPoolExecutor(threads, thread_name_prefix="read-load-inputs") as pool:
        while together := list(itertools.islice(samples, threads * _READ_TOGETHER)):
            yield from pool.map(read, together)


def _size_bytes(payload: Payload) -> int:
    match payload:
        case EncodedImage():
            return len(payload.content)
        case Url():
            return len(payload.address)
    return payload.array.nbytes


def _require_some(count: int, failures: Sequence[InputFailure], dataset: Dataset) -> None:
    if count:
        return
    if not failures:
        raise DatasetError(f"dataset {dataset.identity.name} is empty; load needs at least one input")
    name = f"input {failures[0].input_id}: "
    raise DatasetError(
        f"dataset {dataset.identity.name}: none of the first {len(failures)} inputs can be used; "
        f"{name}{failures[0].message.removeprefix(name)}"
    )


def _source(dataset: Dataset, count: int, failures: Iterable[InputFailure]) -> str:
    """What the inputs are, in words."""
    left_out = len(list(failures))
    text = f"the first {count + left_out} of {len(dataset)} inputs of {dataset.identity.name}"
    return f"{text}, {left_out} left out" if left_out else text


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
