"""The documents of each kind of measurement, by the kind's name.

A kind has one module of documents and one line in ``KINDS``. A measurement is kept as a part of the
evaluation's own document, for what is small, and as documents in collections, for raw values.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.measurements.measurement import Measurement

Document: TypeAlias = dict[str, Any]
Stored: TypeAlias = Mapping[str, Any]
"""A document as it was read."""


@dataclass(frozen=True, slots=True)
class Part:
    """The documents of one collection that belong to an evaluation, made as they are read.

    Attributes:
        count: How many there are.
        documents: Their content, without the id and the owner.
    """

    count: int
    documents: Iterable[Document]


class MeasurementDocuments(Protocol):
    """Writes one kind of measurement as documents and reads it back."""

    def write(self, evaluation: Evaluation[Any], save_id: str) -> tuple[Document, Mapping[str, Part]]:
        """Returns what the evaluation's own document holds, and the parts by collection.

        Args:
            evaluation: What is written.
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


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind of measurement is kept.

    Attributes:
        documents: The ``MeasurementDocuments``, as ``module:class``.
        collections: The collections that hold its parts.
        on_demand: Those of them that are read on demand only.
    """

    documents: str
    collections: tuple[str, ...]
    on_demand: tuple[str, ...] = ()


_HERE = "inferometer.evaluators.store."
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "batches": Kind(
            f"{_HERE}batch_documents:BatchDocuments",
            ("performance", "model_accuracy", "input_failure", "input_prediction", "task_result"),
            on_demand=("input_prediction",),
        ),
        "load": Kind(f"{_HERE}load_documents:LoadDocuments", ("load_query",)),
        "ingestion": Kind(
            f"{_HERE}ingestion_documents:IngestionDocuments", ("loaded_batch", "input_failure")
        ),
        "operators": Kind(f"{_HERE}operator_documents:OperatorDocuments", ("operator_row",)),
        "rate_search": Kind(f"{_HERE}load_documents:RateSearchDocuments", ("load_query",)),
        "training": Kind(
            f"{_HERE}training_documents:TrainingDocuments",
            ("training_step", "training_part", "training_loss", "model_accuracy", "input_failure"),
        ),
    }
)
SPANS = "span"
"""The collection of the traces, which evaluations of every kind have."""
SAMPLE_IDS = "dataset_sample"
"""The collection of the ids of samples, of evaluations of any kind over some samples of a dataset."""
PART_COLLECTIONS = (
    SPANS,
    SAMPLE_IDS,
    *dict.fromkeys(name for kind in KINDS.values() for name in kind.collections),
)


def documents_of(kind: str) -> MeasurementDocuments:
    """Returns what writes and reads a kind of measurement.

    Raises:
        KeyError: There is no such kind.
    """
    module, _, name = KINDS[kind].documents.partition(":")
    documents: MeasurementDocuments = getattr(importlib.import_module(module), name)()
    return documents


def joined(parts: Iterable[Sequence[int]]) -> NDArray[np.int64]:
    """Returns a column that was cut into pieces."""
    return np.concatenate([np.empty(0, np.int64), *(np.array(part, np.int64) for part in parts)])
