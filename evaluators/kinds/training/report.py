"""The reports on training: the figures of each run, the raw times and losses of every step, and scaling.

Scaling describes how the time of a step changes with the number of devices. The summary gives the figures of
one training as rows of text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.summary import figures_text, interval_rows
from inferometer.evaluators.kinds.training.measurement import Bound, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.reports.base import (
    Column,
    Report,
    Row,
    Summarized,
    cut_percent,
    describe,
    end_columns,
    evaluation_columns,
    in_us,
    known,
    ms,
    row_of,
    time_columns,
)

_FIGURES = {"mean": 0, "p50": 0, "p90": 1, "p99": 1}
_WITH_INTERVAL = ("mean", "p50")
_PARTS = ("wait", "copy", "compute")
_SAMPLED = ("forward", "backward", "communicate", "update")


_TRAINING: tuple[Column[Summarized[TrainingMeasurement, TrainingSummary]], ...] = (
    Column("ranks", "ranks", detail=1, value="measured.options.ranks"),
    Column("devices", "devices", detail=1, value=lambda of: devices_of(of.evaluation)),
    Column("effective_batch", "effective batch", detail=1, value="measured.options.effective_batch"),
    Column("communication", "gradients by", detail=2, value=known("measured.options.communication")),
    *time_columns("step_ms", "step", "summary", _FIGURES, _WITH_INTERVAL),
    Column("throughput_samples_per_s", "throughput (samples/s)", 1, value="summary.throughput_samples_per_s"),
    *end_columns("throughput_samples_per_s", "throughput", "summary.throughput_interval", decimals=1),
    *(Column(f"{name}_ms", f"{name} (ms)", detail=1, value=ms(f"summary.{name}_ns")) for name in _PARTS),
    *(Column(f"{name}_ms", f"{name} (ms)", detail=2, value=ms(f"summary.{name}_ns")) for name in _SAMPLED),
    Column("bound", "bound by", value="summary.bound.value"),
    Column("first_loss", "first loss", decimals=4, detail=1, value="summary.first_loss"),
    Column("last_loss", "last loss", decimals=4, value="summary.last_loss"),
    Column("diverged", "diverged", value="summary.diverged"),
    Column("top1_accuracy", "top-1 (share)", decimals=4, detail=1, value="measured.accuracy.top1_share"),
    Column("top5_accuracy", "top-5 (share)", decimals=4, detail=3, value="measured.accuracy.top5_share"),
    Column("measured_steps", "measured steps", detail=1, value="summary.steps"),
    Column("epochs", "epochs", detail=2, value="measured.epochs"),
    Column("failed_inputs", "failed inputs", detail=2, value=lambda of: len(of.measured.failures)),
    Column("data_backend", "data", detail=2, value=lambda of: _backend(of.measured)),
    Column("dataset_name", "dataset", detail=2, value="evaluation.dataset.name"),
    Column("loader", "loader", detail=2, value=lambda of: str(of.measured.data)),
    Column("optimizer", "optimizer", detail=3, value=lambda of: _optimizer(of.measured)),
)


class TrainingReport(Report[TrainingMeasurement]):
    """One row for each training, with the figures of ``TrainingSummary`` in milliseconds per step.

    The batch size is per device. Step times are those of full steps on the slowest rank, and the time of each
    part of a step is that of the rank with the highest mean.
    """

    name = "training"
    summary = "training: the time of a step and its parts in ms, throughput, losses, and what bounds a step"
    takes = (TrainingMeasurement,)
    undisturbed = True
    columns = evaluation_columns(*_TRAINING)

    def rows(self, evaluations: Sequence[Evaluation[TrainingMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            summary = TrainingSummary.of(evaluation.measurement)
            yield {**describe(evaluation), **row_of(_TRAINING, Summarized(evaluation, summary))}


class TrainingStepsReport(Report[TrainingMeasurement]):
    """One row for each measured step of each rank of each training; only some steps were timed in parts."""

    name = "training_steps"
    only_drawn = True
    summary = "the raw times of every measured step of a training in µs, and its loss"
    takes = (TrainingMeasurement,)
    columns = evaluation_columns(
        Column("rank", "rank"),
        Column("step", "step"),
        Column("samples", "samples"),
        Column("loss", "loss", decimals=6),
        Column("whole_us", "whole (us)", decimals=1),
        *(Column(f"{name}_us", f"{name} (us)", decimals=1) for name in (*_PARTS, *_SAMPLED)),
    )

    def rows(self, evaluations: Sequence[Evaluation[TrainingMeasurement]]) -> Iterator[Row]:
        """Yields the steps of each evaluation in order, those of rank 0 first."""
        for evaluation in evaluations:
            described, measured = describe(evaluation), evaluation.measurement
            times, warm_up = measured.times, measured.options.num_warmup_batches
            place_of = {int(step): place for place, step in enumerate(times.parts_at)}
            for rank, number in np.ndindex(times.samples.shape):
                places = dict.fromkeys(("whole", *_PARTS), number) | dict.fromkeys(
                    _SAMPLED, place_of.get(number)
                )
                yield {
                    **described,
                    "rank": rank,
                    "step": number,
                    "samples": int(times.samples[rank, number]),
                    "loss": float(measured.losses[rank, warm_up + number]),
                    **{
                        f"{name}_us": None
                        if at is None
                        else in_us(int(getattr(times, f"{name}_ns")[rank, at]))
                        for name, at in places.items()
                    },
                }


_NS_PER_MS = 1_000_000
_PROFILED = (("", "under the framework's profiler, which slows the steps down"),)
_ADVICE = {
    Bound.LOADER: "the steps wait for data; more workers or a longer prefetch may help",
    Bound.COPY: "the copy to the device",
    Bound.COMPUTE: "the model",
    Bound.COMMUNICATION: "the sum of gradients over devices and processes",
}


def training_rows(evaluation: Evaluation[TrainingMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns rows of step times, throughput, parts, losses and accuracy; unnamed rows continue others."""
    measured, summary = evaluation.measurement, TrainingSummary.of(evaluation.measurement)
    return (
        ("trained", _how(measured)),
        ("data", _data(evaluation)),
        ("step", _step(measured, summary)),
        *interval_rows(measured.full_ns, summary.mean_interval_ns, "steps"),
        *(_PROFILED if evaluation.profiled else ()),
        ("throughput", _throughput(measured, summary)),
        ("parts", "  ".join(_parts(summary, _PARTS)) + "  ms, means of the steps"),
        *_sampled_rows(measured, summary),
        ("bound by", f"{summary.bound.value}: {_ADVICE[summary.bound]}" if summary.bound else "not known"),
        ("loss", _loss(measured, summary)),
        *_accuracy_rows(measured),
        ("failures", str(len(measured.failures))),
    )


