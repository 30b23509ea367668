"""The reports on batches (latency and throughput, raw times, accuracy by the task's metric) and the summary.

The summary gives the figures of one evaluation over a dataset as rows of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from inferometer.agent.hardware.environment import Weights
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, LatencySummary, reached
from inferometer.evaluators.kinds.summary import figures_text, interval_rows
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    NAME_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    Column,
    Report,
    Row,
    Summarized,
    Table,
    Value,
    describe,
    describe_names,
    end_columns,
    end_values,
    evaluation_columns,
    known,
    row_of,
    time_columns,
)
from inferometer.evaluators.tasks.metric import METRICS, Score, ScoreInterval, TaskResult

_NS_PER_US = 1000
_FIGURES = {"trimmed_mean": 2, "mean": 0, "p50": 0, "p90": 0, "p99": 0}
_WITH_INTERVAL = ("mean", "p50", "p90")
_STAGES = ("read", "preprocess", "predict", "postprocess")


_LATENCY = (
    *time_columns("latency_ms", "", "summary", _FIGURES, _WITH_INTERVAL),
    Column("throughput_inputs_per_s", "throughput (inputs/s)", 1, value="summary.throughput_inputs_per_s"),
    *end_columns("throughput_inputs_per_s", "throughput", "summary.throughput_interval", decimals=1),
    Column("end_to_end_inputs_per_s", "end to end (inputs/s)", 1, 1, value="summary.end_to_end_inputs_per_s"),
    Column("measured_batches", "measured batches", detail=1, value="summary.measured_batches"),
    Column("process", "process", detail=1, value="evaluation.process"),
    Column("trace_level", "trace level", detail=1, value="evaluation.trace_level.name"),
)


class LatencyReport(Report[BatchMeasurement]):
    """One row for each evaluation, with the figures of ``LatencySummary`` in milliseconds per batch.

    A figure that requires a full batch is empty if there is none. A percentile or an end of an interval is
    empty if there are too few full batches.
    """

    name = "latency"
    aliases = ("throughput",)
    summary = "latency of a batch in ms, and throughput"
    undisturbed = True
    takes = (BatchMeasurement,)
    columns = evaluation_columns(*_LATENCY)

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            summary = LatencySummary.of(evaluation.measurement)
            yield {**describe(evaluation), **row_of(_LATENCY, Summarized(evaluation, summary))}


class DurationReport(Report[BatchMeasurement]):
    """One row per measured batch of each evaluation; read and preprocess times are summed over inputs."""

    name = "duration"
    only_drawn = True
    summary = "the raw times of every measured batch in µs"
    takes = (BatchMeasurement,)
    columns = evaluation_columns(
        Column("batch", "batch"),
        Column("inputs", "inputs"),
        *(Column(f"{stage}_us", f"{stage} (us)", decimals=1) for stage in _STAGES),
        Column("trace_level", "trace level"),
    )

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            described, times = describe(evaluation), evaluation.measurement.times
            columns = [getattr(times, f"{stage}_ns").tolist() for stage in _STAGES]
            for number, (inputs, *stages_ns) in enumerate(zip(times.sizes.tolist(), *columns, strict=True)):
                yield {
                    **described,
                    "batch": number,
                    "inputs": inputs,
                    **{
                        f"{n}_us": time_ns / _NS_PER_US for n, time_ns in zip(_STAGES, stages_ns, strict=True)
                    },
                    "trace_level": evaluation.trace_level.name,
                }


CLASSIFICATION = "classification"
_FIRST = "measurement.task_result.first"
_TOP1 = (
    Column("top1_accuracy", "top-1 (share)", 4, stays=True, value="measurement.accuracy.top1_share"),
    Column("top5_accuracy", "top-5 (share)", 4, stays=True, value="measurement.accuracy.top5_share"),
)
_COUNTS: tuple[Column[Evaluation[BatchMeasurement]], ...] = (
    Column("evaluated_inputs", "evaluated inputs", value=lambda of: _counted(of.measurement)),
    Column("failed_inputs", "failed inputs", value=lambda of: len(of.measurement.failures)),
    Column("dataset_name", "dataset", value="dataset.name"),
)
_ENDS = (STATUS_COLUMN, CONDITIONS_COLUMN)
_OF_CLASSES = (
    *end_columns("top1_accuracy", "top-1", decimals=4),
    *end_columns("top5_accuracy", "top-5", decimals=4),
    Column("calibration_error", "calibration error", decimals=4, detail=2),
)
_OF_ANY_TASK: tuple[Column[Evaluation[BatchMeasurement]], ...] = (
    Column("task", "task", detail=3, value="system.manifest.output.type"),
    Column("definition", "definition", detail=3, value="measurement.task_result.definition"),
    Column("score_name", "score name", detail=3, value=f"{_FIRST}.name"),
    Column("score", "score", decimals=4, detail=3, value=f"{_FIRST}.value"),
    *end_columns("score", "", f"{_FIRST}.interval", decimals=4),
    Column("score_unit", "unit", detail=3, value=known(f"{_FIRST}.unit")),
    Column("other_scores", "other scores", detail=3, value=lambda of: _others(of.measurement.task_result)),
)


def _counted(measured: BatchMeasurement) -> int:
    accuracy, result = measured.accuracy, measured.task_result
    return accuracy.evaluated if accuracy else result.samples if result else 0


def _others(result: TaskResult | None) -> str | None:
    """Returns the known scores but the first as ``name=value``, where blanks in names become ``_``."""
    known = [each for each in (result.scores if result else ()) if each.value is not None]
    return " ".join(f"{each.name.replace(' ', '_')}={each.value!r}" for each in known[1:]) or None


class AccuracyReport(Report[BatchMeasurement]):
    """One row for each evaluation, with its scores over the evaluated inputs.

    An evaluated input has a ground truth, such as a label, and a prediction that could be scored. Scores are
    empty if no input was evaluated. Files have the same columns for every task: ``score`` is the most
    important score, and ``other_scores`` contains the rest as ``name=value``, separated by blanks; a blank in
    a name becomes ``_``. Console output has one table for each task, with a column for each of its scores.
    """

    name = "accuracy"
    summary = "accuracy, or the scores of other tasks, with the inputs they are counted over"
    takes = (BatchMeasurement,)
    has_tables = True
    columns = (*EVALUATION_COLUMNS, *_TOP1, *_COUNTS, *_ENDS, *_OF_CLASSES, *_OF_ANY_TASK)

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            yield {**row_of(self.columns, evaluation), **_class_values(evaluation)}

    def tables(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Sequence[Table]:
        of_task: dict[str, list[Evaluation[BatchMeasurement]]] = {}
        for evaluation in evaluations:
            of_task.setdefault(_table_of(evaluation), []).append(evaluation)
        tables = [
            _class_table(self, of_one) if task == CLASSIFICATION else _score_table(task, of_one)
            for task, of_one in sorted(of_task.items(), key=lambda each: each[0] != CLASSIFICATION)
        ]
        return tables or [_class_table(self, [])]


_OF_CLASS = {
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "average_precision": "AP",
    "iou": "IoU",
    "calibration_error": "ECE",
    "true_count": "true",
    "predicted_count": "predicted",
}
CLASS_COLUMNS = (Column("class", "class"), *(Column(key, name, 4) for key, name in _OF_CLASS.items()))
"""The figures of a class; those that its task lacks are empty."""


def class_rows(result: TaskResult | None) -> Iterator[dict[str, Value]]:
    """Yields the values of ``CLASS_COLUMNS`` for each class that the details of a result contain."""
    details = result.details if result else {}
    found = details.get("per_class", {})
    if "class_iou" in details:
        found = {"labels": details["classes"], "IoU": details["class_iou"]}
    elif "classes" in details:
        names = {"labels": "name", "true": "objects", "predicted": "predictions", "AP": "AP"}
        found = {
            name: [each.get(key, each.get("VOC_AP")) for each in details["classes"]]
            for name, key in names.items()
        }
    for place, label in enumerate(found.get("labels", ())):
        figures = {key: found[name][place] if name in found else None for key, name in _OF_CLASS.items()}
        yield {"class": label, **figures}


class ClassesReport(Report[BatchMeasurement]):
    """One row for each class of each evaluation, with its scores."""

    name = "classes"
    summary = "the scores of each class, such as F1, average precision or IoU"
    takes = (BatchMeasurement,)
    columns = (*NAME_COLUMNS, *CLASS_COLUMNS, STABILITY_COLUMN)

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            for row in class_rows(evaluation.measurement.task_result):
                yield {**describe_names(evaluation), **row}


def score_values(result: TaskResult | None) -> dict[str, Value]:
    """Returns the values of ``SCORE_COLUMNS``, which are empty for a classification."""
    first = None if result is None or result.task == CLASSIFICATION else result.first
    return {"score_name": first.name if first else None, "score": first.value if first else None}


def _table_of(evaluation: Evaluation[BatchMeasurement]) -> str:
    """Returns the task in whose table the evaluation is listed; classification if it has no scores."""
    result = evaluation.measurement.task_result
    return CLASSIFICATION if result is None else result.task


def _class_values(evaluation: Evaluation[BatchMeasurement]) -> dict[str, Value]:
    """Returns the values of ``_OF_CLASSES``."""
    result = evaluation.measurement.task_result
    classes = result if result is not None and result.task == CLASSIFICATION else None
    return {
        **end_values("top1_accuracy", _interval(classes, "top-1")),
        **end_values("top5_accuracy", _interval(classes, "top-5")),
        "calibration_error": classes.score("ECE") if classes else None,
    }


def _interval(result: TaskResult | None, name: str) -> ScoreInterval | None:
    scores = result.scores if result else ()
    return next((each.interval for each in scores if each.name == name), None)


def _class_table(report: AccuracyReport, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Table:
    columns = (*EVALUATION_COLUMNS, *_TOP1, *_COUNTS, *_OF_CLASSES, *_ENDS)
    return Table(CLASSIFICATION, columns, report.rows(evaluations))


def _score_table(task: str, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Table:
    """Returns a table with columns for each known score of a task and for the ends of its interval."""
    results = [each.measurement.task_result for each in evaluations]
    scores: dict[str, Score] = {}
    for score in (each for result in results if result for each in result.scores if each.value is not None):
        if score.name not in scores or (score.interval and not scores[score.name].interval):
            scores[score.name] = score
    columns = [column for score in scores.values() for column in _score_columns(score)]
    rows = [
        row_of((*EVALUATION_COLUMNS, *_COUNTS, *_ENDS), evaluation) | _score_values(result, scores)
        for evaluation, result in zip(evaluations, results, strict=True)
    ]
    return Table(task, (*EVALUATION_COLUMNS, *columns, *_COUNTS, *_ENDS), iter(rows))


def _score_columns(score: Score) -> Iterator[Column]:
    unit = f" ({score.unit})" if score.unit else ""
    yield Column(score.name, f"{score.name}{unit}", decimals=score.decimals, stays=True)
    if score.interval:
        yield from end_columns(score.name, score.name, decimals=score.decimals)


def _score_values(result: TaskResult | None, names: Iterable[str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name in names:
        values |= {name: result.score(name) if result else None, **end_values(name, _interval(result, name))}
    return values


_TOPS = ("top-1", "top-5")
_WITH_NETWORK = (("", "from the request to the answer of the server: the network is in it"),)
_PROFILED = (("", "under the framework's profiler, which slows the model down; --leveled measures both"),)


def summary_rows(evaluation: Evaluation[BatchMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns rows for accuracy, failures, latency and throughput; an unnamed row continues the one above."""
    latency = LatencySummary.of(evaluation.measurement)
    # in another process, memory addresses and the placement of threads differ
    whose = "this process" if evaluation.system.is_local else "the process of the agent"
    return (
        *accuracy_rows(evaluation),
        ("failures", str(len(evaluation.measurement.failures))),
        ("latency", _latency(latency, evaluation.measurement, whose)),
        *_precision_rows(evaluation.measurement, latency),
        *(_WITH_NETWORK if evaluation.system.is_of_server else ()),
        *(_PROFILED if evaluation.profiled else ()),
        ("throughput", _throughput(latency)),
    )


