"""``agent compare`` from its options to its exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.exit_codes import REGRESSION, SUCCESS
from inferometer.client.cli.output import echo, print_rows
from inferometer.client.reports.evaluation_filter import whole_id
from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.comparing.verdict import parse_figures
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.compare import ComparisonRequest, check_one_threshold, compare
from inferometer.evaluators.reports.writer import Format
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import ConfigurationError, StoreError, UnknownEvaluationError

_echo_error = partial(echo, err=True)


def chosen_side(
    store: EvaluationStore, name: str, given: str, notify: Callable[[str], None] = _echo_error
) -> Side:
    """Returns the evaluations that ids or their unique prefixes name, each once.

    Evaluations of a group that ran under a profiler are left out and reported, as a group of trace levels
    holds one that did not. One that is named by its own id is not left out. ``given`` is ids of evaluations
    or groups, separated by commas. ``notify`` is called with a line about what is left out.

    Raises:
        ConfigurationError: Nothing is named, or the evaluations cannot be compared.
        UnknownEvaluationError: An id does not exist, or is ambiguous.
    """
    ids = [word.strip() for word in given.split(",") if word.strip()]
    if not ids:
        raise ConfigurationError(f"{name} names no evaluation; give ids, separated by commas")
    found: dict[str, Evaluation] = {}
    for each in ids:
        found.update({evaluation.id: evaluation for evaluation in _named(store, name, each, notify)})
    return Side(name, tuple(found.values()))


def _named(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> list[Evaluation]:
    evaluation_id = whole_id(store, given)
    unreadable: list[StoreError] = []
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted, unreadable.append)
    if unreadable and not found:
        raise unreadable[0]
    for error in unreadable:
        notify(f"{name}: left out {error}")
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation or group {given}; "
            "the reports of agent info evaluation list them"
        )
    if found[0].id == evaluation_id:
        return list(found)
    undisturbed = [evaluation for evaluation in found if not evaluation.profiled]
    if undisturbed and len(undisturbed) < len(found):
        notify(
            f"{name}: left out {len(found) - len(undisturbed)} of {len(found)} evaluations of the group "
            f"{evaluation_id}: they ran under a profiler, which slows the model down"
        )
    return undisturbed or list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The options, under their names on the command line; ``printing`` has those of ``print_rows``."""

    a: str
    b: str
    noise: str | None
    threshold: float | None
    accuracy_threshold: float
    figures: str | None
    fail_on_undecided: bool
    printing: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_one_threshold(self.noise is not None, self.threshold)


def run_comparison(invocation: Invocation, request: CompareRequest) -> int:
    """Compares, prints the rows and what follows.

    Returns:
        The exit code.

    Raises:
        InferometerError: The evaluations are not there or not to be compared, or nothing can be written.
    """
    wanted = None if request.figures is None else parse_figures(request.figures)
    reading = invocation.waiting.during("reading evaluations")
    with reading, closing(invocation.open_store()) as store:
        a, b = chosen_side(store, "A", request.a), chosen_side(store, "B", request.b)
        noise = None if request.noise is None else chosen_side(store, "noise", request.noise)
    found = compare(
        ComparisonRequest(
            a=a,
            b=b,
            noise=noise,
            threshold=request.threshold,
            accuracy_threshold=request.accuracy_threshold,
            figures=wanted,
        )
    )
    for line in found.notes:
        echo(line, err=True, indent=2)
    print_rows(found.columns, found.rows, **request.printing)
    for line in found.undecided:
        echo(f"warning: {line}", err=True, indent=2)
    printing = request.printing
    for_people = printing["output"] is None and printing["format_name"].lower() == Format.TABLE.value
    echo(found.conclusion, err=not for_people, indent=2)
    failed = found.worse or (request.fail_on_undecided and bool(found.undecided))
    return REGRESSION if failed else SUCCESS