def _how(measured: TrainingMeasurement) -> str:
    options = measured.options
    optimizer = _optimizer(measured)
    if options.optimizer in {"sgd", "nag", "rmsprop"}:
        optimizer += f", momentum {options.momentum:g}"
    size = f"batch {options.batch_size}"
    several = options.devices * options.ranks
    if several > 1:
        size += f" × {several} = {options.effective_batch}, gradients by {options.communication or 'default'}"
    return f"{options.precision}, {size}, {optimizer}, weight decay {options.weight_decay:g}"


def _optimizer(measured: TrainingMeasurement) -> str:
    return f"{measured.options.optimizer}, learning rate {measured.options.learning_rate:g}"


def _backend(measured: TrainingMeasurement) -> str:
    data = measured.data
    return f"{data.backend}/{data.place}" if data.place else data.backend


def _data(evaluation: Evaluation[TrainingMeasurement]) -> str:
    data, dataset = evaluation.measurement.data, evaluation.dataset
    if data.backend == "synthetic":
        place = {"device": "on the device, copied once", "host": "in host memory"}.get(data.place, data.place)
        return f"synthetic, {place}"
    order = f"shuffled by seed {data.seed}" if data.shuffle else "in order"
    cached = (
        "" if data.cached_before is None else f", {100 * data.cached_before:.0f} % in the page cache before"
    )
    return f"{dataset.name} ({data.backend}), {order}, by {data}{cached}"


