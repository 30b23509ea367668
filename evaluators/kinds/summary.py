"""Rows of text that evaluations of every kind have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferometer.agent.inference.results import InputFailure
from inferometer.agent.tracing.span import TraceLevel
from inferometer.evaluators.datasets.folder import printable
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.precision.intervals import Interval
from inferometer.evaluators.precision.processes import ProcessGroup

_NS_PER_MS = 1_000_000
_LEAST_NAME_WIDTH = 12


def conditions_rows(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """Returns the verdict on the conditions in one row; none in evaluations of earlier versions."""
    return () if evaluation.conditions is None else (("conditions", str(evaluation.conditions)),)


def process_rows(groups: Sequence[ProcessGroup]) -> tuple[tuple[str, str], ...]:
    """Returns the figures over the processes of a group, one row per trace level, and what they omit."""
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
    """Returns what was traced, where it was more than the application's own steps, or goes to a collector."""
    trace = evaluation.trace
    if trace is None or (evaluation.trace_level <= TraceLevel.APPLICATION_TRACE and not trace.url):
        return ()
    dropped = f", {trace.dropped} more were too many" if trace.dropped else ""
    place = f"  {trace.url}" if trace.url else ""
    notes = tuple(("", note) for note in trace.notes)
    return (("trace", f"{trace.span_count} spans{dropped}{place}"), *notes)


def failure_line(failure: InputFailure) -> str:
    """Returns which input failed, in which stage and why, on one line even if a reason has several."""
    return printable(f"{failure.input_id} in {failure.stage.value}: {failure.message}")


def failures_line(failures: Sequence[InputFailure], *, every: bool = False) -> str:
    """Returns how many inputs failed, or that every one did, and which was the first."""
    count = "failed: every input" if every else f"failed inputs: {len(failures)}"
    return f"{count}; the first: {failure_line(failures[0])}"


def ms_text(value_ns: float, interval_ns: Interval | None) -> str:
    """Returns a time in milliseconds, with its interval if there is one."""
    if interval_ns is None:
        return f"{value_ns / _NS_PER_MS:.3f}"
    low, high = (end / _NS_PER_MS for end in interval_ns)
    return f"{value_ns / _NS_PER_MS:.3f} [{low:.3f}, {high:.3f}]"


def name_width(rows: Iterable[tuple[str, str]], least: int = _LEAST_NAME_WIDTH) -> int:
    """Returns the width of a column of names, with a blank after the longest."""
    return max([least, *(len(name) + 1 for name, _ in rows)])
