"""The summary of a workload or a search, as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, Scenario
from inferometer.evaluators.kinds.rate_search.measurement import RateSearchMeasurement
from inferometer.evaluators.load.intervals import PercentileInterval
from inferometer.evaluators.load.summary import LoadSummary
from inferometer.evaluators.max_qps.answer import Method, invalid_reason, rate_text
from inferometer.evaluators.max_qps.probe import ProbeSummary
from inferometer.evaluators.mlperf.comparison import ComparedFigure, compared

_NS_PER_MS = 1_000_000
_UNITS = {
    Scenario.SINGLE_STREAM: "queries",
    Scenario.MULTI_STREAM: "queries of eight samples",
    Scenario.SERVER: "queries",
    Scenario.OFFLINE: "samples",
}


def _mlperf_rows(load: LoadMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the rows of a scenario of MLPerf; none if there was none."""
    result, scenario = load.mlperf, load.options.scenario
    if result is None or scenario is None:
        return
    verdict = "VALID" if result.valid else "INVALID"
    counted = f"{result.queries} {_UNITS[scenario]}" if result.queries else "no figures"
    yield "LoadGen", f"{verdict}, {scenario.value}, {counted}, LoadGen {result.version}".rstrip()
    for reason in result.reasons:
        yield "", reason
    if not result.clock_known:
        yield "", "its schedule is not known: queries count from when it issued them"
    if result.early_stopping_ns is not None:
        name = f"p{load.options.percentile:g}"
        yield "", f"{name} with the reserve of early stopping {_exact_ms(result.early_stopping_ns)}"
    for number, figure in enumerate(compared(load.run.queries, scenario, result)):
        yield ("" if number else "compared"), _figure(figure)
    yield "logs", result.log_directory


def _figure(figure: ComparedFigure) -> str:
    if figure.percent is None:
        loadgen, ours = f"{figure.loadgen:.2f}/s", "none" if figure.ours is None else f"{figure.ours:.2f}/s"
    else:
        loadgen, ours = _exact_ms(figure.loadgen), "never" if figure.ours is None else _exact_ms(figure.ours)
    name = "rate" if figure.percent is None else f"p{figure.percent:g}"
    difference = "" if figure.difference is None else f"  {100 * figure.difference:+.2f} %"
    return f"{name:<6}LoadGen {loadgen}  ours {ours}{difference}"


def _exact_ms(value_ns: float) -> str:
    return f"{value_ns / _NS_PER_MS:.3f} ms"


def answer_text(search: RateSearchMeasurement) -> str:
    """Returns the answer of a search in one line."""
    answer, bound = search.answer, search.options.latency_bound_ms
    if answer is None:
        return "no answer: the search was stopped"
    method = Method(answer.method)
    rate = rate_text(method, answer.rate_qps, answer.low_qps, answer.high_qps)
    unit = "" if method is Method.NONE else " queries/s"
    verdict = "INVALID: " if invalid_reason(search) else ""
    return f"{verdict}{rate}{unit} at p{search.options.percentile:g} <= {bound:g} ms"


def search_rows(search: RateSearchMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the figures of a search, each with its name; a row without one belongs to the row above."""
    yield "max QPS", answer_text(search)
    if reason := invalid_reason(search):
        yield "", reason
    if answer := search.answer:
        yield "method", answer.method + (f"; {answer.note}" if answer.note else "")
    for number, run in enumerate(search.probes):
        summary = ProbeSummary.of(run, search.options.latency_bound_ns, search.options.percentile)
        late = "" if summary.late_fraction is None else f"{100 * summary.late_fraction:6.2f} % late"
        remarks = f"stopped: {run.stopped}  " if run.stopped else ""
        remarks += "INVALID" if run.invalid else ""
        yield (
            ("probes" if number == 0 else ""),
            f"{run.rate_qps:10.2f} queries/s  {len(run.queries):7} queries  {late}  {remarks}".rstrip(),
        )
    invalid = [run.invalid for run in search.probes if run.invalid]
    if invalid and not reason:
        yield "", f"INVALID: {len(invalid)} of {len(search.probes)} probes; the last: {invalid[-1]}"


def run_rows(load: LoadMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the figures of a workload, likewise."""
    run = load.run
    bound_ms = load.options.latency_bound_ms
    summary = LoadSummary.of(run.queries, load.options.latency_bound_ns, run.cut_ns, load.options.percentile)
    if run.invalid:
        yield "INVALID", run.invalid
    if run.stopped:
        yield "stopped", run.stopped
    outcomes = ", ".join(
        f"{count} {outcome.name.lower()}" for outcome, count in summary.outcomes.items() if count
    )
    yield "queries", f"{summary.queries} ({outcomes}), after {summary.cut_queries} of the empty start"
    for reason, count in run.reasons.items():
        yield "", f"{count} failed: {reason}"
    if summary.repeated_answers:
        yield "", f"{summary.repeated_answers} more answers for queries that had one"
    yield "rate", f"{_rate(summary.target_qps)} due, {_rate(summary.achieved_qps)} answered"
    if bound_ms is not None:
        yield "goodput", f"{_rate(summary.goodput_qps)} within {bound_ms:g} ms"
    for number, each in enumerate(summary.percentiles):
        yield ("" if number else "latency"), _percentile(each)
    judged, bound_ns = summary.percentile(load.options.percentile), load.options.latency_bound_ns
    if judged and bound_ns is not None:
        yield "bound", _verdict(judged, bound_ns)
    for name, spread in (
        ("service", summary.service),
        ("queue", summary.queue),
        ("batch", summary.batch),
        ("predict", summary.predict),
        ("lag", summary.harness_lag),
    ):
        if spread is not None:
            yield name, f"p50 {_ms(spread.p50_ns)}  p99 {_ms(spread.p99_ns)}  max {_ms(spread.max_ns)}  ms"
    if summary.batch_sizes:
        sizes = ", ".join(f"{size}: {count}" for size, count in sorted(summary.batch_sizes.items()))
        yield "batches", f"queries by the size of their batch: {sizes}"
    yield from _mlperf_rows(load)


def _percentile(each: PercentileInterval) -> str:
    if math.isinf(each.value_ns):
        return f"p{each.percent:<5g} never: it falls on queries without an answer"
    interval = "" if each.low_ns is None else f"  [{_ms(each.low_ns)}, {_ms(each.high_ns)}]"
    return f"p{each.percent:<5g} {_ms(each.value_ns)}{interval} ms"


def _verdict(judged: PercentileInterval, bound_ns: int) -> str:
    """Returns whether a percentile kept the bound, and whether that is sure."""
    verdict = "kept" if judged.value_ns <= bound_ns else "missed"
    text = f"p{judged.percent:g} {verdict} {bound_ns / _NS_PER_MS:g} ms"
    if judged.low_ns is None:
        return text
    within = judged.low_ns <= bound_ns and (judged.high_ns is None or bound_ns <= judged.high_ns)
    return f"{text}, which is within its interval" if within else text


def _ms(value_ns: float | None) -> str:
    if value_ns is None:
        return "?"
    return "never" if math.isinf(value_ns) else f"{value_ns / _NS_PER_MS:.3f}"


def _rate(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} queries/s"
