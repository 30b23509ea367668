"""Reports on load: workloads, searches for the highest rate, the searches' probes, and mixes of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.load.measurement import (
    SIDES,
    LoadMeasurement,
    LoadOptions,
    MixMeasurement,
    MixSearchMeasurement,
    RateSearchMeasurement,
    invalid_reason,
    load_s,
)
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.load.latency_parts import PARTS, LatencyParts, latency_parts
from inferometer.evaluators.load.queries import LoadRun, Outcome
from inferometer.evaluators.reports.base import (
    CONDITIONS_COLUMN,
    EVALUATION_COLUMNS,
    INVALID_COLUMN,
    NAME_COLUMNS,
    STABILITY_COLUMN,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    Report,
    Row,
    Value,
    describe,
    describe_names,
    describe_verdict,
    in_ms,
    known,
    ms,
    row_of,
)
from inferometer.evaluators.statistics import percentile

_PERCENTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p99_9"}
_SPREADS = (
    *((name, name, each) for name in ("service", "queue", "batch", "predict") for each in ("p50", "p99")),
    ("lag", "harness_lag", "p99"),
)
"""The stages of a query's time: the key, the attribute of ``LoadSummary``, and the percentile."""
_WITHOUT_ANSWER = {each.name.lower(): each for each in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.WAITING)}
_OUTCOMES = {"answered": Outcome.ANSWERED, **_WITHOUT_ANSWER}
_ENDS = {"": "value_ns", "_low": "low_ns", "_high": "high_ns"}


class _Loaded(NamedTuple):
    """A run with its figures."""

    options: LoadOptions
    run: LoadRun
    summary: LoadSummary


def _percentile_columns(name: str, percent: float | None = None) -> Iterator[Column[_Loaded]]:
    """Yields the columns of a percentile, or of the judged one, and of the ends of its interval."""
    detail, shown = int(name not in {"p50", "p99"}), name.replace("_", ".")
    for end, attribute in _ENDS.items():
        heading, value = f"{shown}{end.replace('_', ' ')} (ms)", partial(_percentile_ms, percent, attribute)
        yield Column(f"latency_ms_{name}{end}", heading, detail=3 if end else detail, value=value)


def _percentile_ms(percent: float | None, attribute: str, of: _Loaded) -> float | None:
    found = of.summary.percentile(of.options.percentile if percent is None else percent)
    return in_ms(getattr(found, attribute)) if found else None


def _kept_bound(of: _Loaded) -> bool | None:
    judged, bound_ns = of.summary.percentile(of.options.percentile), of.options.latency_bound_ns
    return judged.value_ns <= bound_ns if judged and bound_ns is not None else None


def _counted(outcome: Outcome, of: _Loaded) -> int:
    return of.summary.outcomes[outcome]


def _mean_batch_size(of: _Loaded) -> float | None:
    """Returns the mean batch size over batches, not queries; None if the system does not report batches."""
    sizes = of.summary.batch_sizes
    batches = sum(queries / size for size, queries in sizes.items())
    return sum(sizes.values()) / batches if batches else None


_SEED: tuple[Column[_Loaded], ...] = (
    Column("seed", "seed", detail=2, value="run.seed"),
    Column("schedule_checksum", "schedule", detail=3, value=known("run.checksum")),
)
_BOUND = Column("latency_bound_ms", "bound (ms)", value="options.latency_bound_ms")
_LATE = Column("late_share", "late (share)", decimals=4, value="summary.late_fraction")
_STOPPED: Column[_Loaded] = Column("stopped", "stopped", wraps=True, value=known("run.stopped"))
_WORKLOAD: tuple[Column[_Loaded], ...] = (
    Column("arrival", "arrival", detail=2, value="run.source"),
    *_SEED,
    Column("concurrency", "concurrency", detail=2, value="options.concurrency"),
    Column("rate_qps", "asked for (queries/s)", 2, detail=2, value=known("run.rate_qps")),
    Column("target_qps", "target (queries/s)", decimals=2, detail=1, value="summary.target_qps"),
    Column("achieved_qps", "achieved (queries/s)", decimals=2, value="summary.achieved_qps"),
    _BOUND,
    Column("goodput_qps", "goodput (queries/s)", decimals=2, value="summary.goodput_qps"),
    _LATE,
    *(column for percent, name in _PERCENTILES.items() for column in _percentile_columns(name, percent)),
    Column("judged_percentile", "judged percentile", detail=1, value="options.percentile"),
    *_percentile_columns("judged"),
    Column("kept_bound", "kept the bound", stays=True, value=_kept_bound),
    *(
        Column(f"{key}_ms_{name}", f"{key} {name} (ms)", detail=2, value=ms(f"summary.{stage}.{name}_ns"))
        for key, stage, name in _SPREADS
    ),
    Column("queries", "queries", detail=1, value="summary.queries"),
    *(
        Column(name, name.replace("_", " "), detail=1, value=partial(_counted, outcome))
        for name, outcome in _OUTCOMES.items()
    ),
    Column("repeated_answers", "repeated answers", detail=2, value="summary.repeated_answers"),
    Column("mean_batch_size", "mean batch size", decimals=2, detail=2, value=_mean_batch_size),
    _STOPPED,
)


