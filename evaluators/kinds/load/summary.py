"""The figures of a run under load, and the summary of a workload, a search or a mix as rows.

Figures are rates, percentiles with intervals, and the parts of the latency. For an MLPerf scenario, LoadGen's
figures are shown beside ours for the same queries; only the clocks differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.kinds.load.measurement import (
    SIDES,
    LoadMeasurement,
    LoadOptions,
    Method,
    MixMeasurement,
    MixSearchMeasurement,
    MlperfResult,
    RateSearchMeasurement,
    Scenario,
    invalid_reason,
    judged_queries,
    rate_text,
)
from inferometer.evaluators.load.latency_parts import latency_parts
from inferometer.evaluators.load.queries import LoadRun, Outcome, Queries
from inferometer.evaluators.statistics import (
    NEVER_NS,
    PERCENTS,
    PercentileInterval,
    percentile,
    percentile_intervals,
)

_NS_PER_S = 1_000_000_000
_MEDIAN, _FAR_TAIL, _FAR_TAIL_QUERIES = 50.0, 99.9, 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one part of the queries' time, in nanoseconds."""

    p50_ns: float
    p99_ns: float
    max_ns: int

    @classmethod
    def of(cls, values_ns: NDArray[np.int64]) -> Spread | None:
        """Computes the percentiles; None if there are no values."""
        if not len(values_ns):
            return None
        return cls(percentile(values_ns, 50), percentile(values_ns, 99), int(values_ns.max()))


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The figures of a run.

    They cover the queries that count: those that were due after the empty start, and were sent before the run
    stopped. Each of them is in one of ``outcomes``.

    Attributes:
        queries: The number of queries that count.
        cut_queries: The number of queries that were due during the empty start.
        repeated_answers: The number of answers to queries that already had one, over the whole run.
        outcomes: The number of counted queries with each outcome, without ``UNSENT``.
        target_qps: The rate at which they were due: n - 1 gaps divided by the time from the first to the
            last; None for fewer than two.
        achieved_qps: Right answers per second, from when the first of them was due to the last answer, or to
            the last arrival if that is later. All answers that arrived in this time are counted, so a run
            above the system's capacity shows the capacity, whatever was waiting. None if no time passed.
        goodput_qps: The same for answers within the bound; equal to ``achieved_qps`` if there is no bound.
        late_fraction: The fraction of queries without a right answer within the bound (or, if there is no
            bound, without a right answer); None if there are no queries.
        percentiles: The percentiles of the latency from when a query was due to its answer, ascending: those
            in ``PERCENTS`` and the one to which the bound applies; empty if there are no queries. They have
            no intervals if all queries were due at once; see ``Queries.due_at_once``.
        service: The time from sending a query to its answer, over queries with a right answer.
        queue: How long queries waited for their batch to begin; None if unknown.
        batch: How long their batch was assembled, until the prediction began; None if unknown.
        predict: How long the prediction of their batch took; None if unknown.
        batch_sizes: The number of answered queries by batch size, as far as it is known.
        harness_lag: How late queries were sent, over the whole run; None if none was sent.
    """

    queries: int
    cut_queries: int
    repeated_answers: int
    outcomes: Mapping[Outcome, int]
    target_qps: float | None
    achieved_qps: float | None
    goodput_qps: float | None
    late_fraction: float | None
    percentiles: tuple[PercentileInterval, ...]
    service: Spread | None
    queue: Spread | None
    batch: Spread | None
    predict: Spread | None
    batch_sizes: Mapping[int, int]
    harness_lag: Spread | None

    @classmethod
    def of(
        cls,
        queries: Queries,
        bound_ns: int | None = None,
        cut_ns: int = 0,
        judged_percent: float | None = None,
    ) -> LoadSummary:
        """Computes the figures.

        Args:
            queries: The whole run.
            bound_ns: The latency within which an answer is in time; None if there is no bound.
            cut_ns: The time from which queries count; see ``validity.steady_from_ns``.
            judged_percent: The percentile to which the bound applies, which is added to the others.
        """
        sent = queries.chosen(queries.outcome != Outcome.UNSENT)
        counted = sent.since(cut_ns)
        answered = counted.chosen(counted.outcome == Outcome.ANSWERED)
        right = len(answered)
        in_time = right if bound_ns is None else int(np.count_nonzero(answered.latency_ns <= bound_ns))
        sizes, counts = np.unique(answered.batch_size[answered.batch_size > 0], return_counts=True)
        achieved_qps, goodput_qps = _answered_qps(sent, counted, bound_ns)
        return cls(
            queries=len(counted),
            cut_queries=len(sent) - len(counted),
            repeated_answers=queries.repeated,
            outcomes=MappingProxyType(
                {outcome: counted.count(outcome) for outcome in Outcome if outcome is not Outcome.UNSENT}
            ),
            target_qps=_due_qps(counted),
            achieved_qps=achieved_qps,
            goodput_qps=goodput_qps,
            late_fraction=(len(counted) - in_time) / len(counted) if len(counted) else None,
            percentiles=_percentiles(counted, judged_percent),
            service=Spread.of(answered.done_ns - answered.sent_ns),
            queue=Spread.of(answered.queue_ns[answered.queue_ns >= 0]),
            batch=Spread.of(answered.batch_ns[answered.batch_ns >= 0]),
            predict=Spread.of(answered.predict_ns[answered.predict_ns >= 0]),
            batch_sizes=MappingProxyType(dict(zip(sizes.tolist(), counts.tolist(), strict=True))),
            harness_lag=Spread.of(queries.lag_ns),
        )

    @classmethod
    def of_load(cls, load: LoadMeasurement) -> LoadSummary:
        """Computes the figures of a workload, with the percentile to which its bound applies."""
        options, run = load.options, load.run
        return cls.of(run.queries, options.latency_bound_ns, run.cut_ns, options.percentile)

    @classmethod
    def of_probe(cls, run: LoadRun, options: LoadOptions) -> LoadSummary:
        """Computes the figures of a run of a search, over the queries that the search judges.

        The percentiles are the median, the one to which the bound applies, and 99.9 from 1,000 queries on.
        """
        bound_ns, percent = options.latency_bound_ns, options.percentile
        found = cls.of(judged_queries(run, bound_ns or 0), bound_ns, 0, percent)
        shown = {_MEDIAN, percent, *([_FAR_TAIL] if found.queries >= _FAR_TAIL_QUERIES else [])}
        return replace(found, percentiles=tuple(p for p in found.percentiles if p.percent in shown))

    def percentile(self, percent: float) -> PercentileInterval | None:
        """Returns one of ``percentiles``; None if it is missing."""
        return next((each for each in self.percentiles if each.percent == percent), None)


def _percentiles(queries: Queries, judged_percent: float | None) -> tuple[PercentileInterval, ...]:
    percents = {*PERCENTS, *([] if judged_percent is None else [judged_percent])}
    found = percentile_intervals(queries.latency_ns, sorted(percents))
    if not queries.due_at_once:
        return found
    return tuple(replace(each, low_ns=None, high_ns=None) for each in found)


def _due_qps(queries: Queries) -> float | None:
    """Returns the rate at which queries were due."""
    if len(queries) < 2:
        return None
    span_ns = int(queries.scheduled_ns[-1] - queries.scheduled_ns[0])
    return (len(queries) - 1) * _NS_PER_S / span_ns if span_ns > 0 else None


def _answered_qps(sent: Queries, counted: Queries, bound_ns: int | None) -> tuple[float | None, float | None]:
    """Returns the rate of right answers, and the rate of those that arrived within the bound."""
    if not len(counted):
        return None, None
    begin_ns = int(counted.scheduled_ns[0])
    answered = sent.chosen((sent.outcome == Outcome.ANSWERED) & (sent.done_ns >= begin_ns))
    end_ns = max(int(counted.scheduled_ns[-1]), int(answered.done_ns.max(initial=0)))
    if end_ns == begin_ns:
        return None, None
    per_ns = _NS_PER_S / (end_ns - begin_ns)
    in_time = len(answered) if bound_ns is None else np.count_nonzero(answered.latency_ns <= bound_ns)
    return len(answered) * per_ns, float(in_time) * per_ns


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One of LoadGen's figures, and ours.

    Attributes:
        percent: Which latency percentile it is, in percent; None for the rate.
        loadgen: LoadGen's figure, in nanoseconds or queries/s.
        ours: Our figure, computed by LoadGen's rule; None if there is none, such as for a percentile that
            falls on a query without a right answer.
    """

    percent: float | None
    loadgen: float
    ours: float | None

    @property
    def difference(self) -> float | None:
        """The relative difference of our figure from LoadGen's; None if it cannot be computed."""
        if self.ours is None or not self.loadgen:
            return None
        return self.ours / self.loadgen - 1


