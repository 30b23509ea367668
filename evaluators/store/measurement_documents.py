"""The interface of the documents of a kind of measurement.

A measurement is kept as a part of the evaluation's own document, for what is small, and as documents in
collections, for raw values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.measurement import Measurement

Document: TypeAlias = dict[str, Any]
Stored: TypeAlias = Mapping[str, Any]
"""A document as it was read."""


@dataclass(frozen=True, slots=True)
class Part:
    """The documents of one collection that belong to an evaluation, generated lazily.

    Attributes:
        count: The number of documents.
        documents: The content of the documents, without the id and the owner.
    """

    count: int
    documents: Iterable[Document]


class MeasurementDocuments(Protocol):
    """Writes one kind of measurement as documents and reads it back."""

    def write(self, evaluation: Evaluation[Any], save_id: str) -> tuple[Document, Mapping[str, Part]]:
        """Returns the measurement in the evaluation's own document, and the parts by collection.

        Args:
            evaluation: The evaluation to write.
            save_id: The attempt to save; the first part of a collection has the id ``save_id/0``.
        """
        ...

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> Measurement:
        """Returns the measurement.

        Args:
            head: The evaluation's document; ``head["measurement"]`` is what ``write`` returned.
            parts: The documents that were read, by collection and in order; those on demand may be missing.

        Raises:
            KeyError, TypeError, ValueError: The documents are damaged.
        """
        ...


SPANS = "span"
"""The collection of the traces, which evaluations of every kind have."""
SAMPLE_IDS = "dataset_sample"
"""The collection of the ids of samples, of evaluations of any kind over some samples of a dataset."""


def joined(parts: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    """Returns a column that was split into pieces."""
    return np.concatenate([np.empty(0, np.int64), *(np.array(part, np.int64) for part in parts)])
