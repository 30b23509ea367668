"""The documents of a run of a loader alone: the times of its batches, and its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.documents import failure_documents, failures_from_documents
from inferometer.evaluators.kinds.data import DataOptions
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement, LoadTimes
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored, joined
from inferometer.evaluators.store.values import checked, fields_of, restored

BATCHES_PER_DOCUMENT = 20_000
_TIMES = tuple(field.name for field in fields(LoadTimes))
_NUMBERS = ("batch_size", "num_warmup_batches", "epochs")


class IngestionDocuments:
    """Storage of ``IngestionMeasurement`` in documents; see ``MeasurementDocuments``."""

    def write(
        self, evaluation: Evaluation[IngestionMeasurement], save_id: str
    ) -> tuple[Document, Mapping[str, Part]]:
        """Returns the documents of the measurement."""
        measured = evaluation.measurement
        count = len(measured.times.whole_ns)
        pieces = [slice(at, at + BATCHES_PER_DOCUMENT) for at in range(0, count, BATCHES_PER_DOCUMENT)]
        times = [{n: getattr(measured.times, n)[piece].tolist() for n in _TIMES} for piece in pieces]
        failures = failure_documents(measured.failures)
        document = {
            **{name: getattr(measured, name) for name in _NUMBERS},
            "data": fields_of(measured.data),
            "batch_count": count,
            "failure_count": len(measured.failures),
        }
        return document, {
            "loaded_batch": Part(len(times), times),
            "input_failure": Part(len(failures), failures),
        }

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> IngestionMeasurement:
        """Returns the measurement."""
        stored = head["measurement"]
        columns = {name: joined(each[name] for each in parts["loaded_batch"]) for name in _TIMES}
        if {len(column) for column in columns.values()} != {int(stored["batch_count"])}:
            raise ValueError(f"the times of its {stored['batch_count']} batches are not all there")
        failures = failures_from_documents(parts["input_failure"])
        if len(failures) != stored["failure_count"]:
            raise ValueError(f"{len(failures)} of its {stored['failure_count']} failures are there")
        return IngestionMeasurement(
            **{name: int(stored[name]) for name in _NUMBERS},
            data=checked(DataOptions(**restored(stored["data"]))),
            times=LoadTimes(**columns),
            elapsed_ns=int(head["elapsed_ns"]),
            failures=failures,
        )
