"""The probes of searches: every rate that was tried, and what its queries told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from evaluators.evaluation import Evaluation
from evaluators.loadgen.probe_summary import ProbeSummary, load_s
from evaluators.loadgen.queries import Outcome
from evaluators.loadgen.record import LoadKind, LoadOptions, LoadRun
from evaluators.reports.base import Column, Report, Row, Value
from evaluators.reports.columns import EVALUATION_COLUMNS, describe
from evaluators.statistics import percentile

_NS_PER_MS = 1_000_000
_NAMES = ("id", "model_name", "framework_name", "batch_size")


class ProbesReport(Report):
    """One row for each probe of each search, in order; what ``--probes`` shows of ``max_qps``.

    Latencies and the late share are over the queries that the search judges a probe by, without the empty
    start. A percentile that falls on queries without a right answer is infinite.
    """

    name: ClassVar[str] = "probes"
    summary: ClassVar[str] = "every probe of a search for the highest rate"
    kind: ClassVar[str] = LoadKind.MAX_QPS.value
    columns: ClassVar[tuple[Column, ...]] = (
        *(column for column in EVALUATION_COLUMNS if column.key in _NAMES),
        Column("probe", "probe"),
        Column("rate_qps", "rate (queries/s)", decimals=2),
        Column("seed", "seed"),
        Column("schedule_checksum", "schedule"),
        Column("load_s", "load (s)", decimals=1),
        Column("queries", "queries"),
        Column("failed", "failed"),
        Column("timed_out", "timed out"),
        Column("waiting", "waiting"),
        Column("judged_queries", "judged queries"),
        Column("late_share", "late (share)", decimals=4),
        Column("latency_ms_p50", "p50 (ms)"),
        Column("percentile", "percentile"),
        Column("latency_ms_percentile", "at it (ms)"),
        Column("latency_ms_percentile_low", "low (ms)"),
        Column("latency_ms_percentile_high", "high (ms)"),
        Column("latency_ms_p99_9", "p99.9 (ms)"),
        Column("latency_bound_ms", "bound (ms)"),
        Column("lag_ms_p99", "lag p99 (ms)"),
        Column("stopped", "stopped"),
        Column("invalid", "INVALID"),
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields the probes of the searches among the ``evaluations``."""
        for evaluation in evaluations:
            load = evaluation.load
            if load is None or load.options.kind is not LoadKind.MAX_QPS:
                continue
            described = describe(evaluation)
            names = {key: described[key] for key in _NAMES}
            for number, run in enumerate(load.runs):
                yield {**names, "probe": number, **_figures(run, load.options)}


def _figures(run: LoadRun, options: LoadOptions) -> dict[str, Value]:
    queries, summary = run.queries, ProbeSummary.of(run, options)
    judged, median, tail = (summary.percentiles.get(each) for each in (options.percentile, 50.0, 99.9))
    lag_ns = queries.lag_ns
    return {
        "rate_qps": run.rate_qps,
        "seed": run.seed,
        "schedule_checksum": run.checksum or None,
        "load_s": load_s(run),
        "queries": int(np.count_nonzero(queries.outcome != Outcome.UNSENT)),
        "failed": queries.count(Outcome.FAILED),
        "timed_out": queries.count(Outcome.TIMED_OUT),
        "waiting": queries.count(Outcome.WAITING),
        "judged_queries": summary.judged,
        "late_share": summary.late_share,
        "latency_ms_p50": _ms(median.value_ns if median else None),
        "percentile": options.percentile,
        "latency_ms_percentile": _ms(judged.value_ns if judged else None),
        "latency_ms_percentile_low": _ms(judged.low_ns if judged else None),
        "latency_ms_percentile_high": _ms(judged.high_ns if judged else None),
        "latency_ms_p99_9": _ms(tail.value_ns if tail else None),
        "latency_bound_ms": options.latency_bound_ms,
        "lag_ms_p99": _ms(percentile(lag_ns, 99) if len(lag_ns) else None),
        "stopped": run.stopped or None,
        "invalid": run.invalid or None,
    }


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / _NS_PER_MS
