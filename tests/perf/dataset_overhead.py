"""Overhead of ``predict dataset`` over a bare framework loop with the same batches and threads."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.files import resolve_artifacts
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session, select_model
from inferometer.agent.preprocessing.inputs import Tensor
from inferometer.agent.preprocessing.preprocessor import ImagePreprocessor
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.manifests.catalog import Catalog
from tests.perf.bare_loops import BARE, Predict, time_batches, time_images
from tests.perf.ratios import Row, divided, interleaved

MODEL = "DigitsCNN"
DATASET = "digits_validation"
REPEATS = {1: 2, 16: 8}
"""Passes over the dataset per round, by batch size. Inputs that do not fill a batch are left out."""


class RepeatedDataset(Dataset):
    """Samples in memory."""

    def __init__(self, identity: DatasetIdentity, samples: Sequence[Sample]) -> None:
        self._identity = identity
        self._samples = samples

    @property
    def identity(self) -> DatasetIdentity:
        return self._identity

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """The times of one run.

    Attributes:
        whole_ns: The time from the start of the first batch to the end of the last.
        predict_ns: int64; the time of each batch, if it was measured.
    """

    whole_ns: int
    predict_ns: NDArray[np.int64]


def measure(rounds: int, threads: int) -> tuple[list[Row], list[Row]]:
    """Measures every installed framework, with batches of 1 and of 16.

    Returns:
        The overhead over a bare loop, and the effect of overlapping preparation and prediction.
    """
    catalog, registry = Catalog(), Registry()
    added: list[Row] = []
    overlap: list[Row] = []
    for framework in (entry.name for entry in registry.entries if entry.installed_version):
        manifest = select_model(catalog, registry, MODEL, framework=framework)
        options = (SessionOptions(threads=threads, overlap=overlapped) for overlapped in (False, True))
        with ExitStack() as stack:
            sessions = [stack.enter_context(open_session(manifest, each, registry)) for each in options]
            bare = BARE[framework](resolve_artifacts(manifest), threads, tuple(REPEATS))
            preprocessor = ImagePreprocessor(manifest.inputs[0].parameters)
            for batch_size in REPEATS:
                images = _images(catalog, batch_size)
                taken = interleaved(rounds, _runs(sessions, bare, preprocessor, images, batch_size))
                name = f"{framework}, batches of {batch_size}"
                added += _added(name, taken, len(images) // batch_size)
                overlap += _overlap(name, taken)
    return added, overlap


def _images(catalog: Catalog, batch_size: int) -> RepeatedDataset:
    """Returns the repeated dataset, encoded, in memory, and in full batches only."""
    with closing(open_dataset(catalog.find_dataset(DATASET))) as dataset:
        once = [Sample(sample.id, sample.read(), sample.label) for sample in dataset]
        samples = (once * REPEATS[batch_size])[: len(once) * REPEATS[batch_size] // batch_size * batch_size]
        return RepeatedDataset(dataset.identity, samples)


def _runs(
    sessions: Sequence[Session],
    bare: Predict,
    preprocessor: ImagePreprocessor,
    images: RepeatedDataset,
    batch_size: int,
) -> Mapping[str, Callable[[], Taken]]:
    """Returns the runs to compare; the second of the ``sessions`` overlaps."""
    encoded = [sample.read() for sample in images]
    arrays = [preprocessor(payload) for payload in encoded]
    starts = range(0, len(images), batch_size)
    batches = [np.stack(arrays[start : start + batch_size]) for start in starts]
    payloads = [encoded[start : start + batch_size] for start in starts]
    tensors = RepeatedDataset(
        images.identity,
        [Sample(s.id, Tensor(array), s.label) for s, array in zip(images, arrays, strict=True)],
    )
    plain, overlapped = sessions
    return {
        "bare": lambda: Taken(time_batches(bare, batches), np.empty(0, np.int64)),
        "bare from images": lambda: Taken(*time_images(bare, preprocessor, payloads)),
        "tensors": lambda: _evaluate(plain, tensors, batch_size),
        "images": lambda: _evaluate(plain, images, batch_size),
        "overlapped": lambda: _evaluate(overlapped, images, batch_size),
    }


def _evaluate(session: Session, dataset: Dataset, batch_size: int) -> Taken:
    """Runs the evaluation of ``predict dataset`` and takes the times that it records."""
    options = BatchOptions(batch_size=batch_size, partition_list_size=batch_size)
    evaluation = DatasetRun(session, dataset, options).run()
    assert not evaluation.measurement.failures
    return Taken(evaluation.measurement.elapsed_ns, evaluation.measurement.times.predict_ns)


def _added(name: str, taken: Mapping[str, Sequence[Taken]], batches: int) -> list[Row]:
    """Returns the overhead over a bare loop."""
    whole = {run: [each.whole_ns for each in runs] for run, runs in taken.items()}
    predict = {run: [int(each.predict_ns.sum()) for each in runs] for run, runs in taken.items()}
    rows = (
        ("predict times / bare loop", predict["images"], whole["bare"]),
        ("predict times / those of a bare loop that decodes", predict["images"], predict["bare from images"]),
        ("whole time from tensors / bare loop", whole["tensors"], whole["bare"]),
        ("whole time / bare loop that decodes", whole["images"], whole["bare from images"]),
    )
    return [
        Row(
            f"{name}: {what}",
            divided(over, under),
            detail=f"{_ms(over, batches)} / {_ms(under, batches)} ms per batch",
        )
        for what, over, under in rows
    ]


def _overlap(name: str, taken: Mapping[str, Sequence[Taken]]) -> list[Row]:
    """Returns the ratios of preparing inputs while the model predicts to preparing them before."""
    compared: list[tuple[str, Sequence[float], Sequence[float]]] = []
    for percentile in (50, 99):
        over, under = (
            [float(np.percentile(each.predict_ns, percentile)) for each in taken[run]]
            for run in ("overlapped", "images")
        )
        compared.append((f"p{percentile} of predict", over, under))
    whole, whole_plain = ([each.whole_ns for each in taken[run]] for run in ("overlapped", "images"))
    compared.append(("whole time", whole, whole_plain))
    return [
        Row(f"{name}: {what}", divided(over, under), detail=f"{_ms(over)} / {_ms(under)} ms")
        for what, over, under in compared
    ]


def _ms(times_ns: Sequence[float], count: int = 1) -> str:
    """Formats the median in milliseconds, divided by ``count``."""
    return f"{statistics.median(times_ns) / count / 1e6:.3f}"