def compared(queries: Queries, scenario: Scenario, result: MlperfResult) -> tuple[ComparedFigure, ...]:
    """Returns the rate and the percentiles that LoadGen reports, each with ours.

    Ours follow LoadGen's rules: of n latencies in order, the percentile for a share p is number floor(n · p),
    counted from 0; a query of multi_stream takes as long as the slowest of its samples. The rate of n queries
    is n - 1 divided by the time until the last one was issued (single_stream) or until the last one issued
    was done, whatever was done after it (server); for offline, it is all samples divided by the time to the
    last answer (``PerformanceSummary::LogDetail`` in LoadGen's ``results.cc``).
    """
    latency_ns = _query_latency_ns(queries, scenario)
    figures = [] if result.rate_qps is None else [_compared_rate(queries, scenario, result.rate_qps)]
    for percent, loadgen_ns in result.percentiles_ns:
        place = int(len(latency_ns) * percent / 100)
        ours_ns = int(latency_ns[place]) if place < len(latency_ns) else NEVER_NS
        figures.append(ComparedFigure(percent, loadgen_ns, None if ours_ns == NEVER_NS else ours_ns))
    return tuple(figures)


def _query_latency_ns(queries: Queries, scenario: Scenario) -> NDArray[np.int64]:
    """Returns the latencies of LoadGen's queries in ascending order."""
    samples = scenario.samples_per_query
    whole = len(queries) - len(queries) % samples
    slowest: NDArray[np.int64] = queries.latency_ns[:whole].reshape(-1, samples).max(axis=1)
    return np.sort(slowest)


