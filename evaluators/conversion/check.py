"""Reading a whole dataset, to report its content and its damage."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Text
from inferometer.evaluators.conversion.convert import size_of
from inferometer.evaluators.conversion.encoding import DIGEST_BITS, Encoding, added, digest_of, suffix_of
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.manifests.errors import InputError, one_line

_AT_ONCE = 256
_KEPT_FAILURES = 20
_DIGESTED = EncodedImage | Pixels | Tensor | Text
_WITH_CHECKSUM = {"zip", "npz"}
"""The formats that keep a checksum of each entry, which reading compares."""


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """The content of a dataset.

    Attributes:
        backend: The name of its format.
        samples: The number of its samples, with the failed ones.
        labelled: The number of samples with a class.
        classes: The number of different classes among them.
        payload_bytes: The size of the data of all readable samples, in bytes.
        kinds: How many there are of each kind of data, such as ``EncodedImage``.
        unprotected: Those that can be read and have no checksum, neither of the format nor, as PNG, of their
            own: damage of them that still decodes is not noticed.
        checksum: The sum of their digests, as a conversion has it; None where a sample failed or has none.
        failed: The number of samples that cannot be read or decoded.
        failures: The first failures.
    """

    backend: str
    samples: int
    labelled: int
    classes: int
    payload_bytes: int
    kinds: dict[str, int]
    unprotected: int
    checksum: str | None
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
    labelled = payload_bytes = unprotected = failed = done = checksum = digested = 0
    failures: list[str] = []
    samples = iter(dataset)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        while part := list(islice(samples, _AT_ONCE)):
            results = threads.map(_read, range(done, done + len(part)), part)
            for sample, result in zip(part, results, strict=True):
                done += 1
                if sample.label is not None:
                    labelled += 1
                    classes.add(sample.label)
                if isinstance(result, InputError):
                    failed += 1
                    if len(failures) < _KEPT_FAILURES:
                        failures.append(f"{sample.id}: {one_line(result)}")
                else:
                    kinds[result.kind] += 1
                    payload_bytes += result.size
                    unprotected += not (dataset.backend in _WITH_CHECKSUM or result.is_png)
                    checksum = added(checksum, result.digest or 0)
                    digested += result.digest is not None
            on_progress(done, len(dataset))
    return DatasetCheck(
        dataset.backend,
        len(dataset),
        labelled,
        len(classes),
        payload_bytes,
        dict(kinds),
        unprotected,
        f"{checksum:0{DIGEST_BITS // 4}x}" if digested == done else None,
        failed,
        tuple(failures),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """The data kept of a sample; a PNG has checksums, which its decoder compares."""

    kind: str
    size: int
    is_png: bool
    digest: int | None


def _read(index: int, sample: Sample) -> _Read | InputError:
    """Reads and decodes a sample; or returns why that fails."""
    try:
        payload: Payload = sample.read()
        is_png = False
        if isinstance(payload, EncodedImage):
            Encoding().pixels(payload)
            is_png = suffix_of(payload.content) == ".png"
        digest = digest_of(index, sample.label, payload) if isinstance(payload, _DIGESTED) else None
        return _Read(type(payload).__name__, size_of(payload), is_png, digest)
    except InputError as error:
        return error
