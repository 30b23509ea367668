"""Reading all of a dataset, to say what it holds and what is damaged."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from inferometer.agent.preprocessing.inputs import EncodedImage, Payload
from inferometer.evaluators.conversion.convert import size_of
from inferometer.evaluators.conversion.encoding import Encoding
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.manifests.errors import InputError, one_line

_AT_ONCE = 256
_KEPT_FAILURES = 20


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """What a dataset holds.

    Attributes:
        backend: The name of its format.
        samples: The number of its samples, with the failed ones.
        labelled: Those with a class.
        classes: The number of different classes among them.
        payload_bytes: The bytes of the data of those that can be read.
        kinds: How many there are of each kind of data, such as ``EncodedImage``.
        failed: Those that cannot be read or decoded.
        failures: What failed: the first ones.
    """

    backend: str
    samples: int
    labelled: int
    classes: int
    payload_bytes: int
    kinds: dict[str, int]
    failed: int
    failures: tuple[str, ...]


def check_dataset(
    dataset: Dataset, on_progress: Callable[[int, int], None] = lambda *_: None
) -> DatasetCheck:
    """Reads and decodes every sample.

    Args:
        dataset: The dataset.
        on_progress: Called with the samples that are done, and all.
    """
    classes: set[str] = set()
    kinds: Counter[str] = Counter()
    labelled = payload_bytes = failed = done = 0
    failures: list[str] = []
    samples = iter(dataset)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        while part := list(islice(samples, _AT_ONCE)):
            for sample, result in zip(part, threads.map(_read, part), strict=True):
                done += 1
                if sample.label is not None:
                    labelled += 1
                    classes.add(sample.label)
                if isinstance(result, InputError):
                    failed += 1
                    if len(failures) < _KEPT_FAILURES:
                        failures.append(f"{sample.id}: {one_line(result)}")
                else:
                    kind, size = result
                    kinds[kind] += 1
                    payload_bytes += size
            on_progress(done, len(dataset))
    return DatasetCheck(
        dataset.backend,
        len(dataset),
        labelled,
        len(classes),
        payload_bytes,
        dict(kinds),
        failed,
        tuple(failures),
    )


def _read(sample: Sample) -> tuple[str, int] | InputError:
    """The kind and size of a sample's data, which is decoded; or why that fails."""
    try:
        payload: Payload = sample.read()
        if isinstance(payload, EncodedImage):
            Encoding().pixels(payload)
        return type(payload).__name__, size_of(payload)
    except InputError as error:
        return error
