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
from inferometer.manifests.errors import StoreError

_MOST_VALUES = 1_000_000
"""A document of MongoDB holds 16 MB."""
_KEPT = "biuf"
"""The kinds of dtypes: booleans, integers and floating point."""


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
            StoreError: An array cannot be kept so.
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
    if value.ndim != 1 or value.size > _MOST_VALUES or value.dtype.kind not in _KEPT:
        raise StoreError(
            f"{name} is an array of {value.dtype} and shape {value.shape}; plain documents keep numbers of "
            f"one axis, at most {_MOST_VALUES:,}; others need a Kind.documents of their own"
        )
    return {"dtype": str(value.dtype), "values": storable(value.tolist())}


def _read(stored: Any) -> Any:
    if isinstance(stored, Mapping) and set(stored) == {"dtype", "values"}:
        dtype = np.dtype(stored["dtype"])
        if dtype.kind not in _KEPT:
            raise ValueError(f"an array of {dtype}")
        return np.array(restored(stored["values"]), dtype)
    return restored(stored)
