"""The figures of a run of a loader alone, as rows of text."""

from __future__ import annotations

from collections.abc import Iterator

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.data import DataOptions
from inferometer.evaluators.kinds.ingestion.measurement import IngestionMeasurement, IngestionSummary
from inferometer.evaluators.kinds.summary import ms_text
from inferometer.evaluators.precision.intervals import AUTOCORRELATION_TIMES, batches_for_interval
from inferometer.evaluators.statistics import values_for_percentile

_NS_PER_MS = 1_000_000
_NS_PER_US = 1000
_BYTES_PER_MB = 1_000_000


def ingestion_rows(evaluation: Evaluation[IngestionMeasurement]) -> tuple[tuple[str, str], ...]:
    """Returns throughput, wait, work of a sample, page cache and failures, by name.

    A row without a name belongs to the row above.
    """
    measured = evaluation.measurement
    summary = IngestionSummary.of(measured)
    return (
        ("data", _data(evaluation)),
        ("throughput", _throughput(measured, summary)),
        *([("CONTRADICTION", summary.contradiction)] if summary.contradiction else []),
        ("wait", _wait(measured, summary)),
        *_interval_rows(measured, summary),
        ("a sample", _sample(measured, summary)),
        ("page cache", _cache(measured.data)),
        ("failures", str(len(measured.failures))),
    )


def _data(evaluation: Evaluation[IngestionMeasurement]) -> str:
    data, dataset = evaluation.measurement.data, evaluation.dataset
    order = f"shuffled by seed {data.seed}" if data.shuffle else "in order"
    reader = "the framework's own iterator, " if data.reader == "framework" else ""
    who = "the calling thread" if not data.workers else str(data)
    return f"{dataset.name} ({data.backend}), {order}, by {reader}{who}"


def _throughput(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.samples_per_s is None or summary.batches_per_s is None:
        return "not known"
    interval = summary.samples_interval
    ends = "" if interval is None else f" [{interval.low:.1f}, {interval.high:.1f}]"
    per_s = f"{summary.samples_per_s:.1f}{ends} samples/s  {summary.batches_per_s:.2f} batches/s"
    if summary.bytes_per_s is not None:
        per_s += f"  {summary.bytes_per_s / _BYTES_PER_MB:.2f} MB/s read"
    samples, seconds = int(measured.times.samples.sum()), measured.elapsed_ns / 1e9
    return f"{per_s}, {samples} samples in {seconds:.3f} s"


def _wait(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.mean_ns is None:
        return f"not known: no batch held {measured.batch_size} samples"
    figures = [f"mean {ms_text(summary.mean_ns, summary.mean_interval_ns)}"]
    for percent, value_ns in ((50, summary.p50_ns), (90, summary.p90_ns), (99, summary.p99_ns)):
        interval = summary.p50_interval_ns if percent == 50 else None
        needs = f"p{percent} needs {values_for_percentile(percent)} full batches"
        figures.append(needs if value_ns is None else f"p{percent} {ms_text(value_ns, interval)}")
    count = len(measured.full_ns)
    return f"{'  '.join(figures)}  ms per batch of {measured.batch_size}, over {count} full batches"


def _interval_rows(measured: IngestionMeasurement, summary: IngestionSummary) -> Iterator[tuple[str, str]]:
    """Yields why there is no interval."""
    full_ns = measured.full_ns
    needed = batches_for_interval(full_ns) if len(full_ns) else 0
    if summary.mean_interval_ns is None and 0 < len(full_ns) < needed:
        why = ": their times are correlated" if needed > AUTOCORRELATION_TIMES else ""
        yield "", f"no 95 % intervals, which need {needed} full batches{why}"


def _sample(measured: IngestionMeasurement, summary: IngestionSummary) -> str:
    if summary.read_ns is None or summary.preprocess_ns is None:
        return (
            "not known: the framework's iterator does not tell" if measured.data.reader != "own" else "none"
        )
    read_us, preprocess_us = (each / _NS_PER_US for each in (summary.read_ns, summary.preprocess_ns))
    busy = "" if summary.busy is None else f"; {100 * summary.busy:.1f} % of the workers' time"
    return f"read {read_us:.1f}  preprocess {preprocess_us:.1f}  us, means in the thread that does so{busy}"


def _cache(data: DataOptions) -> str:
    if data.cached_before is None:
        return "not known: the samples are in memory, or this system does not tell"
    dropped = ", from which it was dropped" if data.dropped else ""
    return f"{100 * data.cached_before:.1f} % of the dataset was in it before{dropped}"
