"""LoadGen's verdict and figures in the summary, beside ours."""

from __future__ import annotations

from collections.abc import Iterator

from evaluators.loadgen.mlperf_comparison import ComparedFigure, compared
from evaluators.loadgen.mlperf_result import MlperfResult, Scenario
from evaluators.loadgen.record import LoadRecord

_NS_PER_MS = 1_000_000
_UNITS = {
    Scenario.SINGLE_STREAM: "queries",
    Scenario.MULTI_STREAM: "queries of eight samples",
    Scenario.SERVER: "queries",
    Scenario.OFFLINE: "samples",
}


def mlperf_rows(load: LoadRecord) -> Iterator[tuple[str, str]]:
    """The rows of a scenario of MLPerf; none where there was none."""
    result, scenario = load.mlperf, load.options.scenario
    if result is None or scenario is None:
        return
    yield "LoadGen", _verdict(result, scenario)
    for reason in result.reasons:
        yield "", reason
    if not result.clock_known:
        yield "", "its schedule is not known: queries count from when it issued them"
    if result.early_stopping_ns is not None:
        name = f"p{load.options.percentile:g}"
        yield "", f"{name} with the reserve of early stopping {_ms(result.early_stopping_ns)}"
    figures = compared(load.runs[0].queries, scenario, result)
    for number, figure in enumerate(figures):
        yield ("" if number else "compared"), _figure(figure)
    yield "logs", result.log_directory


def _verdict(result: MlperfResult, scenario: Scenario) -> str:
    verdict = "VALID" if result.valid else "INVALID"
    counted = f"{result.queries} {_UNITS[scenario]}" if result.queries else "no figures"
    return f"{verdict}, {scenario.value}, {counted}, LoadGen {result.version}".rstrip()


def _figure(figure: ComparedFigure) -> str:
    if figure.percent is None:
        loadgen, ours = f"{figure.loadgen:.2f}/s", "none" if figure.ours is None else f"{figure.ours:.2f}/s"
    else:
        loadgen, ours = _ms(figure.loadgen), "never" if figure.ours is None else _ms(figure.ours)
    name = "rate" if figure.percent is None else f"p{figure.percent:g}"
    difference = "" if figure.difference is None else f"  {100 * figure.difference:+.2f} %"
    return f"{name:<6}LoadGen {loadgen}  ours {ours}{difference}"


def _ms(value_ns: float) -> str:
    return f"{value_ns / _NS_PER_MS:.3f} ms"
