"""The summary that is printed at the end of a workload or a search."""

from __future__ import annotations

import math
from collections.abc import Iterator

import click

from client.load.mlperf_rows import mlperf_rows
from evaluators.evaluation import Evaluation
from evaluators.loadgen.intervals import PercentileInterval
from evaluators.loadgen.max_qps_answer import Method, rate_text
from evaluators.loadgen.probe_summary import ProbeSummary
from evaluators.loadgen.record import LoadKind, LoadRecord, LoadRun
from evaluators.loadgen.summary import LoadSummary, Spread

_NS_PER_MS = 1_000_000


def print_load_summary(evaluation: Evaluation) -> None:
    """Prints what load gave on stdout."""
    load = evaluation.load
    if load is None:
        return
    for name, value in (*load_rows(load), ("evaluation", evaluation.id)):
        click.echo(f"{name:<12}{value}")


def print_interrupted(load: LoadRecord) -> None:
    """Prints on stdout what there was when load was interrupted, and that it is not kept."""
    click.echo(f"{'INTERRUPTED':<12}not published; what there was until then:")
    for name, value in load_rows(load):
        click.echo(f"{name:<12}{value}")


def load_rows(load: LoadRecord) -> Iterator[tuple[str, str]]:
    """The figures, each with its name; a line without one belongs to the line above."""
    return _search_rows(load) if load.options.kind is LoadKind.MAX_QPS else _run_rows(load, load.runs[0])


def answer_text(load: LoadRecord) -> str:
    """The answer of a search in one line."""
    answer, bound = load.answer, load.options.latency_bound_ms
    if answer is None:
        return "no answer: the search was stopped"
    method = Method(answer.method)
    rate = rate_text(method, answer.rate_qps, answer.low_qps, answer.high_qps)
    unit = "" if method is Method.NONE else " queries/s"
    return f"{rate}{unit} at p{load.options.percentile:g} <= {bound:g} ms"


def _search_rows(load: LoadRecord) -> Iterator[tuple[str, str]]:
    yield "max QPS", answer_text(load)
    if answer := load.answer:
        yield "method", answer.method + (f"; {answer.note}" if answer.note else "")
    for number, run in enumerate(load.runs):
        summary = ProbeSummary.of(run, load.options)
        late = "" if summary.late_share is None else f"{100 * summary.late_share:6.2f} % late"
        remarks = f"stopped: {run.stopped}  " * bool(run.stopped) + f"INVALID: {run.invalid}" * bool(
            run.invalid
        )
        yield (
            ("probes" if number == 0 else ""),
            f"{run.rate_qps:10.2f} queries/s  {len(run.queries):7} queries  {late}  {remarks}".rstrip(),
        )


def _run_rows(load: LoadRecord, run: LoadRun) -> Iterator[tuple[str, str]]:
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
            yield name, _spread(spread)
    if summary.batch_sizes:
        sizes = ", ".join(f"{size}: {count}" for size, count in sorted(summary.batch_sizes.items()))
        yield "batches", f"queries by the size of their batch: {sizes}"
    yield from mlperf_rows(load)


def _percentile(each: PercentileInterval) -> str:
    if math.isinf(each.value_ns):
        return f"p{each.percent:<5g} never: it falls on queries without an answer"
    interval = "" if each.low_ns is None else f"  [{_ms(each.low_ns)}, {_ms(each.high_ns)}]"
    return f"p{each.percent:<5g} {_ms(each.value_ns)}{interval} ms"


def _verdict(judged: PercentileInterval, bound_ns: int) -> str:
    """Whether a percentile kept the bound, and whether that is sure."""
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


def _spread(spread: Spread) -> str:
    return f"p50 {_ms(spread.p50_ns)}  p99 {_ms(spread.p99_ns)}  max {_ms(spread.max_ns)}  ms"


def _rate(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} queries/s"
