"""The kind of measurement of a search for the highest rate that keeps a latency bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.comparing.verdict import MAX_QPS
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import Again, Kind, Rows, drawn, own_values, top_figures
from inferometer.evaluators.kinds.load.documents import RateSearchDocuments
from inferometer.evaluators.kinds.load.options import (
    further_words,
    known_text,
    load_description,
    load_words,
    option_conditions,
    option_values,
    options_text,
)
from inferometer.evaluators.kinds.load.plot import MaxQpsPlot
from inferometer.evaluators.kinds.load.report import MaxQpsReport, ProbesReport
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.summary import search_rows
from inferometer.evaluators.kinds.rate_search.measurement import RateAnswer, RateSearchMeasurement
from inferometer.evaluators.kinds.words import system_words, words_of
from inferometer.evaluators.max_qps.answer import invalid_reason
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.reports.trace_report import SpanSource

if TYPE_CHECKING:
    from inferometer.evaluators.comparing.times import RunTimes


class RateSearchKind(Kind[RateSearchMeasurement]):
    """A search for the highest rate."""

    name = "rate_search"
    title = "max QPS"
    phrase = "a search for the highest rate"
    collections = ("load_query",)
    reports = ("max_qps",)
    headlines = ("max_qps",)
    tabled = (ProbesReport,)

    keeps_interrupted = False

    def documents(self) -> RateSearchDocuments:
        return RateSearchDocuments()

    def invalid(self, measurement: RateSearchMeasurement) -> str:
        return invalid_reason(measurement)

    def unanswered(self, measurement: RateSearchMeasurement) -> str:
        return "no query was answered"

    def overview(self, measurement: RateSearchMeasurement) -> Row:
        return top_figures(None, measurement.answer.rate_qps if measurement.answer else None)

    def summary(self, evaluation: Evaluation[RateSearchMeasurement]) -> Rows:
        return search_rows(evaluation.measurement)

    def description(self, evaluation: Evaluation[RateSearchMeasurement]) -> Rows:
        options = evaluation.measurement.options
        yield from load_description(evaluation, options)
        bound = f"p{options.percentile:g} <= {options.latency_bound_ms:g} ms"
        yield "load", f"search for the highest rate with {bound}, from {options.rate_qps:g} queries/s"
        yield (
            "",
            f"{options.arrival}, seed {options.seed}, {known_text('budget', options.time_budget_s, 's')}",
        )
        probes = f"probes of {options.min_duration_s:g} s and {options.min_queries} queries at the least"
        yield "", f"{probes}; each schedule: agent info evaluation max-qps --probes --id={evaluation.id}"
        yield "", ", ".join(options_text(options))

    def document(
        self,
        evaluation: Evaluation[RateSearchMeasurement],
        timed: Evaluation[RateSearchMeasurement],
        spans: SpanSource,
    ) -> dict[str, Any]:
        [found] = MaxQpsReport().rows([evaluation])
        figures = {
            "options": option_values("max_qps", evaluation.measurement.options),
            "search": own_values(MaxQpsReport(), found),
            "probes": [own_values(ProbesReport(), row) for row in ProbesReport().rows([evaluation])],
        }
        return {"load": figures}

    def drawings(self, evaluation: Evaluation[RateSearchMeasurement], most_points: int) -> Iterator[Drawing]:
        yield from drawn(MaxQpsPlot(), MaxQpsReport(), evaluation)

    def again(self, evaluation: Evaluation[RateSearchMeasurement]) -> Again:
        options = evaluation.measurement.options
        words = ["predict", "max-qps", *system_words(evaluation), *load_words(evaluation, options)]
        words += words_of("latency_bound", options.latency_bound_ms)
        words += words_of("initial_qps", options.rate_qps)
        words += [f"--arrival={options.arrival}"]
        words += words_of("min_duration", options.min_duration_s)
        words += words_of("min_queries", options.min_queries)
        words += words_of("tolerance", options.tolerance)
        words += words_of("time_budget", options.time_budget_s)
        words += further_words(MaxQpsRequest, options)
        return Again(tuple(words))

    def unfit(self, measurement: RateSearchMeasurement) -> str:
        if measurement.answer is None:
            return "has no answer; leave it out"
        reason = invalid_reason(measurement)
        return f"is INVALID: {reason}; its answer is not to be trusted, run it again" if reason else ""

    def conditions(self, evaluation: Evaluation[RateSearchMeasurement]) -> Mapping[str, str]:
        options = evaluation.measurement.options
        bound = "none" if options.latency_bound_ms is None else f"{options.latency_bound_ms:g} ms"
        question = {"load": options.arrival, "percentile": f"{options.percentile:g}", "latency bound": bound}
        return option_conditions(options) | question

    def run_times(self, evaluation: Evaluation[RateSearchMeasurement]) -> RunTimes:
        raise ValueError("times of its own, as it is a search")

    def figures(self, measurements: Sequence[RateSearchMeasurement]) -> tuple[str, ...]:
        return (MAX_QPS,)

    def answer(self, measurement: RateSearchMeasurement) -> RateAnswer | None:
        return measurement.answer
