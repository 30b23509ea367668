"""``op run --from_evaluation``: benchmarks the operators of a traced model, and compares their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from inferometer.client.api.invocation import Invocation

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
    from inferometer.evaluators.kinds.operators.measurement import OperatorOptions, OperatorRow
    from inferometer.evaluators.operators.cases import OperatorRequest
    from inferometer.evaluators.operators.from_trace import LayersWithoutRow, TracedOperators

_NS_PER_MS = 1_000_000
_TAKEN = {
    "operators": "the operators",
    "everything": "--all",
    "categories": "--category",
    "shapes": "--shapes",
    "inputs": "--input",
    "parameters": "--param",
    "cases": "--cases",
    "framework_name": "--framework_name",
    "device": "--device",
    "gpu": "--gpu",
    "threads": "--threads",
    "run_backward": "--run_backward",
    "modes": "--mode",
    "forms": "--form",
}
"""What the evaluation tells, with the option that tells it otherwise."""
_MOST_REASONS = 8


def open_traced(
    invocation: Invocation, evaluation_id: str
) -> tuple[Evaluation[BatchMeasurement], TracedOperators]:
    """Reads a traced evaluation of the database; a unique prefix of its id is enough.

    Raises:
        UnknownEvaluationError: The evaluation does not exist.
        ConfigurationError: It measured no batches of inference, or has no layers.
        StoreError: The database cannot be read.
    """
    from inferometer.client.api.stored import find_one
    from inferometer.evaluators.kinds.batches.kind import inference_of
    from inferometer.evaluators.operators.from_trace import read_traced_operators

    with closing(invocation.open_store()) as store:
        evaluation = inference_of(find_one(store, evaluation_id))
        return evaluation, read_traced_operators(evaluation, partial(store.spans, evaluation.id)())


def traced_request(
    invocation: Invocation, evaluation_id: str, given: Mapping[str, Any], options: OperatorOptions
) -> tuple[OperatorRequest, TracedOperators]:
    """Returns the benchmark of the operators of a traced evaluation.

    Args:
        invocation: Provides the database.
        evaluation_id: The id of the evaluation, or a unique prefix.
        given: The options of ``op run``, by their parameters' names.
        options: How each row is measured; the element type is the evaluation's.

    Raises:
        ConfigurationError: An option contradicts what is taken from the evaluation, or see ``open_traced``.
    """
    from inferometer.evaluators.operators.from_trace import request_of
    from inferometer.manifests.errors import ConfigurationError

    if beside := next((shown for name, shown in _TAKEN.items() if given.get(name)), None):
        raise ConfigurationError(f"--from_evaluation takes that from the evaluation; leave out {beside}")
    evaluation, traced = open_traced(invocation, evaluation_id)
    return request_of(traced, evaluation, options), traced


def traced_lines(traced: TracedOperators) -> Iterator[str]:
    """Yields the lines printed before the benchmark: what it is going to measure."""
    layers = sum(each.count for each in traced.cases)
    without = sum(each.count for each in traced.without_row)
    yield (
        f"{layers} of {layers + without} layers of {traced.framework} are {len(traced.cases)} cases of the "
        f"table: {traced.share_percent:.1f} % of the layers' time"
    )


def explained_lines(traced: TracedOperators, rows: Iterable[OperatorRow]) -> Iterator[str]:
    """Yields the lines printed after the benchmark: how much of the model's time the rows explain."""
    from inferometer.evaluators.operators.from_trace import explain

    found = explain(traced, rows)
    yield f"rows found for {found.share_percent:.1f} % of the layers' time"
    if found.ratio is not None:
        yield (
            f"p50 × count of the rows {found.rows_ns / _NS_PER_MS:.3f} ms; their layers' own times "
            f"{found.explained_ns / _NS_PER_MS:.3f} ms (ratio {found.ratio:.2f}); all layers "
            f"{found.layers_ns / _NS_PER_MS:.3f} ms"
        )
    for each in found.without_row[:_MOST_REASONS]:
        yield f"no row: {_described(each, found.layers_ns)}"
    if further := found.without_row[_MOST_REASONS:]:
        share = 100 * sum(each.layers_ns for each in further) / found.layers_ns
        yield f"no row: {len(further)} further types, {share:.2f} %"


def _described(each: LayersWithoutRow, whole_ns: float) -> str:
    times = f" × {each.count}" if each.count > 1 else ""
    return f"{each.type}{times}, {100 * each.layers_ns / whole_ns:.2f} %: {each.reason}"
