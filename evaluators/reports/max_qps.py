"""The report of searches: the highest rate that keeps a latency bound, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from evaluators.evaluation import Evaluation
from evaluators.loadgen.probe_summary import load_s
from evaluators.loadgen.record import LoadKind
from evaluators.reports.base import Column, Report, Row
from evaluators.reports.columns import EVALUATION_COLUMNS, STATUS_COLUMN, describe


class MaxQpsReport(Report):
    """One row for each search.

    ``max_qps`` is empty where no rate keeps the bound or none was found, as ``method`` and ``note`` say; the
    upper end is empty where this machine could not send more.
    """

    name: ClassVar[str] = "max_qps"
    summary: ClassVar[str] = "the highest rate that keeps a latency bound, with its 95 % interval"
    kind: ClassVar[str] = LoadKind.MAX_QPS.value
    columns: ClassVar[tuple[Column, ...]] = (
        *EVALUATION_COLUMNS,
        Column("arrival", "arrival"),
        Column("seed", "seed"),
        Column("percentile", "percentile"),
        Column("latency_bound_ms", "bound (ms)"),
        Column("max_qps", "max QPS", decimals=2),
        Column("max_qps_low", "low", decimals=2),
        Column("max_qps_high", "high", decimals=2),
        Column("method", "method"),
        Column("note", "note"),
        Column("probes", "probes"),
        Column("stopped_probes", "stopped early"),
        Column("invalid_probes", "INVALID probes"),
        Column("load_s", "load (s)", decimals=1),
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields one row for each search among the ``evaluations``, in their order."""
        for evaluation in evaluations:
            load = evaluation.load
            if load is None or load.options.kind is not LoadKind.MAX_QPS:
                continue
            options, answer = load.options, load.answer
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
                "probes": len(load.runs),
                "stopped_probes": sum(bool(run.stopped) for run in load.runs),
                "invalid_probes": sum(bool(run.invalid) for run in load.runs),
                "load_s": sum(map(load_s, load.runs)),
            }
