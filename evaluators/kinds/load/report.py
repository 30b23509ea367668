"""Reports on load: workloads, searches for the highest rate, the searches' probes, and mixes of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
from inferometer.evaluators.kinds.load.summary import LoadSummary, Spread
from inferometer.evaluators.load.latency_parts import PARTS, latency_parts
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
)
from inferometer.evaluators.statistics import PercentileInterval, percentile

_PERCENTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p99_9"}
_SPREADS = {**dict.fromkeys(("service", "queue", "batch", "predict"), ("p50", "p99")), "lag": ("p99",)}
_WITHOUT_ANSWER = {each.name.lower(): each for each in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.WAITING)}
_OUTCOMES = {"answered": Outcome.ANSWERED, **_WITHOUT_ANSWER}
_OF_SUMMARY = ("target_qps", "achieved_qps", "goodput_qps", "queries", "repeated_answers")


def _interval_columns(name: str) -> tuple[Column, ...]:
    key, shown = f"latency_ms_{name}", name.replace("_", ".")
    low, high = (Column(f"{key}_{end}", f"{shown} {end} (ms)", detail=3) for end in ("low", "high"))
    return Column(key, f"{shown} (ms)", detail=int(name not in {"p50", "p99"})), low, high


def _outcome_columns(names: Iterable[str], detail: int = 0) -> Iterator[Column]:
    return (Column(name, name.replace("_", " "), detail=detail) for name in names)


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
        Column("arrival", "arrival", detail=2),
        Column("seed", "seed", detail=2),
        Column("schedule_checksum", "schedule", detail=3),
        Column("concurrency", "concurrency", detail=2),
        Column("rate_qps", "asked for (queries/s)", decimals=2, detail=2),
        Column("target_qps", "target (queries/s)", decimals=2, detail=1),
        Column("achieved_qps", "achieved (queries/s)", decimals=2),
        Column("latency_bound_ms", "bound (ms)"),
        Column("goodput_qps", "goodput (queries/s)", decimals=2),
        Column("late_share", "late (share)", decimals=4),
        *(column for name in _PERCENTILES.values() for column in _interval_columns(name)),
        Column("judged_percentile", "judged percentile", detail=1),
        *_interval_columns("judged"),
        Column("kept_bound", "kept the bound", stays=True),
        *(
            Column(f"{part}_ms_{name}", f"{part} {name} (ms)", detail=2)
            for part, names in _SPREADS.items()
            for name in names
        ),
        Column("queries", "queries", detail=1),
        *_outcome_columns(_OUTCOMES, detail=1),
        Column("repeated_answers", "repeated answers", detail=2),
        Column("mean_batch_size", "mean batch size", decimals=2, detail=2),
        Column("stopped", "stopped", wraps=True),
        INVALID_COLUMN,
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[LoadMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            options, run = evaluation.measurement.options, evaluation.measurement.run
            yield {
                **describe(evaluation),
                "arrival": run.source,
                **_of_run(run),
                **describe_verdict(evaluation, evaluation.measurement.invalid),
                "concurrency": options.concurrency,
                "rate_qps": run.rate_qps or None,
                "latency_bound_ms": options.latency_bound_ms,
                **_of_load(evaluation.measurement),
            }


def _of_load(load: LoadMeasurement) -> dict[str, Value]:
    """Returns the figures of the queries of a workload."""
    summary = LoadSummary.of_load(load)
    return {
        "late_share": summary.late_fraction,
        **{name: getattr(summary, name) for name in _OF_SUMMARY},
        **_percentiles(summary, load.options),
        **_spreads(summary),
        **{name: summary.outcomes[outcome] for name, outcome in _OUTCOMES.items()},
        "mean_batch_size": _mean_batch_size(summary),
    }


def _of_run(run: LoadRun) -> dict[str, Value]:
    """Returns the seed and checksum of a run's schedule, and why the run ended early."""
    return {"seed": run.seed, "schedule_checksum": run.checksum or None, "stopped": run.stopped or None}


def _interval(key: str, found: PercentileInterval | None) -> dict[str, Value]:
    """Returns a percentile and the ends of its interval, as columns whose names begin with ``key``."""
    ends = (found.value_ns, found.low_ns, found.high_ns) if found else (None, None, None)
    return dict(zip((key, f"{key}_low", f"{key}_high"), map(in_ms, ends), strict=True))


