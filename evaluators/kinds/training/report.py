"""Reports on training: the figures of each run, and the raw times and losses of every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement, TrainingSummary
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    describe,
    in_ms,
)
from inferometer.evaluators.reports.times import time_columns, time_values

_NS_PER_US = 1000
_FIGURES = {"mean": 0, "p50": 0, "p90": 1, "p99": 1}
_WITH_INTERVAL = ("mean", "p50")
_PARTS = ("wait", "copy", "compute")
_SAMPLED = ("forward", "backward", "communicate", "update")


class TrainingReport(Report[TrainingMeasurement]):
    """One row for each training, with the figures of ``TrainingSummary`` in milliseconds a step.

    The batch size is that of one device. Step times are of full steps on the slowest rank, and the parts of
    a step those of the rank with the highest mean.
    """

    name = "training"
    summary = "training: the time of a step and its parts in ms, throughput, losses, and what bounds a step"
    takes = (TrainingMeasurement,)
    undisturbed = True
    columns = (
        *EVALUATION_COLUMNS,
        Column("ranks", "ranks", detail=1),
        Column("devices", "devices", detail=1),
        Column("effective_batch", "effective batch", detail=1),
        Column("communication", "gradients by", detail=2),
        *time_columns("step_ms", "step", _FIGURES, _WITH_INTERVAL),
        Column("throughput_samples_per_s", "throughput (samples/s)", decimals=1),
        Column("throughput_samples_per_s_low", "throughput low", decimals=1, detail=3),
        Column("throughput_samples_per_s_high", "throughput high", decimals=1, detail=3),
        *(Column(f"{name}_ms", f"{name} (ms)", detail=1) for name in _PARTS),
        *(Column(f"{name}_ms", f"{name} (ms)", detail=2) for name in _SAMPLED),
        Column("bound", "bound by"),
        Column("first_loss", "first loss", decimals=4, detail=1),
        Column("last_loss", "last loss", decimals=4),
        Column("diverged", "diverged"),
        Column("top1_accuracy", "top-1 (share)", decimals=4, detail=1),
        Column("top5_accuracy", "top-5 (share)", decimals=4, detail=3),
        Column("measured_steps", "measured steps", detail=1),
        Column("epochs", "epochs", detail=2),
        Column("failed_inputs", "failed inputs", detail=2),
        Column("data_backend", "data", detail=2),
        Column("dataset_name", "dataset", detail=2),
        Column("loader", "loader", detail=2),
        Column("optimizer", "optimizer", detail=3),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[TrainingMeasurement]]) -> Iterator[Row]:
        """Yields one row for each evaluation."""
        for evaluation in evaluations:
            measured, summary = evaluation.measurement, TrainingSummary.of(evaluation.measurement)
            options, accuracy, data = measured.options, measured.accuracy, measured.data
            low, high = summary.throughput_interval or (None, None)
            yield {
                **describe(evaluation),
                "ranks": options.ranks,
                "devices": options.devices * options.ranks,
                "effective_batch": options.effective_batch,
                "communication": options.communication or None,
                **time_values("step_ms", summary, _FIGURES, _WITH_INTERVAL),
                "throughput_samples_per_s": summary.throughput_samples_per_s,
                "throughput_samples_per_s_low": low,
                "throughput_samples_per_s_high": high,
                **{f"{name}_ms": in_ms(getattr(summary, f"{name}_ns")) for name in (*_PARTS, *_SAMPLED)},
                "bound": summary.bound.value if summary.bound else None,
                "first_loss": summary.first_loss,
                "last_loss": summary.last_loss,
                "diverged": summary.diverged,
                "top1_accuracy": accuracy.top1_share if accuracy else None,
                "top5_accuracy": accuracy.top5_share if accuracy else None,
                "measured_steps": summary.steps,
                "epochs": measured.epochs,
                "failed_inputs": len(measured.failures),
                "data_backend": f"{data.backend}{f'/{data.place}' if data.place else ''}",
                "dataset_name": evaluation.dataset.name,
                "loader": str(data),
                "optimizer": f"{options.optimizer}, learning rate {options.learning_rate:g}",
            }


class TrainingStepsReport(Report[TrainingMeasurement]):
    """One row for each measured step of each rank of each training; parts are there for some steps."""

    name = "training_steps"
    summary = "the raw times of every measured step of a training in µs, and its loss"
    takes = (TrainingMeasurement,)
    columns = (
        *EVALUATION_COLUMNS,
        Column("rank", "rank"),
        Column("step", "step"),
        Column("samples", "samples"),
        Column("loss", "loss", decimals=6),
        Column("whole_us", "whole (us)", decimals=1),
        *(Column(f"{name}_us", f"{name} (us)", decimals=1) for name in (*_PARTS, *_SAMPLED)),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[TrainingMeasurement]]) -> Iterator[Row]:
        """Yields the steps of each evaluation in order, those of rank 0 first."""
        for evaluation in evaluations:
            described, measured = describe(evaluation), evaluation.measurement
            times, warm_up = measured.times, measured.options.num_warmup_batches
            place_of = {int(step): place for place, step in enumerate(times.parts_at)}
            for rank, number in (
                (r, n) for r in range(len(times.samples)) for n in range(times.samples.shape[1])
            ):
                place = place_of.get(number)
                sampled = {
                    f"{name}_us": None
                    if place is None
                    else getattr(times, f"{name}_ns")[rank, place] / _NS_PER_US
                    for name in _SAMPLED
                }
                whole = {
                    f"{name}_us": float(getattr(times, f"{name}_ns")[rank, number] / _NS_PER_US)
                    for name in ("whole", *_PARTS)
                }
                yield {
                    **described,
                    "rank": rank,
                    "step": number,
                    "samples": int(times.samples[rank, number]),
                    "loss": float(measured.losses[rank, warm_up + number]),
                    **whole,
                    **{key: None if value is None else float(value) for key, value in sampled.items()},
                }
