"""The figures of a training as rows of text."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.summary import ms_text
from inferometer.evaluators.kinds.training.measurement import Bound, TrainingMeasurement, TrainingSummary
from inferometer.evaluators.precision.intervals import AUTOCORRELATION_TIMES, batches_for_interval
from inferometer.evaluators.statistics import values_for_percentile

_NS_PER_MS = 1_000_000
_SERIAL = ("wait", "copy", "compute")
_SAMPLED = ("forward", "backward", "communicate", "update")
_PROFILED = (("", "under the framework's profiler, which slows the steps down"),)
_ADVICE = {
    Bound.LOADER: "the steps wait for data; more workers or a longer prefetch may help",
    Bound.COPY: "the copy to the device",
    Bound.COMPUTE: "the model",
    Bound.COMMUNICATION: "the sum of gradients over devices and processes",
}


def training_rows(evaluation: Evaluation[TrainingMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns rows of step times, throughput, parts, losses and accuracy; unnamed ones continue a row."""
    measured, summary = evaluation.measurement, TrainingSummary.of(evaluation.measurement)
    return (
        ("trained", _how(measured)),
        ("data", _data(evaluation)),
        ("step", _step(measured, summary)),
        *_interval_rows(measured, summary),
        *(_PROFILED if evaluation.profiled else ()),
        ("throughput", _throughput(measured, summary)),
        ("parts", "  ".join(_parts(summary, _SERIAL)) + "  ms, means of the steps"),
        *_sampled_rows(measured, summary),
        ("bound by", f"{summary.bound.value}: {_ADVICE[summary.bound]}" if summary.bound else "not known"),
        ("loss", _loss(measured, summary)),
        *_accuracy_rows(measured),
        ("failures", str(len(measured.failures))),
    )


def _how(measured: TrainingMeasurement) -> str:
    options = measured.options
    optimizer = f"{options.optimizer}, learning rate {options.learning_rate:g}"
    if options.optimizer in {"sgd", "nag", "rmsprop"}:
        optimizer += f", momentum {options.momentum:g}"
    size = f"batch {options.batch_size}"
    several = options.devices * options.ranks
    if several > 1:
        size += f" × {several} = {options.effective_batch}, gradients by {options.communication or 'default'}"
    return f"{options.precision}, {size}, {optimizer}, weight decay {options.weight_decay:g}"


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
    figures = [f"mean {ms_text(summary.mean_ns, summary.mean_interval_ns)}"]
    for percent, value_ns in ((50, summary.p50_ns), (90, summary.p90_ns), (99, summary.p99_ns)):
        interval = summary.p50_interval_ns if percent == 50 else None
        needs = f"p{percent} needs {values_for_percentile(percent)} full steps"
        figures.append(needs if value_ns is None else f"p{percent} {ms_text(value_ns, interval)}")
    slowest = ", on the slowest rank" if measured.options.ranks > 1 else ""
    return f"{'  '.join(figures)}  ms, over {count} full steps of {summary.steps}{slowest}"


def _interval_rows(measured: TrainingMeasurement, summary: TrainingSummary) -> Iterator[tuple[str, str]]:
    """Yields why there is no interval."""
    full_ns = measured.full_ns
    needed = batches_for_interval(full_ns) if len(full_ns) else 0
    if summary.mean_interval_ns is None and 0 < len(full_ns) < needed:
        why = ": their times are correlated" if needed > AUTOCORRELATION_TIMES else ""
        yield "", f"no 95 % intervals, which need {needed} full steps{why}"


def _throughput(measured: TrainingMeasurement, summary: TrainingSummary) -> str:
    value, interval = summary.throughput_samples_per_s, summary.throughput_interval
    if value is None:
        return "not known"
    ends = "" if interval is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
    samples, seconds = int(measured.times.samples.sum()), measured.elapsed_ns / 1e9
    return f"{value:.1f}{ends} samples/s, {samples} samples in {seconds:.3f} s"


def _parts(summary: TrainingSummary, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value_ns: float | None = getattr(summary, f"{name}_ns")
        yield f"{name} {'not known' if value_ns is None else f'{value_ns / _NS_PER_MS:.3f}'}"


def _sampled_rows(measured: TrainingMeasurement, summary: TrainingSummary) -> Iterator[tuple[str, str]]:
    count = len(measured.times.parts_at)
    if count:
        alone = measured.options.devices * measured.options.ranks == 1
        names = tuple(name for name in _SAMPLED if name != "communicate" or not alone)
        yield (
            "",
            f"{'  '.join(_parts(summary, names))}  ms, in {count} step{'s' * (count > 1)} timed in parts",
        )


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
