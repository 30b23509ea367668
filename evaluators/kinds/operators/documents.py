"""The documents of benchmarks of operators: one for each row, with its raw times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from inferometer.agent.operators.operator import ParameterValue, Shape
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import (
    Cache,
    Correctness,
    MachinePeak,
    Mode,
    OperatorMeasurement,
    OperatorOptions,
    OperatorRow,
    RowStatus,
    Stop,
)
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored, joined
from inferometer.evaluators.store.values import checked, fields_of, restored, storable

_APART = {"shapes", "parameters", "times_ns", "correctness"}
_PLAIN = tuple(field.name for field in fields(OperatorRow) if field.name not in _APART)


class OperatorDocuments:
    """Storage of ``OperatorMeasurement`` in documents; see ``MeasurementDocuments``."""

    def write(
        self, evaluation: Evaluation[OperatorMeasurement], save_id: str
    ) -> tuple[Document, Mapping[str, Part]]:
        """Returns the documents of the measurement."""
        measured = evaluation.measurement
        document = {
            "options": fields_of(measured.options),
            "peak": None if measured.peak is None else fields_of(measured.peak),
            "row_count": len(measured.rows),
        }
        return document, {"operator_row": Part(len(measured.rows), map(row_document, measured.rows))}

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> OperatorMeasurement:
        """Returns the measurement."""
        stored = head["measurement"]
        rows = tuple(map(row_from_document, parts["operator_row"]))
        if len(rows) != stored["row_count"]:
            raise ValueError(f"{len(rows)} of its {stored['row_count']} rows are there")
        options = restored(stored["options"])
        return OperatorMeasurement(
            rows=rows,
            options=checked(OperatorOptions(**options | {"cache": Cache(options["cache"])})),
            peak=None if stored["peak"] is None else checked(MachinePeak(**restored(stored["peak"]))),
            elapsed_ns=int(head["elapsed_ns"]),
        )


def row_document(row: OperatorRow) -> Document:
    """Returns a row as every database, and JSON, keeps it."""
    return {
        **{name: storable(getattr(row, name)) for name in _PLAIN},
        "shapes": [{"input": storable(name), "shape": list(shape)} for name, shape in row.shapes.items()],
        "parameters": storable(row.parameters),
        "correctness": fields_of(row.correctness),
        "times_ns": row.times_ns.tolist(),
    }


def row_from_document(document: Stored) -> OperatorRow:
    """Returns the row of ``row_document``.

    Raises:
        KeyError, TypeError, ValueError: The document is damaged.
    """
    plain = {name: restored(document[name]) for name in _PLAIN}
    return checked(
        OperatorRow(
            **plain
            | {
                "mode": Mode(plain["mode"]),
                "status": RowStatus(plain["status"]),
                "stop": None if plain["stop"] is None else Stop(plain["stop"]),
                "shapes": {restored(each["input"]): _shape(each["shape"]) for each in document["shapes"]},
                "parameters": {k: _parameter(v) for k, v in restored(document["parameters"]).items()},
                "correctness": checked(Correctness(**restored(document["correctness"]))),
                "times_ns": joined([document["times_ns"]]),
            }
        )
    )


def _shape(sizes: Sequence[int]) -> Shape:
    return tuple(int(size) for size in sizes)


def _parameter(value: ParameterValue | list[int]) -> ParameterValue:
    return _shape(value) if isinstance(value, list) else value