def _percentiles(summary: LoadSummary, options: LoadOptions) -> dict[str, Value]:
    """Returns the percentiles with their intervals, and whether the judged percentile keeps the bound."""
    found = {each.percent: each for each in summary.percentiles}
    values: dict[str, Value] = {}
    for percent, name in _PERCENTILES.items():
        values |= _interval(f"latency_ms_{name}", found.get(percent))
    judged, bound_ns = summary.percentile(options.percentile), options.latency_bound_ns
    return {
        **values,
        "judged_percentile": options.percentile,
        **_interval("latency_ms_judged", judged),
        "kept_bound": judged.value_ns <= bound_ns if judged and bound_ns is not None else None,
    }


def _spreads(summary: LoadSummary) -> dict[str, Value]:
    """Returns the percentiles of the stages of a query's time."""
    found: dict[str, Value] = {}
    for stage, names in _SPREADS.items():
        spread: Spread | None = summary.harness_lag if stage == "lag" else getattr(summary, stage)
        for name in names:
            found[f"{stage}_ms_{name}"] = in_ms(getattr(spread, f"{name}_ns")) if spread else None
    return found


def _mean_batch_size(summary: LoadSummary) -> float | None:
    """Returns the mean batch size over batches, not queries; None if the system does not report batches."""
    batches = sum(queries / size for size, queries in summary.batch_sizes.items())
    return sum(summary.batch_sizes.values()) / batches if batches else None


