"""The operators that a traced model ran, as cases of the table, and their share of its time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from inferometer.agent.hardware.environment import Precision
from inferometer.agent.operators.operator import OwnCase, ParameterValue, Shape, operators
from inferometer.agent.tracing.recorder import SpanChunk, TraceLevel
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.operators.measurement import OperatorRow
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.report import OperatorSummary
from inferometer.evaluators.kinds.operators.request import OperatorRequest
from inferometer.evaluators.kinds.operators.traced import READERS, NoRowError
from inferometer.evaluators.statistics import percentile
from inferometer.evaluators.traces.layers import Layer, layers
from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TracedCase:
    """A case of the table with the layers that match it.

    Attributes:
        case: The operator, its sizes and its parameters.
        layers: The names of the layers, in the order of execution.
        layers_ns: The sum of their medians in the trace.
    """

    case: OwnCase
    layers: tuple[str, ...]
    layers_ns: float

    @property
    def count(self) -> int:
        """The number of layers that match it."""
        return len(self.layers)


@dataclass(frozen=True, slots=True)
class LayersWithoutRow:
    """Layers of one type that have no row for the same reason.

    Attributes:
        type: The framework's name for their operator.
        count: The number of layers.
        layers_ns: The sum of their medians in the trace.
    """

    type: str
    count: int
    layers_ns: float
    reason: str


@dataclass(frozen=True, slots=True)
class TracedOperators:
    """The layers of a traced evaluation, as operators of the table.

    Attributes:
        cases: The cases, in the order of execution of their first layers.
        without_row: The layers that match no case, the longest first.
    """

    evaluation_id: str
    framework: str
    cases: tuple[TracedCase, ...]
    without_row: tuple[LayersWithoutRow, ...]

    @property
    def covered_ns(self) -> float:
        """The sum of the medians of the layers that match a case."""
        return sum(each.layers_ns for each in self.cases)

    @property
    def layers_ns(self) -> float:
        """The sum of the medians of all layers."""
        return self.covered_ns + sum(each.layers_ns for each in self.without_row)

    @property
    def share_percent(self) -> float:
        """The percentage of the layers' time that cases cover."""
        return 100 * self.covered_ns / self.layers_ns if self.layers_ns else 0.0


def read_traced_operators(
    evaluation: Evaluation[BatchMeasurement], chunks: Iterable[SpanChunk]
) -> TracedOperators:
    """Returns the layers of a traced evaluation as cases of the table, with equal layers combined.

    A layer's time is the median over the full batches.

    Args:
        evaluation: The evaluation.
        chunks: Its spans.

    Raises:
        ConfigurationError: The evaluation has no layers, or no reader supports the layers of its framework.
    """
    framework = evaluation.system.manifest.framework.name
    who = f"evaluation {evaluation.id}"
    if evaluation.trace is None or evaluation.trace_level < TraceLevel.FRAMEWORK_TRACE:
        raise ConfigurationError(
            f"{who} has no layers, because it ran with --trace_level={evaluation.trace_level.name}; "
            "evaluate with --trace_level=FRAMEWORK_TRACE"
        )
    if framework not in READERS:
        raise ConfigurationError(f"{who}: the layers of {framework} cannot be read as operators")
    found = layers(chunks, evaluation.measurement.full)
    if not found:
        raise ConfigurationError(f"{who} has no layers of full batches")
    return _grouped(evaluation.id, framework, found)


def _grouped(evaluation_id: str, framework: str, found: Sequence[Layer]) -> TracedOperators:
    cases: dict[tuple[str, ...], TracedCase] = {}
    without: dict[tuple[str, str], LayersWithoutRow] = {}
    for layer in found:
        own_ns = percentile(layer.durations_ns, 50)
        try:
            case = _checked(READERS[framework](layer))
        except NoRowError as error:
            kept = without.get((layer.type, str(error)), LayersWithoutRow(layer.type, 0, 0.0, str(error)))
            without[layer.type, str(error)] = replace(
                kept, count=kept.count + 1, layers_ns=kept.layers_ns + own_ns
            )
        else:
            key = _key_of(case)
            known = cases.get(key, TracedCase(case, (), 0.0))
            cases[key] = replace(
                known, layers=(*known.layers, layer.name), layers_ns=known.layers_ns + own_ns
            )
    longest_first = sorted(without.values(), key=lambda each: -each.layers_ns)
    return TracedOperators(evaluation_id, framework, tuple(cases.values()), tuple(longest_first))


def _checked(case: OwnCase) -> OwnCase:
    """Returns the case; raises NoRowError if the table lacks the operator or the sizes do not fit it."""
    table = operators()
    if case.operator not in table:
        raise NoRowError(f"the table has no operator {case.operator}")
    try:
        table[case.operator].own_case(case.shapes, case.parameters)
    except ConfigurationError as error:
        raise NoRowError(str(error)) from error
    return case


def _key_of(case: OwnCase) -> tuple[str, ...]:
    """Returns the key of a row for the case."""
    operator = operators()[case.operator]
    own = operator.own_case(case.shapes, case.parameters)
    shapes = {spec.name: spec.shape for spec in operator.tensors(own)}
    return _key(case.operator, shapes, own.parameters)


def _key(
    operator: str, shapes: Mapping[str, Shape], parameters: Mapping[str, ParameterValue]
) -> tuple[str, ...]:
    sizes = (f"{name}={shape}" for name, shape in shapes.items())
    return (operator, *sizes, *(f"{name}={value}" for name, value in sorted(parameters.items())))


def request_of(
    traced: TracedOperators, evaluation: Evaluation[BatchMeasurement], options: OperatorOptions
) -> OperatorRequest:
    """Returns a benchmark of the cases with the model's framework, device, threads and precision.

    Raises:
        ConfigurationError: There is no case.
    """
    if not traced.cases:
        reasons = "; ".join(f"{each.type}: {each.reason}" for each in traced.without_row[:3])
        raise ConfigurationError(f"evaluation {traced.evaluation_id}: no layer has a row ({reasons})")
    precision = evaluation.system.precision or Precision.FLOAT32
    return OperatorRequest(
        own=tuple(each.case for each in traced.cases),
        frameworks=(traced.framework,),
        modes=(Mode.FORWARD,),
        device=evaluation.system.device,
        threads=evaluation.system.threads,
        options=replace(options, dtype=precision.value),
    )


def explain(traced: TracedOperators, rows: Iterable[OperatorRow]) -> tuple[TracedOperators, float]:
    """Compares the forward rows of a benchmark of ``traced`` with the layers.

    Rows from several processes are summarized together.

    Returns:
        The layers, of which those of a case whose row failed or is missing are without a row; and the sum
        over the other cases' rows of p50 × the number of equal layers, in nanoseconds.
    """
    of_key: dict[tuple[str, ...], list[OperatorRow]] = {}
    for row in rows:
        if row.mode is Mode.FORWARD:
            of_key.setdefault(_key(row.operator, row.shapes, row.parameters), []).append(row)
    rows_ns = 0.0
    covered: list[TracedCase] = []
    without = list(traced.without_row)
    for each in traced.cases:
        measured = of_key.get(_key_of(each.case), [])
        summary = OperatorSummary.of(measured)
        if summary is None:
            reason = measured[0].reason if measured else "it was not measured"
            without.append(LayersWithoutRow(each.case.operator, each.count, each.layers_ns, reason))
        else:
            rows_ns += summary.p50_ns * each.count
            covered.append(each)
    longest_first = sorted(without, key=lambda each: -each.layers_ns)
    return replace(traced, cases=tuple(covered), without_row=tuple(longest_first)), rows_ns
