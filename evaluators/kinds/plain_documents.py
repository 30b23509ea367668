"""The documents of a measurement whose fields are plain: numbers, texts, sequences of them, and arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.measurement import Measurement
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored
from inferometer.evaluators.store.values import checked, restored, storable

_MOST_VALUES = 1_000_000
"""A document of MongoDB holds 16 MB."""


class PlainDocuments:
    """Keeps all of a measurement in the evaluation's own document; see ``MeasurementDocuments``.

    Args:
        kind: The measurement: a dataclass with ``elapsed_ns``. Arrays have one axis.
    """

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._names = [each.name for each in fields(kind) if each.name != "elapsed_ns"]

    def write(self, evaluation: Evaluation[Any], save_id: str) -> tuple[Document, Mapping[str, Part]]:
        """Returns the document of the measurement.

        Raises:
            ValueError: An array has too many values for a document.
        """
        return {name: _written(name, getattr(evaluation.measurement, name)) for name in self._names}, {}

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> Measurement:
        """Returns the measurement."""
        stored = head["measurement"]
        values = {name: _read(stored[name]) for name in self._names if name in stored}
        measurement: Measurement = checked(self._kind(**values, elapsed_ns=int(head["elapsed_ns"])))
        return measurement


def _written(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return storable(value)
    if value.ndim != 1 or value.size > _MOST_VALUES:
        raise ValueError(f"{name} is no array of one axis with at most {_MOST_VALUES:,} values")
    return {"dtype": str(value.dtype), "values": value.tolist()}


def _read(stored: Any) -> Any:
    if isinstance(stored, Mapping) and set(stored) == {"dtype", "values"}:
        return np.array(stored["values"], np.dtype(stored["dtype"]))
    return restored(stored)
