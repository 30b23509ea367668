"""Figures over several processes, each of which has times of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferometer.agent.inference.results import LOCAL_AGENT
from inferometer.agent.tracing.span import TraceLevel
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.load.intervals import t_quantile_95
from inferometer.evaluators.measurements.batches import BatchMeasurement, LatencySummary
from inferometer.evaluators.precision.intervals import Interval


def interval_over(values: Sequence[float]) -> Interval:
    """Returns the 95 % interval of the mean of independent values, by Student's t distribution.

    ("Student", "The Probable Error of a Mean", Biometrika 6, 1908.) The times of one process share what was
    drawn when it began, such as the layout of its memory, so that the processes are what is independent
    (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).

    Args:
        values: One for each process, at least two.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values, and there are {len(values)}")
    mean = float(np.mean(values))
    reach = t_quantile_95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(max(mean - reach, 0.0), mean + reach)


def processes_of(evaluations: Iterable[Evaluation]) -> int:
    """Returns how many processes ran the model in evaluations, as far as that is known.

    Evaluations of an agent are of its one process. Those of a group that names no processes ran one after the
    other in one.
    """
    return len({_process_of(each) for each in evaluations})


def _process_of(evaluation: Evaluation) -> tuple[str, int | None]:
    if evaluation.system.agent != LOCAL_AGENT:
        return evaluation.system.agent, None
    return evaluation.group_id or evaluation.id, evaluation.process


@dataclass(frozen=True, slots=True)
class OverProcesses:
    """A figure over several processes: the mean of the processes' own figures.

    Attributes:
        name: ``p50`` or ``mean``.
        value_ns: The figure, in nanoseconds a batch.
        interval_ns: Its 95 % interval.
    """

    name: str
    value_ns: float
    interval_ns: Interval


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes of a group at one trace level.

    Attributes:
        trace_level: The level.
        processes: How many there are, at least two.
        figures: What all of them have of p50 and mean.
        remote: Whether an agent elsewhere ran the model, in one process of its own.
    """

    trace_level: TraceLevel
    processes: int
    figures: tuple[OverProcesses, ...]
    remote: bool


def process_groups(evaluations: Iterable[Evaluation[BatchMeasurement]]) -> tuple[ProcessGroup, ...]:
    """Returns the processes of complete evaluations at each trace level, where there are several."""
    levels: dict[TraceLevel, list[tuple[LatencySummary, bool]]] = {}
    for each in evaluations:
        if each.process is not None and each.status is Status.COMPLETE:
            remote = each.system.agent != LOCAL_AGENT
            levels.setdefault(each.trace_level, []).append((LatencySummary.of(each.measurement), remote))
    return tuple(
        ProcessGroup(level, len(found), _figures([latency for latency, _ in found]), found[0][1])
        for level, found in levels.items()
        if len(found) > 1
    )


def _figures(latencies: Sequence[LatencySummary]) -> tuple[OverProcesses, ...]:
    figures = []
    for name in ("p50", "mean"):
        values = [value for each in latencies if (value := getattr(each, f"{name}_ns")) is not None]
        if len(values) == len(latencies):
            figures.append(OverProcesses(name, float(np.mean(values)), interval_over(values)))
    return tuple(figures)
