"""The kind of measurement for training, with its documents and its plots.

Documents hold the times of steps, losses, accuracy and failures; plots show step times, losses and scaling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import DeviceKind, Precision, Weights
from inferometer.evaluators.documents import (
    Documents,
    Part,
    Stored,
    checked,
    column_part,
    columns_of,
    fields_of,
    record,
    restored,
    storable,
)
from inferometer.evaluators.drawing.charts import (
    Bar,
    BarChart,
    BarRow,
    Chosen,
    Drawing,
    Label,
    Plot,
    PointChart,
    Series,
    label_of,
    number,
    readable,
    time_unit,
)
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.options import further, words
from inferometer.evaluators.kinds.batches.documents import (
    accuracy_document,
    accuracy_from_documents,
    failure_part,
    failures_from_documents,
)
from inferometer.evaluators.kinds.batches.plot import MOST_POINTS, thinned
from inferometer.evaluators.kinds.kind import (
    Again,
    Kind,
    Rows,
    allocator_words,
    drawn,
    failure_values,
    own_values,
    top_figures,
    words_of,
)
from inferometer.evaluators.kinds.training.measurement import StepTimes, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.report import (
    StrongScalingReport,
    TrainingReport,
    TrainingStepsReport,
    WeakScalingReport,
    training_rows,
)
from inferometer.evaluators.kinds.training.request import SYNTHETIC, TrainingData, TrainingOptions
from inferometer.evaluators.loading.options import DataOptions
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.verdict import RunTimes

_STEPS = ("samples", "wait_ns", "copy_ns", "compute_ns", "whole_ns")
_PARTS = ("forward_ns", "backward_ns", "communicate_ns", "update_ns")
_TOLD = (
    *("batch_size", "num_batches", "num_warmup_batches", "num_epochs", "api", "parts_every"),
    *("optimizer", "learning_rate", "momentum", "weight_decay"),
)
"""The options that a comparison describes in words among its conditions, or that may differ in it."""


def _columns(columns: Mapping[str, NDArray[np.generic]]) -> Part:
    """Returns the documents of columns of shape (ranks, length)."""
    ranks = len(next(iter(columns.values())))
    return column_part(
        [({"rank": rank}, {name: each[rank] for name, each in columns.items()}) for rank in range(ranks)]
    )


def _rows(
    documents: Sequence[Stored], names: Sequence[str], ranks: int, length: int
) -> dict[str, NDArray[np.int64]]:
    """Returns the columns by name, int64, of shape (ranks, length)."""
    of_ranks = [
        columns_of([each for each in documents if each["rank"] == rank], names, length, "steps")
        for rank in range(ranks)
    ]
    return {name: np.stack([each[name] for each in of_ranks]) for name in names}


def _losses(documents: Sequence[Stored], ranks: int) -> Iterator[list[float]]:
    for rank in range(ranks):
        yield [loss for each in documents if each["rank"] == rank for loss in restored(each["loss"])]


_WHOLE, _WAIT, _LOSS = "whole step", "wait for data", "loss"
_NS_PER_US = 1000
_PLOTTED_PARTS = ("wait", "copy", "forward", "backward", "communicate", "update")


class TrainingPlot(Plot[TrainingMeasurement]):
    """A row for each training run: the mean times of a step's parts, one after the other."""

    def shows(self, row: Row) -> bool:
        return row["forward_ms"] is not None

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        lines = tuple(_parts_row(evaluation, of_one[0]) for evaluation, of_one in chosen)
        return Drawing(
            title="Parts of a training step",
            charts=(BarChart(Label(""), "mean of a step (ms)", lines, stacked=True),),
            groups=_PLOTTED_PARTS,
            notes=(
                "Forward, backward, communication and update are the means of some steps, which are "
                "synchronised after each part.",
                *notes,
            ),
        )


def _parts_row(evaluation: Evaluation[TrainingMeasurement], row: Row) -> BarRow:
    bars = []
    for part in _PLOTTED_PARTS:
        value_ms = number(row[f"{part}_ms"])
        text = f"{readable(value_ms)} ms"
        bars.append(Bar(value_ms, part, text, f"{evaluation.id}: {part} {text}"))
    options = evaluation.measurement.options
    more = (f"{options.devices * options.ranks} devices",) * (options.devices * options.ranks > 1)
    return BarRow(label_of(evaluation, *more), tuple(bars))