def _of_load(load: LoadMeasurement) -> dict[str, Value]:
    """Returns the values of ``_WORKLOAD``."""
    return row_of(_WORKLOAD, _Loaded(load.options, load.run, LoadSummary.of_load(load)))


class WorkloadReport(Report[LoadMeasurement]):
    """One row for each workload; the figures are those of ``LoadSummary``.

    A percentile that falls on queries without a correct answer is infinite. The latency bound applies to the
    judged percentile. ``stopped`` and ``invalid`` are the reasons; both are empty for a valid, complete run.
    """

    name = "workload"
    summary = "latency under load in ms with 95 % intervals, rates, and what became of the queries"
    takes = (LoadMeasurement,)
    columns = (
        *EVALUATION_COLUMNS,
        VERDICT_COLUMN,
        *_WORKLOAD,
        INVALID_COLUMN,
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[LoadMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            verdict = describe_verdict(evaluation, evaluation.measurement.invalid)
            yield {**describe(evaluation), **verdict, **_of_load(evaluation.measurement)}


_PARTS: tuple[Column[LatencyParts], ...] = (
    Column("figure", "latency", stays=True, value="figure"),
    Column("source", "source", stays=True, value="source"),
    Column("queries", "queries", detail=1, value=lambda of: len(of.latencies_ns)),
    Column("latency_ms", "ms", value=ms("latency_ns")),
    Column("shortest_ms", "shortest (ms)", detail=1, value=lambda of: in_ms(float(of.latencies_ns.min()))),
    Column("longest_ms", "longest (ms)", detail=1, value=lambda of: in_ms(float(of.latencies_ns.max()))),
    *(Column(f"{name}_ms", f"{name} (ms)", value=ms(f"parts_ns.{name}")) for name in PARTS),
    Column("round_trip_ms", "round trip (ms)", detail=1, value=ms("round_trip_ns")),
    Column("explained_share", "explained (share)", value="explained_share"),
    Column("missing", "missing", wraps=True, value=known("missing")),
)


class PartsReport(Report[LoadMeasurement]):
    """One row for each figure of a workload's latency that can be split into parts; see ``LatencyParts``.

    ``latency_ms`` is the mean over ``queries``, which the parts add up to; of a percentile, these are the
    queries around it, whose latencies lie between ``shortest_ms`` and ``longest_ms``.
    """

    name = "parts"
    summary = "the parts of the latency under load: network, queue, compute and the rest, by percentile"
    takes = (LoadMeasurement,)
    columns = (*NAME_COLUMNS, *_PARTS, STABILITY_COLUMN)

    def rows(self, evaluations: Sequence[Evaluation[LoadMeasurement]]) -> Iterator[Row]:
        """Yields the rows of each evaluation; none if neither its server nor its answers told the times."""
        for evaluation in evaluations:
            for each in latency_parts(evaluation.measurement.run):
                yield {**describe_names(evaluation), **row_of(_PARTS, each)}


def _note(search: RateSearchMeasurement) -> str | None:
    return (search.answer.note or None) if search.answer else "the search was stopped"


_SEARCH: tuple[Column[RateSearchMeasurement], ...] = (
    Column("arrival", "arrival", detail=2, value="options.arrival"),
    Column("seed", "seed", detail=2, value="options.seed"),
    Column("percentile", "percentile", detail=1, value="options.percentile"),
    _BOUND,
    Column("max_qps", "max QPS", decimals=2, value="answer.rate_qps"),
    Column("max_qps_low", "low", decimals=2, value="answer.low_qps"),
    Column("max_qps_high", "high", decimals=2, value="answer.high_qps"),
    Column("method", "method", detail=1, value="answer.method"),
    Column("note", "note", wraps=True, value=_note),
    INVALID_COLUMN,
    Column("probes", "probes", detail=1, value=lambda of: len(of.probes)),
    Column(
        "stopped_probes", "stopped early", detail=1, value=lambda of: sum(bool(x.stopped) for x in of.probes)
    ),
    Column(
        "invalid_probes", "INVALID probes", detail=1, value=lambda of: sum(bool(x.invalid) for x in of.probes)
    ),
    Column("load_s", "load (s)", decimals=1, detail=1, value=lambda of: load_s(*of.probes)),
)


class MaxQpsReport(Report[RateSearchMeasurement]):
    """One row for each search.

    ``max_qps`` is empty if no rate keeps the bound or none was found; ``method`` and ``note`` give the
    reason. The upper end is empty if this machine could not send more. ``invalid`` is the reason why the
    answer cannot be trusted; see ``invalid_reason``.
    """

    name = "max_qps"
    aliases = ("max-qps",)
    summary = "the highest rate that keeps a latency bound, with its 95 % interval"
    takes = (RateSearchMeasurement,)
    columns = (*EVALUATION_COLUMNS, VERDICT_COLUMN, *_SEARCH, STATUS_COLUMN, CONDITIONS_COLUMN)

    def rows(self, evaluations: Sequence[Evaluation[RateSearchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            search = evaluation.measurement
            verdict = describe_verdict(evaluation, invalid_reason(search))
            yield {**describe(evaluation), **row_of(_SEARCH, search), **verdict}


_COMMON = len(EVALUATION_COLUMNS) + 1


def answer_columns(
    key: str, heading: str, answer: str, decimals: int = 3, detail: int = 0
) -> Iterator[Column]:
    """Yields the columns of the rate of the answer at a path, and of the ends of its interval."""
    for end, name in (("", "rate_qps"), ("_low", "low_qps"), ("_high", "high_qps")):
        shown = f"{heading}{end.replace('_', ' ')}"
        yield Column(f"{key}{end}", shown, decimals, detail, value=f"{answer}.{name}")


_MIX_SEARCH: tuple[Column[MixSearchMeasurement], ...] = (
    Column("name", "name in the mix", value="name"),
    Column("others", "beside", detail=2, wraps=True, value=lambda of: "; ".join(of.others) or None),
    *answer_columns("factor", "factor", "factor"),
    Column("limited_by", "limited by", stays=True, value=known("limited_by")),
    *answer_columns("own_factor", "own factor", "own_factor", detail=1),
    Column("own_note", "own note", 3, 2, wraps=True, value=known("own.note")),
    Column("rate_qps", "rate at factor 1 (queries/s)", decimals=2, detail=1, value="options.rate_qps"),
)


class MixSearchReport(Report[MixSearchMeasurement]):
    """One row for each model of each search for the largest factor of a mix.

    ``factor`` is that of the mix, the same for all of its models, and ``max_qps`` the model's rate at it. At
    ``own_factor``, the model reaches its own bound. All other columns are those of ``MaxQpsReport``.
    """

    name = "mix_search"
    summary = "the largest factor by which all rates of a mix can grow, with its 95 % interval, and its limit"
    takes = (MixSearchMeasurement,)
    columns = (*MaxQpsReport.columns[:_COMMON], *_MIX_SEARCH, *MaxQpsReport.columns[_COMMON:])

    def rows(self, evaluations: Sequence[Evaluation[MixSearchMeasurement]]) -> Iterator[Row]:
        for evaluation, row in zip(evaluations, MaxQpsReport().rows(evaluations), strict=True):
            yield {**row, **row_of(_MIX_SEARCH, evaluation.measurement)}


_RATIOS = [f"{key}{end}" for key in ("p50", "judged") for end in ("", "_low", "_high")]
_COUNTS = ("queries", *_OUTCOMES)


def _mix_columns(key: str, heading: str, unit: str = "") -> Iterator[Column]:
    """Yields the columns of p50 and the judged percentile, each with the ends of its interval."""
    for name in _RATIOS:
        said = name.replace("judged", "judged percentile").replace("_", " ")
        yield Column(f"{key}_{name}", f"{heading} {said}{unit}", detail=3 * bool("_" in name and unit))


_MIX: tuple[Column[MixMeasurement], ...] = (
    Column("name", "name in the mix", detail=1, value="name"),
    Column("others", "beside", detail=1, wraps=True, value=lambda of: "; ".join(of.others) or None),
    Column("arrival", "arrival", detail=2, value="options.arrival"),
    Column("seed", "seed", detail=2, value="options.seed"),
    Column("rate_qps", "asked for (queries/s)", decimals=2, value="options.rate_qps"),
    Column("percentile", "judged percentile", value="options.percentile"),
    _BOUND,
    Column("pairs", "pairs of blocks", detail=2, value=lambda of: len(of.alone)),
)


class MixReport(Report[MixMeasurement]):
    """One row for each model of each mix; the figures are those of ``LoadSummary``.

    A percentile that falls on queries without a correct answer is infinite, and its ratio is empty.
    """

    name = "mix"
    summary = "several models alone and together: latency in ms, and their ratio, with 95 % intervals"
    takes = (MixMeasurement,)
    columns = (
        *EVALUATION_COLUMNS,
        VERDICT_COLUMN,
        *_MIX,
        *(column for side in SIDES for column in _mix_columns(f"{side}_ms", side, " (ms)")),
        *_mix_columns("ratio", "together / alone"),
        *(Column(f"kept_bound_{side}", f"kept the bound {side}", stays=True) for side in SIDES),
        *(
            Column(f"{name}_{side}", f"{name.replace('_', ' ')} {side}", detail=2)
            for side in SIDES
            for name in _COUNTS
        ),
        Column("stopped", "stopped", wraps=True),
        INVALID_COLUMN,
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[MixMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            mix = evaluation.measurement
            verdict = describe_verdict(evaluation, mix.invalid)
            row = {**describe(evaluation), **verdict, **row_of(_MIX, mix)}
            stops = {run.stopped for run in (*mix.alone, *mix.together)} - {""}
            row["stopped"] = "; ".join(sorted(stops)) or None
            for side in SIDES:
                of_side = _of_load(mix.side(side))
                row |= {f"{side}_ms_{key}": of_side[f"latency_ms_{key}"] for key in _RATIOS}
                row |= {f"{key}_{side}": of_side[key] for key in ("kept_bound", *_COUNTS)}
            ratios: list[float | None] = []
            for percent in (50.0, mix.options.percentile):
                found = mix.interference(percent)
                ratios += (found.ratio, *(found.interval or (None, None))) if found else (None, None, None)
            yield row | dict(zip((f"ratio_{key}" for key in _RATIOS), ratios, strict=True))


def _count(outcome: Outcome, of: _Loaded) -> int:
    return of.run.queries.count(outcome)


def _sent(of: _Loaded) -> int:
    return int(np.count_nonzero(of.run.queries.outcome != Outcome.UNSENT))


def _lag_ms(of: _Loaded) -> float | None:
    lag_ns = of.run.queries.lag_ns
    return in_ms(percentile(lag_ns, 99) if len(lag_ns) else None)


_PROBE: tuple[Column[_Loaded], ...] = (
    Column("rate_qps", "rate (queries/s)", decimals=2, value="run.rate_qps"),
    VERDICT_COLUMN,
    *_SEED,
    Column("load_s", "load (s)", decimals=1, detail=1, value=lambda of: load_s(of.run)),
    Column("queries", "queries", value=_sent),
    *(
        Column(name, name.replace("_", " "), detail=1, value=partial(_count, outcome))
        for name, outcome in _WITHOUT_ANSWER.items()
    ),
    Column("judged_queries", "judged queries", detail=1, value="summary.queries"),
    _LATE,
    Column("latency_ms_p50", "p50 (ms)", value=partial(_percentile_ms, 50.0, "value_ns")),
    Column("percentile", "percentile", value="options.percentile"),
    Column("latency_ms_percentile", "at it (ms)", value=partial(_percentile_ms, None, "value_ns")),
    Column("latency_ms_percentile_low", "low (ms)", value=partial(_percentile_ms, None, "low_ns")),
    Column("latency_ms_percentile_high", "high (ms)", value=partial(_percentile_ms, None, "high_ns")),
    Column("latency_ms_p99_9", "p99.9 (ms)", value=partial(_percentile_ms, 99.9, "value_ns")),
    _BOUND,
    Column("lag_ms_p99", "lag p99 (ms)", detail=2, value=_lag_ms),
    _STOPPED,
    INVALID_COLUMN,
)


class ProbesReport(Report[RateSearchMeasurement]):
    """One row for each probe of each search, in order; shown by ``max_qps --probes``.

    Latencies and the late fraction cover the queries by which the search judges a probe, without the empty
    start. A percentile that falls on queries without a correct answer is reported as infinite.
    """

    name = "probes"
    summary = "every probe of a search for the highest rate"
    takes = (RateSearchMeasurement, MixSearchMeasurement)
    columns = (*NAME_COLUMNS, Column("probe", "probe"), *_PROBE, STABILITY_COLUMN)

    def rows(self, evaluations: Sequence[Evaluation[RateSearchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            names, options = describe_names(evaluation), evaluation.measurement.options
            for number, run in enumerate(evaluation.measurement.probes):
                probe = _Loaded(options, run, LoadSummary.of_probe(run, options))
                verdict = describe_verdict(evaluation, run.invalid)
                yield {**names, "probe": number, **verdict, **row_of(_PROBE, probe)}
