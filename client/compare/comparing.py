"""``agent compare`` from its options to its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click

from client.compare.chosen_runs import chosen_side
from client.compare.conclusion import conclusion, warnings_of
from client.compare.defaults import THRESHOLD
from client.exit_codes import REGRESSION, SUCCESS
from client.invocation import Invocation
from client.output import print_rows
from evaluators.comparing.comparison import chosen_figures, compare_sides, measured_thresholds
from evaluators.comparing.figures import TOP1, parse_figures
from evaluators.comparing.rows import COLUMNS, rows_of
from evaluators.comparing.sides import Side
from evaluators.comparing.verdict import Verdict
from evaluators.reports.writer import Format
from evaluators.store.base import DATASET
from manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The options, under their names on the command line.

    Raises:
        ConfigurationError: Some exclude each other.
    """

    a: str
    b: str
    noise: str | None
    threshold: float | None
    accuracy_threshold: float
    figures: str | None
    fail_on_undecided: bool
    format_name: str
    output: Path | None
    append: bool
    overwrite: bool
    no_header: bool
    database_address: str | None
    database_name: str | None

    def __post_init__(self) -> None:
        if self.noise is not None and self.threshold is not None:
            raise ConfigurationError("--noise measures the threshold that --threshold gives; leave out one")


def run_comparison(invocation: Invocation, request: CompareRequest) -> int:
    """Compares, prints the rows and what follows.

    Returns:
        The exit code.

    Raises:
        InferscopeError: The evaluations are not there or not to be compared, or nothing can be written.
    """
    wanted = None if request.figures is None else parse_figures(request.figures)
    with closing(invocation.open_store(request.database_address, request.database_name)) as store:
        a, b = chosen_side(store, "A", request.a), chosen_side(store, "B", request.b)
        _check_apart(a, b)
        figures = chosen_figures(a, b, wanted)
        noise = None if request.noise is None else chosen_side(store, "noise", request.noise)
        if noise is not None and (judged := _in_both(noise, b)):
            raise ConfigurationError(
                f"evaluation {judged} of --noise is one of B, which would be judged by itself; "
                "give other runs, such as those of A"
            )
    thresholds = _thresholds(request, noise, a, figures)
    ratios = compare_sides(a, b, figures, thresholds)
    for line in _notes(request, noise, a, b, figures):
        click.echo(line, err=True)
    print_rows(
        COLUMNS,
        rows_of(ratios, "inputs" if a.kind == DATASET else "queries"),
        format_name=request.format_name,
        output=request.output,
        append=request.append,
        overwrite=request.overwrite,
        no_header=request.no_header,
    )
    for line in warnings_of(ratios):
        click.echo(line, err=True)
    for_people = request.output is None and request.format_name.lower() == Format.TABLE.value
    click.echo(conclusion(ratios), err=not for_people)
    verdicts = {ratio.verdict for ratio in ratios}
    failed = Verdict.WORSE in verdicts or (request.fail_on_undecided and Verdict.UNDECIDED in verdicts)
    return REGRESSION if failed else SUCCESS


def _check_apart(a: Side, b: Side) -> None:
    if twice := _in_both(a, b):
        raise ConfigurationError(f"evaluation {twice} is on both sides; compare it with another one")


def _in_both(one: Side, other: Side) -> str | None:
    """The id of an evaluation that is in both; None if there is none."""
    ids = {evaluation.id for evaluation in one.evaluations}
    return next((evaluation.id for evaluation in other.evaluations if evaluation.id in ids), None)


def _thresholds(
    request: CompareRequest, noise: Side | None, a: Side, figures: Sequence[str]
) -> Mapping[str, float]:
    """By how much each figure may differ."""
    accuracy = {TOP1: request.accuracy_threshold}
    if noise is not None:
        noise.check_comparable(a)
        return measured_thresholds(noise, figures) | accuracy
    threshold = THRESHOLD if request.threshold is None else request.threshold
    return dict.fromkeys(figures, threshold) | accuracy


def _notes(
    request: CompareRequest, noise: Side | None, a: Side, b: Side, figures: Sequence[str]
) -> Iterator[str]:
    """What one must know to read the rows: whence thresholds are, what differs, what one run cannot tell."""
    if noise is not None:
        yield from (f"differs: {difference}" for difference in noise.differences(a))
    elif request.threshold is None and set(figures) != {TOP1}:
        default = f"threshold {100 * THRESHOLD:g} %, the default"
        yield f"{default}; --noise measures it, --threshold gives another"
    yield from (f"differs: {difference}" for difference in a.differences(b))
    single = [side.name for side in (a, b) if len(side.evaluations) == 1]
    if single and noise is None and set(figures) != {TOP1}:
        which = f"{' and '.join(single)} {'are single runs' if len(single) > 1 else 'is a single run'}"
        yield (
            f"warning: {which}, which cannot tell how much the next one would differ; "
            "give 4 or more a side, or --noise"
        )