class TrainingStepsPlot(Plot[TrainingMeasurement]):
    """Two charts for each training run: the time of each step on its slowest rank, and the loss.

    Args:
        most_points: The number of points per evaluation above which steps are left out.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most_points = most_points

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        charts = tuple(chart for evaluation, _ in chosen for chart in self._charts(evaluation))
        return Drawing(
            title="Steps of training",
            charts=charts,
            groups=(_WHOLE, _WAIT, _LOSS),
            notes=("Of several ranks, the slowest in each step, and the mean loss.", *notes),
        )

    def _charts(self, evaluation: Evaluation[TrainingMeasurement]) -> Iterator[PointChart]:
        measured = evaluation.measurement
        whole_us = measured.times.slowest_ns / _NS_PER_US
        wait_us = measured.times.wait_ns.max(axis=0) / _NS_PER_US
        scale, unit = time_unit(float(whole_us.max(initial=0.0)))
        heading = label_of(evaluation)
        series = tuple(
            self._series(evaluation, group, (values_us / scale).tolist(), unit)
            for group, values_us in ((_WHOLE, whole_us), (_WAIT, wait_us))
        )
        yield PointChart(heading, "measured step", f"time ({unit})", series)
        losses = measured.losses.mean(axis=0).tolist()
        yield PointChart(
            Label("", "with the warm-up"), "step", "loss", (self._series(evaluation, _LOSS, losses, ""),)
        )

    def _series(
        self, evaluation: Evaluation[TrainingMeasurement], group: str, values: Sequence[float], unit: str
    ) -> Series:
        kept = thinned([(float(place), value) for place, value in enumerate(values)], self._most_points)
        mean = sum(values) / len(values)
        tooltip = f"{evaluation.id}: {group}, {readable(mean)} {unit}".rstrip() + " on average"
        x, y = zip(*kept, strict=True)
        return Series(group, x, y, line=True, tooltip=tooltip)


class ScalingPlot(Plot[TrainingMeasurement]):
    """A bar for each training run in a scaling report, with its efficiency in percent."""

    def drawing(self, chosen: Chosen[TrainingMeasurement], notes: Sequence[str]) -> Drawing:
        lines = tuple(_efficiency(evaluation, of_one[0]) for evaluation, of_one in chosen)
        return Drawing(
            title="Efficiency of scaling",
            charts=(BarChart(Label(""), "efficiency (%)", lines, whole=100),),
            groups=("efficiency",),
            notes=("Relative to the fewest devices of each group; above 100 % it is cut.", *notes),
        )


def _efficiency(evaluation: Evaluation[TrainingMeasurement], row: Row) -> BarRow:
    percent = number(row["efficiency_percent"])
    text = f"{percent:.2f} %, speed-up {number(row['speedup']):.2f}"
    tooltip = f"{evaluation.id}: {text} on {row['devices']} devices"
    return BarRow(
        label_of(evaluation, f"{row['devices']} devices"), (Bar(percent, "efficiency", text, tooltip),)
    )


class TrainingKind(Kind[TrainingMeasurement]):
    """The measurement of the training of a model."""

    name = "training"
    title = "training"
    phrase = "a training"
    counted = "samples"
    collections = ("training_step", "training_part", "training_loss", "model_accuracy", "input_failure")
    reports = {TrainingReport: TrainingPlot}
    further_reports = {
        TrainingStepsReport: TrainingStepsPlot,
        WeakScalingReport: ScalingPlot,
        StrongScalingReport: ScalingPlot,
    }
    comparable = True
    headlines = ("step_ms_mean", "step_ms_p50", "throughput_samples_per_s", "bound", "last_loss")

    def to_documents(self, evaluation: Evaluation[TrainingMeasurement], save_id: str) -> Documents:
        measured = evaluation.measurement
        times, ranks = measured.times, len(measured.losses)
        accuracy = [accuracy_document(measured.accuracy)] if measured.accuracy else []
        document = {
            "options": fields_of(measured.options),
            "data": storable(measured.data.values),
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
        return document, {
            "training_step": _columns({name: getattr(times, name) for name in _STEPS}),
            "training_part": _columns({"step": places} | {name: getattr(times, name) for name in _PARTS}),
            "training_loss": _columns({"loss": measured.losses}),
            "model_accuracy": Part(len(accuracy), accuracy),
            "input_failure": failure_part(measured.failures),
        }

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> TrainingMeasurement:
        stored = head["measurement"]
        ranks, options = int(stored["rank_count"]), record(TrainingOptions, stored["options"])
        if ranks != len({each["rank"] for each in parts["training_loss"]}):
            raise ValueError(f"the losses of its {ranks} ranks are not all present")
        steps = _rows(parts["training_step"], _STEPS, ranks, stored["step_count"])
        timed = _rows(parts["training_part"], ("step", *_PARTS), ranks, stored["part_count"])
        losses = np.array(list(_losses(parts["training_loss"], ranks)), np.float64).reshape(ranks, -1)
        if losses.shape[1] != stored["loss_count"]:
            raise ValueError(f"{losses.shape[1]} of its {stored['loss_count']} losses are present")
        if not 0 <= options.num_warmup_batches <= losses.shape[1] - stored["step_count"]:
            raise ValueError(f"{losses.shape[1]} losses are too few for its steps")
        return TrainingMeasurement(
            options=options,
            data=checked(DataOptions.of(restored(stored["data"]))),
            times=StepTimes(**steps, parts_at=timed["step"][0], **{name: timed[name] for name in _PARTS}),
            losses=losses,
            elapsed_ns=int(head["elapsed_ns"]),
            failures=failures_from_documents(parts, stored),
            accuracy=accuracy_from_documents(parts, stored),
            validation=str(restored(stored["validation"])),
            epochs=int(stored["epochs"]),
        )

    def measured(self, measurement: TrainingMeasurement) -> str:
        return f"{measurement.times.samples.shape[1]} steps"

    def overview(self, measurement: TrainingMeasurement) -> Row:
        trained, top = TrainingSummary.of(measurement), measurement.accuracy
        share = top.top1_share if top else None
        return top_figures(trained.p50_ns, trained.throughput_samples_per_s, top1_accuracy=share)

    def summary(self, evaluation: Evaluation[TrainingMeasurement]) -> Rows:
        return training_rows(evaluation)

    def document(self, evaluation: Evaluation[TrainingMeasurement], *_: object) -> dict[str, Any]:
        [row], measured = TrainingReport().rows([evaluation]), evaluation.measurement
        figures = {
            "options": asdict(measured.options),
            "data": measured.data.values,
            **own_values(TrainingReport(), row, "dataset_name"),
            "validation": measured.validation or None,
            "failures": failure_values(measured.failures),
        }
        return {"training": figures}

    def drawings(self, evaluation: Evaluation[TrainingMeasurement], most_points: int) -> Iterator[Drawing]:
        yield from drawn(TrainingStepsPlot(most_points), TrainingStepsReport(), evaluation)

    def again(self, evaluation: Evaluation[TrainingMeasurement]) -> Again:
        several = evaluation.measurement.options.ranks > 1
        launched = "It had several ranks; those of a launcher such as torchrun are started by it again."
        again = ("bench", "training", *_words(evaluation, evaluation.measurement))
        return Again(again, (launched,) if several else ())

    def facts(self, evaluation: Evaluation[TrainingMeasurement], *_: object) -> Iterator[tuple[str, Any]]:
        yield from evaluation.measurement.data.conditions.items()

    def conditions(self, evaluation: Evaluation[TrainingMeasurement]) -> Mapping[str, str]:
        options, data = evaluation.measurement.options, evaluation.measurement.data
        return {
            "batch size": str(options.batch_size),
            "devices": f"{options.devices * options.ranks} ({options.communication or 'alone'})",
            "optimizer": f"{options.optimizer}, learning rate {options.learning_rate:g}, momentum "
            f"{options.momentum:g}, weight decay {options.weight_decay:g}",
            "data": f"{data.backend}{f'/{data.place}' if data.place else ''}",
            "loader": str(data),
            "parts timed": f"every {options.parts_every} steps" if options.parts_every else "never",
            **{name.replace("_", " "): str(value) for name, value in further(options, _TOLD).items()},
            **data.conditions,
        }

    def run_times(self, evaluation: Evaluation[TrainingMeasurement]) -> RunTimes:
        measured = evaluation.measurement
        if not len(measured.full_ns):
            raise ValueError("full step; train with a smaller --batch_size")
        return RunTimes.of_batches(measured.full_ns, measured.times.samples.sum(axis=0)[measured.full])

    def batch_times(self, measurement: TrainingMeasurement) -> tuple[NDArray[np.int64], int]:
        return measurement.times.slowest_ns, int(measurement.times.samples.sum())

    def effective_batch(self, measurement: TrainingMeasurement, replica_batch: int) -> int:
        return measurement.options.effective_batch


def _words(evaluation: Evaluation, training: TrainingMeasurement) -> Iterator[str]:
    system, options, data = evaluation.system, training.options, training.data
    yield f"--model={system.manifest.name}"
    yield f"--model_version={system.manifest.version}"
    yield f"--framework_name={system.manifest.framework.name}"
    yield from words_of("weights", system.weights.value, Weights.RANDOM.value)
    yield f"--batch_size={options.batch_size}"
    yield from words_of("dtype", options.precision, Precision.FLOAT32.value)
    yield from words({**asdict(options), "batch_size": None, "api": options.api or None}, TrainingOptions)
    yield from words({"seed": data.seed, **data.further}, TrainingData)
    yield from allocator_words(system)
    if options.cudnn_benchmark is not None:
        yield f"--cudnn_benchmark={str(options.cudnn_benchmark).lower()}"
    if system.device.kind is DeviceKind.GPU:
        yield f"--num_gpus={options.devices}"
    elif system.device.kind is DeviceKind.CPU:
        yield from words_of("threads", system.threads)
    yield from words_of("num_ranks", options.ranks, 1)
    if options.communication:
        mxnet = system.manifest.framework.name == "MXNet"
        yield f"--{'kv_store' if mxnet else 'dist_backend'}={options.communication}"
    yield from words_of("validation_dataset", training.validation or None)
    if data.backend == SYNTHETIC:
        yield from words_of("data", f"{SYNTHETIC}/{data.place}", f"{SYNTHETIC}/host")
        return
    yield f"--data_dir={evaluation.dataset.name}"
    yield f"--data_backend={data.backend}"
    yield f"--num_workers={data.workers}"
    yield from words_of("loader", "processes" if data.processes else "threads", "threads")
    yield f"--prefetch={data.prefetch}"
    if data.shuffle:
        yield "--data_shuffle"
