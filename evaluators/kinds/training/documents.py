"""The documents of a training run: the times of its steps, its losses, accuracy and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.documents import (
    accuracy_document,
    accuracy_from_documents,
    failure_documents,
    failures_from_documents,
)
from inferometer.evaluators.kinds.data import DataOptions
from inferometer.evaluators.kinds.training.measurement import StepTimes, TrainingMeasurement, TrainingOptions
from inferometer.evaluators.store.measurement_documents import Document, Part, Stored, joined
from inferometer.evaluators.store.values import checked, fields_of, restored, storable

STEPS_PER_DOCUMENT = 20_000
_STEPS = ("samples", "wait_ns", "copy_ns", "compute_ns", "whole_ns")
_PARTS = ("forward_ns", "backward_ns", "communicate_ns", "update_ns")


class TrainingDocuments:
    """Storage of ``TrainingMeasurement`` in documents; see ``MeasurementDocuments``."""

    def write(
        self, evaluation: Evaluation[TrainingMeasurement], save_id: str
    ) -> tuple[Document, Mapping[str, Part]]:
        """Returns the documents of the measurement."""
        measured = evaluation.measurement
        times, ranks = measured.times, len(measured.losses)
        accuracy = [accuracy_document(measured.accuracy)] if measured.accuracy else []
        document = {
            "options": fields_of(measured.options),
            "data": fields_of(measured.data),
            "validation": storable(measured.validation),
            "epochs": measured.epochs,
            "rank_count": ranks,
            "step_count": times.whole_ns.shape[1],
            "part_count": len(times.parts_at),
            "loss_count": measured.losses.shape[1],
            "failure_count": len(measured.failures),
            "model_accuracy_id": f"{save_id}/0" if accuracy else None,
        }
        places = np.broadcast_to(times.parts_at, (ranks, len(times.parts_at)))
        every = {
            "training_step": _columns({name: getattr(times, name) for name in _STEPS}),
            "training_part": _columns({"step": places} | {name: getattr(times, name) for name in _PARTS}),
            "training_loss": _columns({"loss": measured.losses}),
            "model_accuracy": accuracy,
            "input_failure": failure_documents(measured.failures),
        }
        return document, {name: Part(len(documents), documents) for name, documents in every.items()}

    def read(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> TrainingMeasurement:
        """Returns the measurement."""
        stored = head["measurement"]
        ranks, options = int(stored["rank_count"]), checked(TrainingOptions(**restored(stored["options"])))
        if ranks != len({each["rank"] for each in parts["training_loss"]}):
            raise ValueError(f"the losses of its {ranks} ranks are not all there")
        steps = _rows(parts["training_step"], _STEPS, ranks, stored["step_count"])
        timed = _rows(parts["training_part"], ("step", *_PARTS), ranks, stored["part_count"])
        losses = np.array(list(_losses(parts["training_loss"], ranks)), np.float64).reshape(ranks, -1)
        if losses.shape[1] != stored["loss_count"]:
            raise ValueError(f"{losses.shape[1]} of its {stored['loss_count']} losses are there")
        if not 0 <= options.num_warmup_batches <= losses.shape[1] - stored["step_count"]:
            raise ValueError(f"{losses.shape[1]} losses are too few for its steps")
        failures = failures_from_documents(parts["input_failure"])
        if len(failures) != stored["failure_count"]:
            raise ValueError(f"{len(failures)} of its {stored['failure_count']} failures are there")
        if (stored["model_accuracy_id"] is None) != (not parts["model_accuracy"]):
            raise ValueError("its accuracy is missing")
        return TrainingMeasurement(
            options=options,
            data=checked(DataOptions(**restored(stored["data"]))),
            times=StepTimes(**steps, parts_at=timed["step"][0], **{name: timed[name] for name in _PARTS}),
            losses=losses,
            elapsed_ns=int(head["elapsed_ns"]),
            failures=failures,
            accuracy=accuracy_from_documents(parts["model_accuracy"]),
            validation=str(restored(stored["validation"])),
            epochs=int(stored["epochs"]),
        )


def _columns(columns: Mapping[str, NDArray[np.generic]]) -> list[Document]:
    """Returns one document for each stretch of each rank; ``columns`` are (ranks, length)."""
    ranks, length = next(iter(columns.values())).shape
    return [
        {"rank": rank}
        | {
            name: storable(each[rank, at : at + STEPS_PER_DOCUMENT].tolist())
            for name, each in columns.items()
        }
        for rank in range(ranks)
        for at in range(0, length, STEPS_PER_DOCUMENT)
    ]


def _rows(
    documents: Sequence[Stored], names: Sequence[str], ranks: int, length: int
) -> dict[str, NDArray[np.int64]]:
    """Returns the columns by name, int64, (ranks, length)."""
    found = {
        name: np.stack(
            [joined(each[name] for each in documents if each["rank"] == rank) for rank in range(ranks)]
        )
        for name in names
    }
    if any(each.shape != (ranks, length) for each in found.values()):
        raise ValueError(f"the times of its {length} steps are not all there")
    return found


def _losses(documents: Sequence[Stored], ranks: int) -> Iterator[list[float]]:
    for rank in range(ranks):
        yield [loss for each in documents if each["rank"] == rank for loss in restored(each["loss"])]
