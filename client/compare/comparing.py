"""``agent compare`` from its options to its exit code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.stored import chosen_side
from inferometer.client.cli.exit_codes import REGRESSION, SUCCESS
from inferometer.client.cli.output import echo, print_rows
from inferometer.evaluators.comparing.verdict import parse_figures
from inferometer.evaluators.jobs.compare import ComparisonRequest, check_one_threshold, compare
from inferometer.evaluators.reports.writer import Format

_echo_error = partial(echo, err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The options, named as on the command line; ``printing`` holds those of ``print_rows``."""

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
    """Compares the evaluations, and prints the rows and the conclusion.

    Returns:
        The exit code.

    Raises:
        InferometerError: The evaluations do not exist or cannot be compared, or the output cannot be written.
    """
    wanted = None if request.figures is None else parse_figures(request.figures)
    reading = invocation.waiting.during("reading evaluations")
    with reading, closing(invocation.open_store()) as store:
        a, b = (
            chosen_side(store, name, given, _echo_error)
            for name, given in (("A", request.a), ("B", request.b))
        )
        noise = None if request.noise is None else chosen_side(store, "noise", request.noise, _echo_error)
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
