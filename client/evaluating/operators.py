"""``agent op``: benchmarks the operators of the table or of a traced model, and lists the operators.

A run prints progress and rows, and returns an exit code. ``--from_evaluation`` benchmarks the operators of a
traced model, and compares their times. A listing shows how each framework runs the operators, and which
operators the table lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from inferometer.agent.operators.operator import Operator, chosen_operators, operators
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.results import find_one
from inferometer.client.api.runner import Runner
from inferometer.client.cli.output import INTERRUPTED, SUCCESS, on_a_page, print_rows, printer_of, say
from inferometer.client.evaluating.running import Console, evaluation_code
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.operators.from_trace import (
    TracedOperators,
    explain,
    read_traced_operators,
    request_of,
)
from inferometer.evaluators.kinds.operators.job import BAD_ROWS, operators_job
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow
from inferometer.evaluators.kinds.operators.options import OperatorOptions
from inferometer.evaluators.kinds.operators.report import OperatorsReport, counts_text, reported_operators
from inferometer.evaluators.kinds.operators.request import (
    Coverage,
    OperatorRequest,
    coverage_of,
    frameworks_with_operators,
    listed,
)
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.manifests.errors import ConfigurationError

if TYPE_CHECKING:
    from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement


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
    "ctx": "--ctx",
    "int64_tensor": "--int64_tensor",
    "profiler": "--profiler",
    "threads": "--threads",
    "run_backward": "--run_backward",
    "modes": "--mode",
    "forms": "--form",
}
"""The settings that the evaluation determines, with the options that otherwise set them."""
_MOST_REASONS = 8


def open_traced(
    invocation: Invocation, evaluation_id: str
) -> tuple[Evaluation[BatchMeasurement], TracedOperators]:
    """Reads a traced evaluation from the database; a unique prefix of its id is enough.

    Raises:
        UnknownEvaluationError: The evaluation does not exist.
        ConfigurationError: The evaluation measured no inference batches, or its trace has no layers.
        StoreError: The database cannot be read.
    """
    from inferometer.evaluators.kinds.batches.kind import inference_of

    with closing(invocation.open_store()) as store:
        evaluation = inference_of(find_one(store, evaluation_id))
        return evaluation, read_traced_operators(evaluation, store.spans(evaluation.id))


def traced_request(
    invocation: Invocation, evaluation_id: str, given: Mapping[str, Any], options: OperatorOptions
) -> tuple[OperatorRequest, TracedOperators]:
    """Returns the request to benchmark the operators of a traced evaluation, and these operators.

    ``given`` are the options of ``op run`` by parameter name. The element type comes from the evaluation.

    Raises:
        ConfigurationError: An option sets what the evaluation determines; see also ``open_traced``.
    """
    if beside := next((shown for name, shown in _TAKEN.items() if given.get(name)), None):
        raise ConfigurationError(f"--from_evaluation takes this from the evaluation; leave out {beside}")
    evaluation, traced = open_traced(invocation, evaluation_id)
    return request_of(traced, evaluation, options), traced


def traced_lines(traced: TracedOperators) -> Iterator[str]:
    """Yields the lines printed before the benchmark, which describe what it will measure."""
    layers = sum(each.count for each in traced.cases)
    without = sum(each.count for each in traced.without_row)
    yield (
        f"{layers} of {layers + without} layers of {traced.framework} are {len(traced.cases)} cases of the "
        f"table: {traced.share_percent:.1f} % of the layers' time"
    )


def explained_lines(traced: TracedOperators, rows: Iterable[OperatorRow]) -> Iterator[str]:
    """Yields the lines printed after the benchmark, which say how much of the model's time rows explain."""
    found, rows_ns = explain(traced, rows)
    yield f"rows found for {found.share_percent:.1f} % of the layers' time"
    if found.covered_ns:
        yield (
            f"p50 × count of the rows {rows_ns / _NS_PER_MS:.3f} ms; their layers' own times "
            f"{found.covered_ns / _NS_PER_MS:.3f} ms (ratio {rows_ns / found.covered_ns:.2f}); all layers "
            f"{found.layers_ns / _NS_PER_MS:.3f} ms"
        )
    for each in found.without_row[:_MOST_REASONS]:
        times = f" × {each.count}" if each.count > 1 else ""
        yield f"no row: {each.type}{times}, {100 * each.layers_ns / found.layers_ns:.2f} %: {each.reason}"
    if further := found.without_row[_MOST_REASONS:]:
        share = 100 * sum(each.layers_ns for each in further) / found.layers_ns
        yield f"no row: {len(further)} further types, {share:.2f} %"


