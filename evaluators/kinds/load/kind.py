"""The kind of measurement of a workload."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from inferometer.evaluators.comparing.times import RunTimes
from inferometer.evaluators.comparing.verdict import FIGURES, THROUGHPUT
from inferometer.evaluators.datasets.base import short_checksum
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import Again, Kind, Rows, drawn, own_values, top_figures
from inferometer.evaluators.kinds.load.documents import LoadDocuments
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement
from inferometer.evaluators.kinds.load.options import (
    further_words,
    load_description,
    load_words,
    option_conditions,
    option_values,
    options_text,
)
from inferometer.evaluators.kinds.load.plot import WorkloadPlot
from inferometer.evaluators.kinds.load.report import WorkloadReport
from inferometer.evaluators.kinds.load.request import WorkloadRequest
from inferometer.evaluators.kinds.load.summary import run_rows
from inferometer.evaluators.kinds.words import system_words, words_of
from inferometer.evaluators.load.summary import LoadSummary
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.trace_report import SpanSource

_NS_PER_S = 1_000_000_000
_OF_THE_SCHEDULE = ("load", "duration", "queries")
"""Conditions that are equal for equal schedules, whatever their source."""
_CHANGES_WITH_TIME = ("ramp", "bursts")
"""Arrival processes whose load depends on the duration."""


class LoadKind(Kind[LoadMeasurement]):
    """A model under load."""

    name = "load"
    title = "workload"
    phrase = "a workload"
    collections = ("load_query",)
    reports = ("workload",)
    headlines = ("latency_ms_p50", "latency_ms_p99", "achieved_qps", "goodput_qps", "late_share")

    keeps_interrupted = False

    def documents(self) -> LoadDocuments:
        return LoadDocuments()

    def invalid(self, measurement: LoadMeasurement) -> str:
        return measurement.invalid

    def unanswered(self, measurement: LoadMeasurement) -> str:
        return "no query was answered"

    def overview(self, measurement: LoadMeasurement) -> Row:
        run, options = measurement.run, measurement.options
        load = LoadSummary.of(run.queries, options.latency_bound_ns, run.cut_ns, options.percentile)
        median = load.percentile(50.0)
        return top_figures(median.value_ns if median else None, load.achieved_qps)

    def summary(self, evaluation: Evaluation[LoadMeasurement]) -> Rows:
        return run_rows(evaluation.measurement)

    def description(self, evaluation: Evaluation[LoadMeasurement]) -> Rows:
        options, run = evaluation.measurement.options, evaluation.measurement.run
        yield from load_description(evaluation, options)
        rate = f" at {run.rate_qps:g} queries/s" if run.rate_qps else ""
        seed = f", seed {run.seed}" if run.seed is not None else ""
        yield "load", f"{run.source}{rate}{seed}"
        if run.checksum:
            yield "", f"schedule {run.checksum}"
        yield "", ", ".join(options_text(options, bound=True))

    def document(
        self,
        evaluation: Evaluation[LoadMeasurement],
        timed: Evaluation[LoadMeasurement],
        spans: SpanSource,
    ) -> dict[str, Any]:
        load, run = evaluation.measurement, evaluation.measurement.run
        [row] = WorkloadReport().rows([evaluation])
        summary = LoadSummary.of(run.queries, load.options.latency_bound_ns, run.cut_ns)
        figures = {
            "options": option_values("workload", load.options),
            "workload": own_values(WorkloadReport(), row),
            "empty_start_s": run.cut_ns / _NS_PER_S,
            "empty_start_queries": summary.cut_queries,
            "queries_by_batch_size": {
                str(size): count for size, count in sorted(summary.batch_sizes.items())
            },
            "failure_reasons": dict(run.reasons),
            "mlperf": asdict(load.mlperf) if load.mlperf else None,
        }
        return {"load": figures}

    def facts(
        self, evaluation: Evaluation[LoadMeasurement], timed: Evaluation[LoadMeasurement]
    ) -> Iterator[tuple[str, Any]]:
        yield "schedule", evaluation.measurement.run.checksum or None

    def drawings(self, evaluation: Evaluation[LoadMeasurement], most_points: int) -> Iterator[Drawing]:
        yield from drawn(WorkloadPlot(), WorkloadReport(), evaluation)

    def again(self, evaluation: Evaluation[LoadMeasurement]) -> Again:
        run = evaluation.measurement.run
        if _of_a_file(evaluation.measurement):
            reason = f"Its schedule came from the file {run.source}, which the evaluation does not keep."
            return Again((), (reason,))
        words = [
            "predict",
            "workload",
            *system_words(evaluation),
            *_words(evaluation, evaluation.measurement),
        ]
        words += further_words(WorkloadRequest, evaluation.measurement.options)
        return Again(tuple(words))

    def unfit(self, measurement: LoadMeasurement) -> str:
        if measurement.run.invalid:
            return f"is INVALID: {measurement.run.invalid}; its figures are not to be trusted, run it again"
        if measurement.run.stopped:
            reason = f"was stopped: {measurement.run.stopped}"
            return f"{reason}; its figures cover only a part, run it again at a lower rate"
        return ""

    def conditions(self, evaluation: Evaluation[LoadMeasurement]) -> Mapping[str, str]:
        """Returns the options, and the queries that a workload sent, for how long, and how many."""
        options, run = evaluation.measurement.options, evaluation.measurement.run
        conditions = option_conditions(options)
        if _of_a_file(evaluation.measurement):
            # a file, which is identified by its checksum and determines the duration
            return conditions | {
                "load": f"{run.source} ({short_checksum(run.checksum)}) at {run.rate_qps:g} queries/s"
            }
        if options.max_duration_s is not None:
            duration, queries = f"{options.max_duration_s:g} s", "as many as are due"
        else:
            duration, queries = f"at least {options.min_duration_s:g} s", f"at least {options.min_queries}"
        length = {"duration": duration, "queries": queries}
        if options.concurrency is not None:
            return conditions | length
        load_text = options.arrival + (f" at {options.rate_qps:g} queries/s" if options.rate_qps else "")
        if options.arrival.partition(":")[0] in _CHANGES_WITH_TIME:
            more = "" if options.max_duration_s is not None else f" and {queries} queries"
            return conditions | {"load": f"{load_text} for {duration}{more}"}
        return conditions | {"load": load_text, **length}

    def equal_conditions(self, one: LoadMeasurement, other: LoadMeasurement) -> Collection[str]:
        """Returns the conditions of the schedule, if queries were due at the same times."""
        return _OF_THE_SCHEDULE if one.run.checksum == other.run.checksum != "" else ()

    def run_times(self, evaluation: Evaluation[LoadMeasurement]) -> RunTimes:
        run = evaluation.measurement.run
        try:
            return RunTimes.of_queries(run.queries.since(run.cut_ns))
        except ValueError as error:
            raise ValueError("query that counts") from error

    def figures(self, measurements: Sequence[LoadMeasurement]) -> tuple[str, ...]:
        """Returns only the throughput where the queries were all due at once; see ``Queries.due_at_once``."""
        return (THROUGHPUT,) if any(each.run.queries.due_at_once for each in measurements) else FIGURES


def _of_a_file(load: LoadMeasurement) -> bool:
    """Returns whether the schedule came from a file, which is identified by its checksum."""
    return load.options.concurrency is None and load.options.scenario is None and load.run.seed is None


def _words(evaluation: Evaluation, load: LoadMeasurement) -> Iterator[str]:
    options = load.options
    yield from load_words(evaluation, options)
    yield from words_of("latency_bound", options.latency_bound_ms)
    if options.scenario is not None:
        yield f"--scenario={options.scenario.value}"
        yield from words_of("initial_qps", options.rate_qps or None)
    elif options.concurrency is not None:
        yield f"--concurrency={options.concurrency}"
    else:
        yield from words_of("initial_qps", options.rate_qps)
        yield f"--arrival={options.arrival}"
    if options.max_duration_s is not None:
        yield from words_of("duration", options.max_duration_s)
    else:
        yield from words_of("min_duration", options.min_duration_s)
        yield from words_of("min_queries", options.min_queries)