def _step(measured: TrainingMeasurement, summary: TrainingSummary) -> str:
    count = int(measured.full.sum())
    if summary.mean_ns is None:
        return f"not known: none of {summary.steps} steps had a full batch of {measured.batch_size}"
    slowest = ", on the slowest rank" if measured.options.ranks > 1 else ""
    return f"{figures_text(summary, 'steps')}  ms, over {count} full steps of {summary.steps}{slowest}"


def _throughput(measured: TrainingMeasurement, summary: TrainingSummary) -> str:
    value, interval = summary.throughput_samples_per_s, summary.throughput_interval
    if value is None:
        return "not known"
    ends = "" if interval is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
    samples, seconds = int(measured.times.samples.sum()), measured.elapsed_ns / 1e9
    return f"{value:.1f}{ends} samples/s, {samples} samples in {seconds:.3f} s"


def _parts(summary: TrainingSummary, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        value_ns: float | None = getattr(summary, f"{name}_ns")
        yield f"{name} {'not known' if value_ns is None else f'{value_ns / _NS_PER_MS:.3f}'}"


def _sampled_rows(measured: TrainingMeasurement, summary: TrainingSummary) -> Iterator[tuple[str, str]]:
    if count := len(measured.times.parts_at):
        alone = measured.options.devices * measured.options.ranks == 1
        parts = "  ".join(_parts(summary, [n for n in _SAMPLED if n != "communicate" or not alone]))
        yield "", f"{parts}  ms, in {count} step{'s' * (count > 1)} timed in parts"


def _loss(measured: TrainingMeasurement, summary: TrainingSummary) -> str:
    if summary.first_loss is None or summary.last_loss is None:
        return "not known"
    count = measured.losses.shape[1]
    warm_up = measured.options.num_warmup_batches
    told = f", {warm_up} of them to warm up" if warm_up else ""
    verdict = "; diverged" if summary.diverged else ""
    return f"{summary.first_loss:.4f} → {summary.last_loss:.4f} in {count} steps{told}{verdict}"


def _accuracy_rows(measured: TrainingMeasurement) -> Iterator[tuple[str, str]]:
    accuracy = measured.accuracy
    if not measured.validation:
        return
    if accuracy is None or accuracy.top1_share is None or accuracy.top5_share is None:
        yield "accuracy", f"not known: no input of {measured.validation} with a label was predicted"
        return
    whole = f"{accuracy.evaluated} inputs of {measured.validation}"
    yield "top-1", f"{accuracy.top1_share:.4f}  ({accuracy.top1} of {whole})"
    yield "top-5", f"{accuracy.top5_share:.4f}  ({accuracy.top5} of {accuracy.evaluated})"


_Trainings: TypeAlias = Sequence[Evaluation[TrainingMeasurement]]


_SCALING: tuple[Column[Summarized[TrainingMeasurement, TrainingSummary]], ...] = (
    Column("devices", "devices", stays=True, value=lambda of: devices_of(of.evaluation)),
    Column("effective_batch", "effective batch", stays=True, value="measured.options.effective_batch"),
    Column("step_ms_mean", "step mean (ms)", value=ms("summary.mean_ns")),
    Column("throughput_samples_per_s", "throughput (samples/s)", 1, value="summary.throughput_samples_per_s"),
    Column("speedup", "speed-up", decimals=2),
    Column("efficiency_percent", "efficiency (%)", decimals=2, stays=True),
    Column("uncapped_efficiency_percent", "efficiency, uncapped (%)", decimals=4, detail=3),
    Column("communicate_ms", "communicate (ms)", detail=1, value=ms("summary.communicate_ns")),
    Column("communicate_percent", "communicate (%)", decimals=1, detail=1),
    Column("communication", "gradients by", detail=2, value=known("measured.options.communication")),
)


class _ScalingReport(Report[TrainingMeasurement]):
    """One row for each training of a group that ran on different numbers of devices.

    The smallest number of devices in a group is its base: their mean step time, over several evaluations if
    there are several. Efficiency is cut to two decimals and capped at 100 %, as reported by DLBS; a further
    column contains the raw value. Groups with only one number of devices are left out.
    """

    shares_batch: ClassVar[bool]
    """Whether the devices share the effective batch; otherwise each of them keeps its batch size."""
    takes = (TrainingMeasurement,)
    undisturbed = True
    columns = evaluation_columns(*_SCALING)

    def rows(self, evaluations: _Trainings) -> Iterator[Row]:
        """Yields a row for each evaluation of each group, sorted by the number of devices."""
        groups: dict[Hashable, list[Evaluation[TrainingMeasurement]]] = {}
        for evaluation in evaluations:
            options = evaluation.measurement.options
            batch = options.effective_batch if self.shares_batch else options.batch_size
            if len(evaluation.measurement.full_ns):
                groups.setdefault((_alike(evaluation), batch), []).append(evaluation)
        for group in groups.values():
            ordered = sorted(group, key=devices_of)
            first = devices_of(ordered[0])
            if first == devices_of(ordered[-1]):
                continue
            base_ns = float(np.mean([_mean_ns(each) for each in ordered if devices_of(each) == first]))
            yield from (self._row(each, base_ns, first) for each in ordered)

    def _row(self, evaluation: Evaluation[TrainingMeasurement], base_ns: float, first: int) -> Row:
        summary = TrainingSummary.of(evaluation.measurement)
        faster, more = base_ns / _mean_ns(evaluation), devices_of(evaluation) / first
        speedup = faster if self.shares_batch else faster * more
        efficiency_percent = 100 * speedup / more
        communicate, whole = summary.communicate_ns, summary.mean_ns
        return {
            **describe(evaluation),
            **row_of(_SCALING, Summarized(evaluation, summary)),
            "speedup": speedup,
            "efficiency_percent": cut_percent(efficiency_percent),
            "uncapped_efficiency_percent": efficiency_percent,
            "communicate_percent": 100 * communicate / whole if communicate is not None and whole else None,
        }


class WeakScalingReport(_ScalingReport):
    """Weak scaling: each device keeps its batch size, so efficiency is t1 / tN."""

    name = "weak_scaling"
    summary = "training with the same batch per device on more devices: speed-up and efficiency"
    shares_batch = False


class StrongScalingReport(_ScalingReport):
    """Strong scaling: the devices share the effective batch; efficiency is t1 / (N · tN)."""

    name = "strong_scaling"
    summary = "training with the same effective batch on more devices: speed-up and efficiency"
    shares_batch = True


def devices_of(evaluation: Evaluation[TrainingMeasurement]) -> int:
    """Returns the number of devices over all ranks."""
    return evaluation.measurement.options.devices * evaluation.measurement.options.ranks


def _mean_ns(evaluation: Evaluation[TrainingMeasurement]) -> float:
    return float(evaluation.measurement.full_ns.mean())


def _alike(evaluation: Evaluation[TrainingMeasurement]) -> Hashable:
    """Returns what must be equal for evaluations to be in the same group."""
    system, options, data = evaluation.system, evaluation.measurement.options, evaluation.measurement.data
    return (
        system.manifest.name,
        system.manifest.version,
        system.manifest.framework.name,
        system.framework_version,
        system.device.kind,
        system.environment.cpu_model,
        tuple(gpu.name for gpu in system.environment.gpus[:1]),
        options.precision,
        options.optimizer,
        options.api,
        (data.backend, data.place),
        evaluation.dataset.name if data.backend != "synthetic" else "",
    )