_FAILED_ROWS = 1


def run_operators(
    invocation: Invocation,
    request: OperatorRequest,
    printing: Mapping[str, Any],
    *,
    publish: bool,
    require_stable: bool,
    resume: bool,
    traced: TracedOperators | None = None,
) -> int:
    """Runs the benchmark, publishes one evaluation per framework, and prints all rows on stdout.

    All other output goes to stderr; with ``traced``, it shows how much of the model's time the rows explain.
    Rows are printed even if an evaluation cannot be published.

    Returns:
        The exit code.
    """
    evaluations, worst, console = list[Evaluation[OperatorMeasurement]](), SUCCESS, Console(None, aside=True)
    runner, report = Runner(invocation, console, publish=publish), on_a_page(OperatorsReport(), **printing)
    put = printer_of(report.columns, layouts=report.layouts, **printing)
    for line in traced_lines(traced) if traced else ():
        say(line)
    try:
        with closing(runner.run(operators_job(request, resume=resume))) as measured:
            for evaluation in measured:
                evaluations.append(evaluation)
                if evaluation.status is not Status.INTERRUPTED:
                    code = evaluation_code(evaluation, published=publish, require_stable=require_stable)
                    worst = max(worst, code)
    finally:
        if evaluations:
            put(report.rows(evaluations))
    console.print_group()
    if traced:
        for line in explained_lines(traced, [row for each in evaluations for row in each.measurement.rows]):
            say(line)
    return max(worst, _exit_code(evaluations))


def _exit_code(evaluations: list[Evaluation[OperatorMeasurement]]) -> int:
    """Returns the exit code, and prints on stderr the number of rows per outcome."""
    told = [each.told.status for e in evaluations for each in reported_operators(e.measurement)]
    say(counts_text(told))
    if any(each.status is Status.INTERRUPTED for each in evaluations):
        say("interrupted: agent op run with the same options and --resume continues")
        return INTERRUPTED
    return _FAILED_ROWS if set(BAD_ROWS) & set(told) else SUCCESS


_NAMED = (
    Column("operator", "operator", stays=True, value="name"),
    Column("category", "category", stays=True, value="category.value"),
)
_SUMMARY = Column("summary", "what it computes", detail=2, wraps=True, value="summary")
_UNCOVERED = (Column("framework_name", "framework"), Column("operator", "operator"))


def print_operators(
    invocation: Invocation, categories: Sequence[str], frameworks: str | None, printing: Mapping[str, Any]
) -> None:
    """Prints a row for each operator, with a column for each framework.

    Raises:
        ConfigurationError: A category is unknown, or a framework runs no operators.
        UnknownFrameworkError: The framework is unknown.
    """
    groups = tuple(listed(categories))
    shown = chosen_operators(() if groups else operators(), groups)
    found = _coverages(invocation, frameworks, shown)
    columns = (*_NAMED, *map(_coverage_column, found), _SUMMARY)
    print_rows(columns, [row_of(columns, each) for each in shown], **printing)


def _coverage_column(coverage: Coverage) -> Column[Operator]:
    """Returns the column with the forms of each operator, or the reason why there are none."""

    def forms(of: Operator) -> str:
        return ", ".join(coverage.forms.get(of.name, ())) or f"no: {coverage.reasons[of.name]}"

    return Column(coverage.framework.lower(), coverage.framework, wraps=True, value=forms)


def print_uncovered(
    invocation: Invocation, categories: Sequence[str], frameworks: str | None, printing: Mapping[str, Any]
) -> None:
    """Prints a row for each operator of a framework's own registry that the table does not use.

    Raises:
        ConfigurationError: A category is given, or a framework runs no operators.
        UnknownFrameworkError: The framework is unknown.
    """
    if categories:
        raise ConfigurationError("--uncovered lists operators without a category; leave out --category")
    found = _coverages(invocation, frameworks, ())
    rows: list[Row] = [
        {"framework_name": each.framework, "operator": name} for each in found for name in each.uncovered
    ]
    print_rows(_UNCOVERED, rows, **printing)


def _coverages(
    invocation: Invocation, frameworks: str | None, shown: Sequence[Operator]
) -> Sequence[Coverage]:
    entries = list(frameworks_with_operators(invocation.registry, tuple(listed([frameworks or ""]))))
    with invocation.waiting.during("importing frameworks"):
        return [coverage_of(entry, shown) for entry in entries]
