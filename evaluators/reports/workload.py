"""The workload report: what became of the queries of a workload, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from evaluators.evaluation import Evaluation
from evaluators.loadgen.queries import Outcome
from evaluators.loadgen.record import LoadKind, LoadOptions
from evaluators.loadgen.summary import LoadSummary, Spread
from evaluators.reports.base import Column, Report, Row, Value
from evaluators.reports.columns import EVALUATION_COLUMNS, STATUS_COLUMN, describe

_NS_PER_MS = 1_000_000
_PERCENTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99", 99.9: "p99_9"}
_SPREADS = {
    "service": ("p50", "p99"),
    "queue": ("p50", "p99"),
    "batch": ("p50", "p99"),
    "predict": ("p50", "p99"),
    "lag": ("p99",),
}
_OUTCOMES = {
    "answered": Outcome.ANSWERED,
    "failed": Outcome.FAILED,
    "timed_out": Outcome.TIMED_OUT,
    "waiting": Outcome.WAITING,
}


def _latency_columns() -> Iterator[Column]:
    for name in _PERCENTILES.values():
        shown = name.replace("_", ".")
        yield Column(f"latency_ms_{name}", f"{shown} (ms)")
        yield Column(f"latency_ms_{name}_low", f"{shown} low (ms)")
        yield Column(f"latency_ms_{name}_high", f"{shown} high (ms)")


class WorkloadReport(Report):
    """One row for each workload; the figures are those of ``LoadSummary``.

    A percentile that falls on queries without a right answer is infinite. The judged one is that which the
    bound is for. ``stopped`` and ``invalid`` are the
    reasons, and empty where a run was neither.
    """

    name: ClassVar[str] = "workload"
    summary: ClassVar[str] = (
        "latency under load in ms with 95 % intervals, rates, and what became of the queries"
    )
    kind: ClassVar[str] = LoadKind.WORKLOAD.value
    columns: ClassVar[tuple[Column, ...]] = (
        *EVALUATION_COLUMNS,
        Column("arrival", "arrival"),
        Column("seed", "seed"),
        Column("schedule_checksum", "schedule"),
        Column("concurrency", "concurrency"),
        Column("rate_qps", "asked for (queries/s)", decimals=2),
        Column("target_qps", "target (queries/s)", decimals=2),
        Column("achieved_qps", "achieved (queries/s)", decimals=2),
        Column("latency_bound_ms", "bound (ms)"),
        Column("goodput_qps", "goodput (queries/s)", decimals=2),
        Column("late_share", "late (share)", decimals=4),
        *_latency_columns(),
        Column("judged_percentile", "judged percentile"),
        Column("latency_ms_judged", "judged (ms)"),
        Column("latency_ms_judged_low", "judged low (ms)"),
        Column("latency_ms_judged_high", "judged high (ms)"),
        Column("kept_bound", "kept the bound"),
        *(
            Column(f"{part}_ms_{name}", f"{part} {name} (ms)")
            for part, names in _SPREADS.items()
            for name in names
        ),
        Column("queries", "queries"),
        *(Column(name, name.replace("_", " ")) for name in _OUTCOMES),
        Column("repeated_answers", "repeated answers"),
        Column("mean_batch_size", "mean batch size", decimals=2),
        Column("stopped", "stopped"),
        Column("invalid", "INVALID"),
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation]) -> Iterator[Row]:
        """Yields one row for each workload among the ``evaluations``, in their order."""
        for evaluation in evaluations:
            load = evaluation.load
            if load is None or load.options.kind is not LoadKind.WORKLOAD:
                continue
            options, [run, *_] = load.options, load.runs
            summary = LoadSummary.of(run.queries, options.latency_bound_ns, run.cut_ns, options.percentile)
            yield {
                **describe(evaluation),
                "arrival": run.source,
                "seed": run.seed,
                "schedule_checksum": run.checksum or None,
                "concurrency": options.concurrency,
                "rate_qps": run.rate_qps or None,
                "target_qps": summary.target_qps,
                "achieved_qps": summary.achieved_qps,
                "latency_bound_ms": options.latency_bound_ms,
                "goodput_qps": summary.goodput_qps,
                "late_share": summary.late_share,
                **_latency(summary),
                **_judged(summary, options),
                **_parts(summary),
                "queries": summary.queries,
                **{name: summary.outcomes[outcome] for name, outcome in _OUTCOMES.items()},
                "repeated_answers": summary.repeated_answers,
                "mean_batch_size": _mean_batch_size(summary),
                "stopped": run.stopped or None,
                "invalid": run.invalid or None,
            }


def _latency(summary: LoadSummary) -> dict[str, Value]:
    """The percentiles with the ends of their intervals."""
    found = {each.percent: each for each in summary.percentiles}
    values: dict[str, Value] = {}
    for percent, name in _PERCENTILES.items():
        each = found.get(percent)
        values[f"latency_ms_{name}"] = _ms(each.value_ns if each else None)
        values[f"latency_ms_{name}_low"] = _ms(each.low_ns if each else None)
        values[f"latency_ms_{name}_high"] = _ms(each.high_ns if each else None)
    return values


def _judged(summary: LoadSummary, options: LoadOptions) -> dict[str, Value]:
    """The percentile that the bound is for, and whether it kept that; None where there is no bound."""
    judged, bound_ns = summary.percentile(options.percentile), options.latency_bound_ns
    return {
        "judged_percentile": options.percentile,
        "latency_ms_judged": _ms(judged.value_ns if judged else None),
        "latency_ms_judged_low": _ms(judged.low_ns if judged else None),
        "latency_ms_judged_high": _ms(judged.high_ns if judged else None),
        "kept_bound": judged.value_ns <= bound_ns if judged and bound_ns is not None else None,
    }


def _parts(summary: LoadSummary) -> dict[str, Value]:
    """Where the time went."""
    spreads: dict[str, Spread | None] = {
        "service": summary.service,
        "queue": summary.queue,
        "batch": summary.batch,
        "predict": summary.predict,
        "lag": summary.harness_lag,
    }
    return {
        f"{part}_ms_{name}": _ms(getattr(spread, f"{name}_ns")) if spread else None
        for part, spread in spreads.items()
        for name in _SPREADS[part]
    }


def _mean_batch_size(summary: LoadSummary) -> float | None:
    """The mean over the batches, not over the queries; None where the system does not tell."""
    batches = sum(queries / size for size, queries in summary.batch_sizes.items())
    return sum(summary.batch_sizes.values()) / batches if batches else None


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / _NS_PER_MS
