"""The figures of an evaluation over a dataset as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferometer.agent.hardware.device import DeviceKind
from inferometer.agent.inference.predictor import Weights
from inferometer.agent.inference.results import LOCAL_AGENT
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, LatencySummary
from inferometer.evaluators.kinds.summary import ms_text
from inferometer.evaluators.precision.intervals import AUTOCORRELATION_TIMES, Interval
from inferometer.evaluators.precision.length import reached
from inferometer.evaluators.statistics import values_for_percentile
from inferometer.evaluators.tasks.metric import METRICS
from inferometer.evaluators.tasks.scores import Score, TaskResult

_TOPS = ("top-1", "top-5")
_WITH_NETWORK = (("", "from the request to the answer of the server: the network is in it"),)
_PROFILED = (("", "under the framework's profiler, which slows the model down; --leveled measures both"),)


def summary_rows(evaluation: Evaluation[BatchMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns rows of accuracy, failures, latency and throughput; an unnamed row continues the one above."""
    latency = LatencySummary.of(evaluation.measurement)
    return (
        *accuracy_rows(evaluation),
        ("failures", str(len(evaluation.measurement.failures))),
        ("latency", _latency(latency, evaluation.measurement, _whose(evaluation))),
        *_precision_rows(evaluation.measurement, latency),
        *(_WITH_NETWORK if evaluation.system.device.kind is DeviceKind.REMOTE else ()),
        *(_PROFILED if evaluation.profiled else ()),
        ("throughput", _throughput(latency)),
    )


def accuracy_rows(evaluation: Evaluation[BatchMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns the scores of the model at its task by name, or why they are not known."""
    task, measured = evaluation.system.manifest.output.type, evaluation.measurement
    result, accuracy = measured.task_result, measured.accuracy
    if result is None and task not in METRICS:
        what = "output is raw, without classes" if task == "raw" else f"task is {task}, which has no metric"
        return (("accuracy", f"not counted: the model's {what}"),)
    if evaluation.system.weights is Weights.RANDOM:
        return (("accuracy", f"not counted: the weights are random (seed {evaluation.system.seed})"),)
    if accuracy is not None and accuracy.top1_share is not None and accuracy.top5_share is not None:
        return (
            _share_row("top-1", accuracy.top1_share, accuracy.top1, accuracy.evaluated, result),
            _share_row("top-5", accuracy.top5_share, accuracy.top5, accuracy.evaluated, result),
            *_score_rows([each for each in (result.scores if result else ()) if each.name not in _TOPS]),
        )
    if result is None or not result.samples:
        missing = "label" if task == "classification" else "truth"
        return (("accuracy", f"not known: no input with a {missing} was predicted"),)
    return result_rows(result)


def result_rows(result: TaskResult) -> tuple[tuple[str, str], ...]:
    """Returns the scores of a task by name, with their intervals, and the definition of the metric."""
    return (*_score_rows(result.scores), ("metric", f"{result.definition}, over {result.samples} inputs"))


def _share_row(name: str, share: float, hits: int, count: int, result: TaskResult | None) -> tuple[str, str]:
    score = next((each for each in (result.scores if result else ()) if each.name == name), None)
    return name, f"{share:.4f}{_score_ends(score)}  ({hits} of {count} inputs)"


def _score_rows(scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    """Yields a row for each score that is known, and one row that names all others."""
    for score in scores:
        if score.value is not None:
            unit = f" {score.unit}" if score.unit else ""
            yield score.name, f"{score.text(score.value)}{_score_ends(score)}{unit}"
    if unknown := [score.name for score in scores if score.value is None]:
        yield "undefined", f"{', '.join(unknown)}: not defined for these inputs"


def _score_ends(score: Score | None) -> str:
    """Returns the 95 % interval of a score as text; empty if there is none."""
    if score is None or score.interval is None:
        return ""
    low, high = score.interval
    return f" [{score.text(low)}, {score.text(high)}]"


def _whose(evaluation: Evaluation) -> str:
    """Returns the process that the figures hold for.

    Another process has other memory addresses and another placement of threads.
    """
    return "this process" if evaluation.system.agent == LOCAL_AGENT else "the process of the agent"


def _latency(latency: LatencySummary, measurement: BatchMeasurement, process: str) -> str:
    batch_size = measurement.batch_size
    if latency.mean_ns is None:
        largest = int(measurement.times.sizes.max(initial=0))
        instead = f"; give a batch_size of {largest} or less, which the largest held" if largest else ""
        return f"not known: no batch held {batch_size} inputs{instead}"
    figures = (
        f"mean {ms_text(latency.mean_ns, latency.mean_interval_ns)}",
        _percentile(50, latency.p50_ns, latency.p50_interval_ns),
        _percentile(90, latency.p90_ns, latency.p90_interval_ns),
        _percentile(99, latency.p99_ns, None),
    )
    known = "  ".join(figures)
    return (
        f"{known}  ms per batch of {batch_size}, over {latency.measured_batches} full batches "
        f"within {process}"
    )


def _percentile(percent: int, value_ns: float | None, interval_ns: Interval | None) -> str:
    if value_ns is None:
        return f"p{percent} needs {values_for_percentile(percent)} full batches"
    return f"p{percent} {ms_text(value_ns, interval_ns)}"


def _precision_rows(measurement: BatchMeasurement, latency: LatencySummary) -> tuple[tuple[str, str], ...]:
    """Returns why there is no interval, or why it is wider than its target."""
    count, needed = latency.measured_batches, latency.batches_for_interval
    target = measurement.options.target_ci_percent
    if 0 < count < needed:
        why = ": their times are correlated" if needed > AUTOCORRELATION_TIMES else ""
        return (("", f"no 95 % intervals, which need {needed} full batches{why}"),)
    if count and target is not None and not reached(measurement.full_ns, target):
        return (("", f"the interval of p50 is wider than ±{target:g} %; --min_batches measures more"),)
    return ()


def _throughput(latency: LatencySummary) -> str:
    figures = {"model": latency.throughput_inputs_per_s, "end to end": latency.end_to_end_inputs_per_s}
    intervals = {"model": latency.throughput_interval}
    known = []
    for name, value in figures.items():
        if value is not None:
            interval = intervals.get(name)
            ends = "" if interval is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
            known.append(f"{value:.1f}{ends} inputs/s ({name})")
    return "  ".join(known) or "not known"
