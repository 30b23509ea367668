"""The kind of measurement of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.inference.predictor import Precision, Weights
from inferometer.agent.inference.results import InputFailure
from inferometer.evaluators.comparing.times import RunTimes
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import (
    Again,
    Kind,
    Rows,
    drawn,
    failure_values,
    own_values,
    top_figures,
)
from inferometer.evaluators.kinds.training.documents import TrainingDocuments
from inferometer.evaluators.kinds.training.measurement import TrainingMeasurement, TrainingSummary
from inferometer.evaluators.kinds.training.plot import TrainingStepsPlot
from inferometer.evaluators.kinds.training.report import TrainingReport, TrainingStepsReport
from inferometer.evaluators.kinds.training.summary import training_rows
from inferometer.evaluators.kinds.words import SYNTHETIC, allocator_words, words_of
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.trace_report import SpanSource


class TrainingKind(Kind[TrainingMeasurement]):
    """The training of a model."""

    name = "training"
    title = "training"
    phrase = "a training"
    counted = "samples"
    collections = ("training_step", "training_part", "training_loss", "model_accuracy", "input_failure")
    reports = ("training",)
    headlines = ("step_ms_mean", "step_ms_p50", "throughput_samples_per_s", "bound", "last_loss")

    def documents(self) -> TrainingDocuments:
        return TrainingDocuments()

    def failures(self, measurement: TrainingMeasurement) -> Sequence[InputFailure]:
        return measurement.failures

    def measured(self, measurement: TrainingMeasurement) -> str:
        return f"{measurement.times.samples.shape[1]} steps"

    def overview(self, measurement: TrainingMeasurement) -> Row:
        trained, top = TrainingSummary.of(measurement), measurement.accuracy
        share = top.top1_share if top else None
        return top_figures(trained.p50_ns, trained.throughput_samples_per_s, top1_accuracy=share)

    def summary(self, evaluation: Evaluation[TrainingMeasurement]) -> Rows:
        return training_rows(evaluation)

    def document(
        self,
        evaluation: Evaluation[TrainingMeasurement],
        timed: Evaluation[TrainingMeasurement],
        spans: SpanSource,
    ) -> dict[str, Any]:
        [row], measured = TrainingReport().rows([evaluation]), evaluation.measurement
        figures = {
            "options": asdict(measured.options),
            "data": asdict(measured.data),
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
        words = ("bench", "training", *_words(evaluation, evaluation.measurement))
        return Again(words, (launched,) if several else ())

    def unfit(self, measurement: TrainingMeasurement) -> str:
        return ""

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
        }

    def run_times(self, evaluation: Evaluation[TrainingMeasurement]) -> RunTimes:
        measured = evaluation.measurement
        if not len(measured.full_ns):
            raise ValueError("full step; train with a smaller --batch_size")
        return RunTimes.of_batches(measured.full_ns, measured.times.step_samples[measured.full])

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
    yield from words_of("num_batches", options.num_batches)
    yield from words_of("num_epochs", options.num_epochs)
    yield from words_of("num_warmup_batches", options.num_warmup_batches, 1)
    yield from words_of("dtype", options.precision, Precision.FLOAT32.value)
    yield from words_of("optimizer", options.optimizer, "sgd")
    yield from words_of("lr", options.learning_rate, 0.01)
    yield from words_of("momentum", options.momentum, 0.9)
    yield from words_of("weight_decay", options.weight_decay, 1e-4)
    yield from words_of("api", options.api or None)
    yield from words_of("parts_every", options.parts_every, 10)
    yield from words_of("seed", data.seed, 0)
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