def accuracy_rows(evaluation: Evaluation[BatchMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns the model's scores on its task by name, or the reason why they are unknown."""
    task, measured = evaluation.system.manifest.output.type, evaluation.measurement
    result, accuracy = measured.task_result, measured.accuracy
    if result is None and task not in METRICS:
        what = "output is raw, without classes" if task == "raw" else f"task is {task}, which has no metric"
        return (("accuracy", f"not counted: the model's {what}"),)
    if evaluation.system.weights is Weights.RANDOM:
        return (("accuracy", f"not counted: the weights are random (seed {evaluation.system.seed})"),)
    if accuracy is not None and accuracy.top1_share is not None:
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


def _share_row(
    name: str, share: float | None, hits: int | None, count: int, result: TaskResult | None
) -> tuple[str, str]:
    if share is None:
        return name, "not available: the model names only the best class"
    score = next((each for each in (result.scores if result else ()) if each.name == name), None)
    return name, f"{share:.4f}{_score_ends(score)}  ({hits} of {count} inputs)"


def _score_rows(scores: Sequence[Score]) -> Iterator[tuple[str, str]]:
    """Yields a row for each score that is defined, and one row that lists those that are not."""
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


def _latency(latency: LatencySummary, measurement: BatchMeasurement, process: str) -> str:
    batch_size = measurement.batch_size
    if latency.mean_ns is None:
        largest = int(measurement.times.sizes.max(initial=0))
        instead = f"; give a batch_size of {largest} or less, which the largest held" if largest else ""
        return f"not known: no batch held {batch_size} inputs{instead}"
    return (
        f"{figures_text(latency, 'batches')}  ms per batch of {batch_size}, "
        f"over {latency.measured_batches} full batches within {process}"
    )


def _precision_rows(measurement: BatchMeasurement, latency: LatencySummary) -> Iterator[tuple[str, str]]:
    """Yields why there is no interval, or why it is wider than its target."""
    full_ns, target = measurement.full_ns, measurement.options.target_ci_percent
    yield from interval_rows(full_ns, latency.mean_interval_ns, "batches")
    if latency.mean_interval_ns is not None and target is not None and not reached(full_ns, target):
        yield "", f"the interval of p50 is wider than ±{target:g} %; --min_batches measures more"


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
