"""The job behind ``op run``: single operators in several frameworks, each group in fresh processes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from inferometer.agent.inference.registry import Registry
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.resources import JobCallbacks
from inferometer.evaluators.measurements.operators import OperatorMeasurement, OperatorRow
from inferometer.evaluators.operators.cases import OperatorRequest


@dataclass(frozen=True, slots=True)
class OperatorProgress:
    """How far a benchmark of operators is.

    Attributes:
        done: The rows that there are, of all frameworks.
        total: The rows that were asked for.
        row: The last one.
        framework: Its framework.
    """

    done: int
    total: int
    row: OperatorRow | None = None
    framework: str = ""


def benchmark_operators(
    request: OperatorRequest, registry: Registry, callbacks: JobCallbacks[OperatorProgress] | None = None
) -> Generator[Evaluation[OperatorMeasurement], None, None]:
    """Measures the operators, and yields an evaluation for each framework, all of one group, at the end.

    A row that cannot be measured has its reason; the others go on. When it is stopped, the evaluations are
    interrupted ones with the rows that there are.

    Raises:
        UnknownFrameworkError, FrameworkUnavailableError: A framework is unknown or not installed.
        EvaluationInterrupted: It was stopped before there was a row.
    """
    raise NotImplementedError