def _compared_rate(queries: Queries, scenario: Scenario, loadgen_qps: float) -> ComparedFigure:
    answered = queries.outcome == Outcome.ANSWERED
    count, until_ns = int(np.count_nonzero(answered)), 0
    if scenario is Scenario.OFFLINE:
        until_ns = int(queries.done_ns[answered].max(initial=0))
    elif len(queries):  # these are in the order in which they were issued
        count -= 1
        until_ns = int((queries.done_ns if scenario is Scenario.SERVER else queries.sent_ns)[-1])
    return ComparedFigure(None, loadgen_qps, count * _NS_PER_S / until_ns if until_ns > 0 else None)


_NS_PER_MS = 1_000_000
_UNITS = {Scenario.MULTI_STREAM: "queries of eight samples", Scenario.OFFLINE: "samples"}


def _mlperf_rows(load: LoadMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the rows for an MLPerf scenario; none if no scenario was run."""
    result, scenario = load.mlperf, load.options.scenario
    if result is None or scenario is None:
        return
    verdict = "VALID" if result.valid else "INVALID"
    counted = f"{result.queries} {_UNITS.get(scenario, 'queries')}" if result.queries else "no figures"
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
    """Returns a one-line description of a search's answer."""
    answer, bound = search.answer, search.options.latency_bound_ms
    if answer is None:
        return "no answer: the search was stopped"
    unit = "" if answer.method == Method.NONE else " queries/s"
    verdict = "INVALID: " if invalid_reason(search) else ""
    return f"{verdict}{rate_text(answer)}{unit} at p{search.options.percentile:g} <= {bound:g} ms"


def mix_search_rows(search: MixSearchMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the figures of one model of a search: the factors of the mix and its own, and the probes."""
    yield "load", f"{search.name}, {search.options.arrival} at {search.options.rate_qps:g} queries/s"
    yield "beside", "; ".join(search.others) or "no other model"
    if factor := search.factor:
        limited = f", limited by {search.limited_by}" if search.limited_by else ""
        verdict = "INVALID: " if invalid_reason(search) else ""
        unit = "" if factor.method == Method.NONE else " times the rates of the mix"
        yield "factor", f"{verdict}{rate_text(factor)}{unit}{limited}"
    if own := search.own_factor:
        yield "own factor", f"{rate_text(own)} ({own.method})" + (own.note and f"; {own.note}")
    yield from search_rows(search)


def search_rows(search: RateSearchMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the figures of a search, each with its name; a row without a name continues the row above."""
    yield "max QPS", answer_text(search)
    if reason := invalid_reason(search):
        yield "", reason
    if answer := search.answer:
        yield "method", answer.method + (f"; {answer.note}" if answer.note else "")
    for number, run in enumerate(search.probes):
        summary = LoadSummary.of_probe(run, search.options)
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


def run_rows(load: LoadMeasurement, *, blocks: bool = False) -> Iterator[tuple[str, str]]:
    """Yields the figures of a workload, or of ``blocks`` whose pauses are no time without arrivals."""
    run, summary, bound_ms = load.run, LoadSummary.of_load(load), load.options.latency_bound_ms
    if run.invalid:
        yield "INVALID", run.invalid
    if run.stopped:
        yield "stopped", run.stopped
    outcomes = ", ".join(f"{count} {each.name.lower()}" for each, count in summary.outcomes.items() if count)
    cut = f", after {summary.cut_queries} of the empty start" if run.cut_ns else ""
    yield "queries", f"{summary.queries} ({outcomes or 'none'}){cut}"
    for reason, count in run.reasons.items():
        yield "", f"{count} failed: {reason}"
    if summary.repeated_answers:
        yield "", f"{summary.repeated_answers} more answers for queries that had one"
    due = "" if blocks else f"{_rate_text(summary.target_qps)} due, "
    yield "rate", f"{due}{_rate_text(summary.achieved_qps)} answered"
    if bound_ms is not None:
        yield "goodput", f"{_rate_text(summary.goodput_qps)} within {bound_ms:g} ms"
    for number, each in enumerate(summary.percentiles):
        yield ("" if number else "latency"), _percentile(each)
    judged, bound_ns = summary.percentile(load.options.percentile), load.options.latency_bound_ns
    if judged and bound_ns is not None:
        yield "bound", _verdict(judged, bound_ns)
    for name in ("service", "queue", "batch", "predict", "harness_lag"):
        spread: Spread | None = getattr(summary, name)
        if spread is not None:
            yield (
                name.removeprefix("harness_"),
                f"p50 {_ms(spread.p50_ns)}  p99 {_ms(spread.p99_ns)}  max {_ms(spread.max_ns)}  ms",
            )
    if summary.batch_sizes:
        sizes = ", ".join(f"{size}: {count}" for size, count in sorted(summary.batch_sizes.items()))
        yield "batches", f"queries by the size of their batch: {sizes}"
    yield from _server_rows(load)
    yield from _mlperf_rows(load)


def mix_rows(mix: MixMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the figures of one model of a mix: those of two workloads, and the ratios of their latencies."""
    yield "load", f"{mix.name}, {mix.options.arrival} at {mix.options.rate_qps:g} queries/s"
    yield "beside", "; ".join(mix.others) or "no other model: together is the same as alone"
    if mix.invalid:
        yield "INVALID", mix.invalid
    for side in SIDES:
        yield side, f"{len(mix.alone)} blocks"
        yield from run_rows(mix.side(side), blocks=True)
    for number, percent in enumerate(sorted({_MEDIAN, mix.options.percentile})):
        found = mix.interference(percent)
        text = "not known: a block has no query, or its percentile falls on queries without an answer"
        if found is not None:
            ends = "" if found.interval is None else " [{:.3f}, {:.3f}]".format(*found.interval)
            text = f"{found.ratio:.3f}{ends} together / alone"
        yield ("" if number else "ratio"), f"p{percent:<5g} {text}"


def _server_rows(load: LoadMeasurement) -> Iterator[tuple[str, str]]:
    """Yields the parts of the latency, if statistics of the server were read."""
    name = "parts"
    for each in latency_parts(load.run) if load.run.server else ():
        parts = "  ".join(f"{part} {_ms(value_ns)}" for part, value_ns in each.parts_ns.items())
        count, ends = len(each.latencies_ns), (each.latencies_ns.min(), each.latencies_ns.max())
        whose = f"{count} queries of {_ms(ends[0])} to {_ms(ends[1])} ms by {each.source}"
        yield name, f"{each.figure:<6}{_ms(each.latency_ns)} ms, {whose}: {parts}"
        name = ""
        if each.missing:
            yield name, each.missing
    for series in load.run.server:
        if series.note:
            yield "statistics", f"missing: {series.note}"


def _percentile(each: PercentileInterval) -> str:
    if math.isinf(each.value_ns):
        return f"p{each.percent:<5g} never: it falls on queries without an answer"
    interval = "" if each.low_ns is None else f"  [{_ms(each.low_ns)}, {_ms(each.high_ns)}]"
    return f"p{each.percent:<5g} {_ms(each.value_ns)}{interval} ms"


def _verdict(judged: PercentileInterval, bound_ns: int) -> str:
    """Returns a text that says whether a percentile kept the bound, and whether that is certain."""
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


def _rate_text(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} queries/s"
