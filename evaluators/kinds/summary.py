"""Rows of text on evaluations of any kind, and the figures over a group of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.evaluators.evaluation import Evaluation, Status, TimedMeasurement
from inferometer.evaluators.statistics import (
    AUTOCORRELATION_TIMES,
    Interval,
    TimeFigures,
    batches_for_interval,
    carried_percentile,
    interval_over,
    values_for_percentile,
)
from inferometer.manifests.errors import printable_name


@dataclass(frozen=True, slots=True)
class OverProcesses:
    """A figure over several processes: the mean of the processes' own figures.

    Attributes:
        name: ``p50`` or ``mean``.
        value_ns: The figure, in nanoseconds per batch or step.
        interval_ns: Its 95 % interval.
    """

    name: str
    value_ns: float
    interval_ns: Interval


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes of a group at one trace level.

    Attributes:
        figures: p50 and mean, each only if all processes have it.
        remote: Whether a remote agent ran the model, in a single process of its own.
    """

    trace_level: TraceLevel
    processes: int
    figures: tuple[OverProcesses, ...]
    remote: bool


def process_groups(evaluations: Iterable[Evaluation[TimedMeasurement]]) -> tuple[ProcessGroup, ...]:
    """Returns, for each trace level, the processes of complete evaluations, if there are several."""
    levels: dict[TraceLevel, list[Evaluation[TimedMeasurement]]] = {}
    for each in evaluations:
        if each.process is not None and each.status is Status.COMPLETE:
            levels.setdefault(each.trace_level, []).append(each)
    return tuple(
        ProcessGroup(
            level,
            len(found),
            tuple(_figures([each.measurement.full_ns for each in found])),
            not found[0].system.is_local,
        )
        for level, found in levels.items()
        if len(found) > 1
    )


def _figures(full_ns: Sequence[NDArray[np.int64]]) -> Iterator[OverProcesses]:
    """Yields the figures that can be computed for every process."""
    means = [float(times_ns.mean()) if len(times_ns) else None for times_ns in full_ns]
    every = {"p50": [carried_percentile(times_ns, 50) for times_ns in full_ns], "mean": means}
    for name, values in every.items():
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            yield OverProcesses(name, float(np.mean(known)), interval_over(known))


_NS_PER_MS = 1_000_000
_LEAST_NAME_WIDTH = 12


def conditions_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """Returns one row with the verdict on the conditions; none for evaluations by earlier versions."""
    return () if evaluation.conditions is None else (("conditions", str(evaluation.conditions)),)


def process_rows(groups: Sequence[ProcessGroup]) -> tuple[tuple[str, str], ...]:
    """Returns the figures over a group's processes, one row per trace level, and a note on a remote agent."""
    rows = []
    for group in groups:
        figures = "  ".join(
            f"{each.name} {ms_text(each.value_ns, each.interval_ns)}" for each in group.figures
        )
        level = f"{group.trace_level.name}: " if len(groups) > 1 else ""
        rows.append(("processes", f"{level}{figures or 'no latency'}  ms over {group.processes} processes"))
    if groups and groups[0].remote:
        rows.append(("", "fresh processes of this client: one process of the agent served all of them"))
    return tuple(rows)


def trace_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """Returns rows on the trace, if it covers more than the application's own steps or has a URL."""
    trace = evaluation.trace
    if trace is None or (evaluation.trace_level <= TraceLevel.APPLICATION_TRACE and not trace.url):
        return ()
    dropped = f", {trace.dropped} more were too many" if trace.dropped else ""
    place = f"  {trace.url}" if trace.url else ""
    notes = tuple(("", note) for note in trace.notes)
    return (("trace", f"{trace.span_count} spans{dropped}{place}"), *notes)


def failure_line(failure: InputFailure) -> str:
    """Returns which input failed, in which stage and why, on one line even if the reason has more."""
    return printable_name(f"{failure.input_id} in {failure.stage.value}: {failure.message}")


def failures_line(failures: Sequence[InputFailure], *, every: bool = False) -> str:
    """Returns how many inputs failed, or that all of them did, and which failed first."""
    count = "failed: every input" if every else f"failed inputs: {len(failures)}"
    return f"{count}; the first: {failure_line(failures[0])}"


def ms_text(value_ns: float, interval_ns: Interval | None) -> str:
    """Returns the text of a time in milliseconds, with its interval if there is one."""
    if interval_ns is None:
        return f"{value_ns / _NS_PER_MS:.3f}"
    low, high = (end / _NS_PER_MS for end in interval_ns)
    return f"{value_ns / _NS_PER_MS:.3f} [{low:.3f}, {high:.3f}]"


def figures_text(summary: TimeFigures, what: str) -> str:
    """Returns the mean and percentiles of full batches or steps in milliseconds, or how many they need.

    The text is empty if there are none.
    """
    if summary.mean_ns is None:
        return ""
    figures = [f"mean {ms_text(summary.mean_ns, summary.mean_interval_ns)}"]
    for percent in (50, 90, 99):
        value_ns: float | None = getattr(summary, f"p{percent}_ns")
        interval: Interval | None = getattr(summary, f"p{percent}_interval_ns", None)
        needs = f"p{percent} needs {values_for_percentile(percent)} full {what}"
        figures.append(needs if value_ns is None else f"p{percent} {ms_text(value_ns, interval)}")
    return "  ".join(figures)


def interval_rows(
    full_ns: NDArray[np.int64], interval_ns: Interval | None, what: str
) -> Iterator[tuple[str, str]]:
    """Yields the reason why full batches or steps have no interval, if so."""
    needed = batches_for_interval(full_ns) if len(full_ns) else 0
    if interval_ns is None and 0 < len(full_ns) < needed:
        why = ": their times are correlated" if needed > AUTOCORRELATION_TIMES else ""
        yield "", f"no 95 % intervals, which need {needed} full {what}{why}"


def name_width(rows: Iterable[tuple[str, str]], least: int = _LEAST_NAME_WIDTH) -> int:
    """Returns the width of a column of names, including a blank after the longest name."""
    return max([least, *(len(name) + 1 for name, _ in rows)])