class PartsReport(Report[LoadMeasurement]):
    """One row for each figure of a workload's latency that can be split into parts; see ``LatencyParts``.

    ``latency_ms`` is the mean over ``queries``, which the parts add up to; of a percentile, these are the
    queries around it, whose latencies lie between ``shortest_ms`` and ``longest_ms``.
    """

    name = "parts"
    summary = "the parts of the latency under load: network, queue, compute and the rest, by percentile"
    takes = (LoadMeasurement,)
    columns = (
        *NAME_COLUMNS,
        Column("figure", "latency", stays=True),
        Column("source", "source", stays=True),
        Column("queries", "queries", detail=1),
        Column("latency_ms", "ms"),
        Column("shortest_ms", "shortest (ms)", detail=1),
        Column("longest_ms", "longest (ms)", detail=1),
        *(Column(f"{name}_ms", f"{name} (ms)") for name in PARTS),
        Column("round_trip_ms", "round trip (ms)", detail=1),
        Column("explained_share", "explained (share)"),
        Column("missing", "missing", wraps=True),
        STABILITY_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[LoadMeasurement]]) -> Iterator[Row]:
        """Yields the rows of each evaluation; none if neither its server nor its answers told the times."""
        for evaluation in evaluations:
            for each in latency_parts(evaluation.measurement.run):
                yield {
                    **describe_names(evaluation),
                    "figure": each.figure,
                    "source": each.source,
                    "queries": len(each.latencies_ns),
                    "latency_ms": in_ms(each.latency_ns),
                    "shortest_ms": in_ms(float(each.latencies_ns.min())),
                    "longest_ms": in_ms(float(each.latencies_ns.max())),
                    **{f"{name}_ms": in_ms(each.parts_ns.get(name)) for name in PARTS},
                    "round_trip_ms": in_ms(each.round_trip_ns),
                    "explained_share": each.explained_share,
                    "missing": each.missing or None,
                }


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
    columns = (
        *EVALUATION_COLUMNS,
        VERDICT_COLUMN,
        Column("arrival", "arrival", detail=2),
        Column("seed", "seed", detail=2),
        Column("percentile", "percentile", detail=1),
        Column("latency_bound_ms", "bound (ms)"),
        Column("max_qps", "max QPS", decimals=2),
        Column("max_qps_low", "low", decimals=2),
        Column("max_qps_high", "high", decimals=2),
        Column("method", "method", detail=1),
        Column("note", "note", wraps=True),
        INVALID_COLUMN,
        Column("probes", "probes", detail=1),
        Column("stopped_probes", "stopped early", detail=1),
        Column("invalid_probes", "INVALID probes", detail=1),
        Column("load_s", "load (s)", decimals=1, detail=1),
        STATUS_COLUMN,
        CONDITIONS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[RateSearchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            search = evaluation.measurement
            options, answer = search.options, search.answer
            yield {
                **describe(evaluation),
                "arrival": options.arrival,
                "seed": options.seed,
                "percentile": options.percentile,
                "latency_bound_ms": options.latency_bound_ms,
                "max_qps": answer.rate_qps if answer else None,
                "max_qps_low": answer.low_qps if answer else None,
                "max_qps_high": answer.high_qps if answer else None,
                "method": answer.method if answer else None,
                "note": (answer.note or None) if answer else "the search was stopped",
                **describe_verdict(evaluation, invalid_reason(search)),
                "probes": len(search.probes),
                "stopped_probes": sum(bool(run.stopped) for run in search.probes),
                "invalid_probes": sum(bool(run.invalid) for run in search.probes),
                "load_s": load_s(*search.probes),
            }


_ENDS = ("", "_low", "_high")
_COMMON = len(EVALUATION_COLUMNS) + 1


class MixSearchReport(Report[MixSearchMeasurement]):
    """One row for each model of each search for the largest factor of a mix.

    ``factor`` is that of the mix, the same for all of its models, and ``max_qps`` the model's rate at it. At
    ``own_factor``, the model reaches its own bound. All other columns are those of ``MaxQpsReport``.
    """

    name = "mix_search"
    summary = "the largest factor by which all rates of a mix can grow, with its 95 % interval, and its limit"
    takes = (MixSearchMeasurement,)
    columns = (
        *MaxQpsReport.columns[:_COMMON],
        Column("name", "name in the mix"),
        Column("others", "beside", detail=2, wraps=True),
        *(Column(f"factor{end}", f"factor{end}".replace("_", " ")) for end in _ENDS),
        Column("limited_by", "limited by", stays=True),
        *(Column(f"own_factor{end}", f"own factor{end}".replace("_", " "), detail=1) for end in _ENDS),
        Column("own_note", "own note", detail=2, wraps=True),
        Column("rate_qps", "rate at factor 1 (queries/s)", decimals=2, detail=1),
        *MaxQpsReport.columns[_COMMON:],
    )

    def rows(self, evaluations: Sequence[Evaluation[MixSearchMeasurement]]) -> Iterator[Row]:
        for evaluation, row in zip(evaluations, MaxQpsReport().rows(evaluations), strict=True):
            search = evaluation.measurement
            more: dict[str, Value] = {
                "name": search.name,
                "others": "; ".join(search.others) or None,
                "limited_by": search.limited_by or None,
                "own_note": (search.own.note or None) if search.own else None,
                "rate_qps": search.options.rate_qps,
            }
            for key, answer in (("factor", search.factor), ("own_factor", search.own_factor)):
                ends = (answer.rate_qps, answer.low_qps, answer.high_qps) if answer else (None,) * 3
                more |= dict(zip((key + end for end in _ENDS), ends, strict=True))
            yield {**row, **more}


_RATIOS = [f"{key}{end}" for key in ("p50", "judged") for end in ("", "_low", "_high")]
_COUNTS = ("queries", *_OUTCOMES)


def _mix_columns(key: str, heading: str, unit: str = "") -> Iterator[Column]:
    """Yields the columns of p50 and the judged percentile, each with the ends of its interval."""
    for name in _RATIOS:
        said = name.replace("judged", "judged percentile").replace("_", " ")
        yield Column(f"{key}_{name}", f"{heading} {said}{unit}", detail=3 * bool("_" in name and unit))


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
        Column("name", "name in the mix", detail=1),
        Column("others", "beside", detail=1, wraps=True),
        Column("arrival", "arrival", detail=2),
        Column("seed", "seed", detail=2),
        Column("rate_qps", "asked for (queries/s)", decimals=2),
        Column("percentile", "judged percentile"),
        Column("latency_bound_ms", "bound (ms)"),
        Column("pairs", "pairs of blocks", detail=2),
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
            mix, options = evaluation.measurement, evaluation.measurement.options
            of_options = ("arrival", "seed", "rate_qps", "percentile", "latency_bound_ms")
            row: dict[str, Value] = {
                **describe(evaluation),
                **describe_verdict(evaluation, mix.invalid),
                "name": mix.name,
                "others": "; ".join(mix.others) or None,
                **{name: getattr(options, name) for name in of_options},
                "pairs": len(mix.alone),
            }
            stops = {run.stopped for run in (*mix.alone, *mix.together)} - {""}
            row["stopped"] = "; ".join(sorted(stops)) or None
            for side in SIDES:
                of_side = _of_load(mix.side(side))
                row |= {f"{side}_ms_{key}": of_side[f"latency_ms_{key}"] for key in _RATIOS}
                row |= {f"{key}_{side}": of_side[key] for key in ("kept_bound", *_COUNTS)}
            ratios: list[float | None] = []
            for percent in (50.0, options.percentile):
                found = mix.interference(percent)
                ratios += (found.ratio, *(found.interval or (None, None))) if found else (None, None, None)
            yield row | dict(zip((f"ratio_{key}" for key in _RATIOS), ratios, strict=True))


class ProbesReport(Report[RateSearchMeasurement]):
    """One row for each probe of each search, in order; shown by ``max_qps --probes``.

    Latencies and the late fraction cover the queries by which the search judges a probe, without the empty
    start. A percentile that falls on queries without a correct answer is reported as infinite.
    """

    name = "probes"
    summary = "every probe of a search for the highest rate"
    takes = (RateSearchMeasurement, MixSearchMeasurement)
    columns = (
        *NAME_COLUMNS,
        Column("probe", "probe"),
        Column("rate_qps", "rate (queries/s)", decimals=2),
        VERDICT_COLUMN,
        Column("seed", "seed", detail=2),
        Column("schedule_checksum", "schedule", detail=3),
        Column("load_s", "load (s)", decimals=1, detail=1),
        Column("queries", "queries"),
        *_outcome_columns(_WITHOUT_ANSWER, detail=1),
        Column("judged_queries", "judged queries", detail=1),
        Column("late_share", "late (share)", decimals=4),
        Column("latency_ms_p50", "p50 (ms)"),
        Column("percentile", "percentile"),
        Column("latency_ms_percentile", "at it (ms)"),
        Column("latency_ms_percentile_low", "low (ms)"),
        Column("latency_ms_percentile_high", "high (ms)"),
        Column("latency_ms_p99_9", "p99.9 (ms)"),
        Column("latency_bound_ms", "bound (ms)"),
        Column("lag_ms_p99", "lag p99 (ms)", detail=2),
        Column("stopped", "stopped", wraps=True),
        INVALID_COLUMN,
        STABILITY_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[RateSearchMeasurement]]) -> Iterator[Row]:
        for evaluation in evaluations:
            names = describe_names(evaluation)
            for number, run in enumerate(evaluation.measurement.probes):
                verdict = describe_verdict(evaluation, run.invalid)
                yield {**names, "probe": number, **verdict, **_figures(run, evaluation.measurement.options)}


def _figures(run: LoadRun, options: LoadOptions) -> dict[str, Value]:
    queries, summary = run.queries, LoadSummary.of_probe(run, options)
    judged, median, tail = (summary.percentile(each) for each in (options.percentile, 50.0, 99.9))
    lag_ns = queries.lag_ns
    return {
        **_of_run(run),
        "rate_qps": run.rate_qps,
        "load_s": load_s(run),
        "queries": int(np.count_nonzero(queries.outcome != Outcome.UNSENT)),
        **{name: queries.count(outcome) for name, outcome in _WITHOUT_ANSWER.items()},
        "judged_queries": summary.queries,
        "late_share": summary.late_fraction,
        "latency_ms_p50": in_ms(median.value_ns if median else None),
        "percentile": options.percentile,
        **_interval("latency_ms_percentile", judged),
        "latency_ms_p99_9": in_ms(tail.value_ns if tail else None),
        "latency_bound_ms": options.latency_bound_ms,
        "lag_ms_p99": in_ms(percentile(lag_ns, 99) if len(lag_ns) else None),
    }
