"""Runs jobs and comparisons for the command line: prints progress and results, and computes the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from inferometer.client.api.invocation import Invocation
from inferometer.client.api.runner import Door, Runner
from inferometer.client.api.stored import chosen_side
from inferometer.client.cli.output import (
    FAILED_INPUTS,
    INTERRUPTED,
    INVALID,
    NOT_STABLE,
    REGRESSION,
    SUCCESS,
    echo,
    exit_code,
    say,
)
from inferometer.client.cli.output import print_rows as print_report_rows
from inferometer.client.evaluating.predictions import Pictures, print_failures, print_predictions
from inferometer.evaluators.comparing.job import ComparisonRequest, check_one_threshold, compare
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import Job, JobPart, JobStart
from inferometer.evaluators.kinds.batches.job import COLUMNS, SweepCell, evaluation_job, rows_of, sweep_job
from inferometer.evaluators.kinds.batches.request import EvaluationRequest
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.summary import (
    conditions_rows,
    failures_line,
    name_width,
    process_groups,
    process_rows,
    trace_rows,
)
from inferometer.evaluators.reports.writer import Format, write
from inferometer.evaluators.verdict import parse_figures
from inferometer.manifests.errors import printable


def print_summary(evaluation: Evaluation) -> None:
    """Prints the figures of an evaluation, its conditions, its trace and its id."""
    kind = kind_of(evaluation)
    figures = kind.summary(evaluation)
    if evaluation.status is Status.INTERRUPTED and not kind.keeps_interrupted:
        print_rows(("INTERRUPTED", "not published; measured until then:"), *figures)
        return
    rest = (*conditions_rows(evaluation), *trace_rows(evaluation), ("evaluation", evaluation.id))
    print_rows(*figures, *rest)


class Console(Door):
    """Prints the messages and the evaluations of a job.

    Args:
        show: Prints an evaluation; None prints no evaluations.
        aside: Whether to print lines on stderr, because stdout is used for other output.
    """

    def __init__(
        self, show: Callable[[Evaluation], None] | None = print_summary, *, aside: bool = False
    ) -> None:
        self._show = show
        self._aside = aside
        self._group_id: str | None = None

    def part(self, part: JobPart) -> None:
        """Announces the evaluation that begins, if a job has several."""
        what = part.name if part.trace_level is None else part.trace_level.name
        if part.count > 1:
            say(f"{part.number} of {part.count}{', ' if what else ''}{what}:")

    def start(self, what: JobStart) -> None:
        """Prints what is being measured, before its figures, so that unintended defaults are visible.

        If stdout cannot be written, the evaluation continues; printing the figures fails after it is stored.
        """
        with suppress(OSError):
            echo(printable(_start_line(what)), err=self._aside, indent=2)

    def say(self, line: str) -> None:
        """Prints a message to the user on stderr."""
        say(line)

    def show(self, evaluation: Evaluation) -> None:
        """Prints an evaluation."""
        if self._show is not None:
            self._show(evaluation)

    def published(self, evaluation: Evaluation, location: str) -> None:
        """Prints where an evaluation is stored."""
        self._group_id = evaluation.group_id
        echo(f"published   {evaluation.id} to {location}", err=self._aside, indent=12)

    def print_group(self) -> None:
        """Prints the group id that the published evaluations share, if they form a group."""
        if self._group_id:
            echo(f"group       {self._group_id}", err=self._aside, indent=12)


def print_rows(*rows: tuple[str, str]) -> None:
    """Prints rows that consist of a name and a text; a row without a name belongs to the row above."""
    width = name_width(rows)
    for name, value in rows:
        echo(printable(f"{name:<{width}}{value}"), indent=width)


def _start_line(what: JobStart) -> str:
    """Describes a measurement in one line: the model, what it runs on, its inputs, and its load, if any."""
    d = what.system
    framework = f"{d.manifest.framework.name} {d.framework_version}"
    threads = f", threads: {d.threads}" if d.threads and not d.device.is_gpu else ""
    weights = ", random weights" if d.weights.value == "random" else ""
    lower = d.precision is not None and d.precision.value != "float32"
    precision = f", {d.precision.value}" if d.precision and lower else ""
    where = f"({d.device}{threads}{weights}{precision}, {d.agent})"
    inputs = f"over {what.inputs}, {what.input_count} inputs"
    work = f": {what.work}" if what.work else ""
    return f"{d.manifest.name} {d.manifest.version} on {framework} {where} {inputs}{work}"


def evaluation_code(
    evaluation: Evaluation, *, published: bool, allow_invalid: bool = True, require_stable: bool = False
) -> int:
    """Returns the exit code of an evaluation, and prints one line on stderr for each problem with it."""
    kind = kind_of(evaluation)
    code = _completeness_code(evaluation, published=published)
    if code == INTERRUPTED and not kind.keeps_interrupted:
        return code
    whole = evaluation.status is Status.COMPLETE
    return max(
        code,
        INVALID if whole and not allow_invalid and kind.invalid(evaluation.measurement) else SUCCESS,
        _stability_code(evaluation) if require_stable else SUCCESS,
    )


def _completeness_code(evaluation: Evaluation, *, published: bool) -> int:
    kind, measurement = kind_of(evaluation), evaluation.measurement
    if evaluation.status is Status.INTERRUPTED:
        what = f"interrupted: {kind.measured(measurement)} were"
        if kind.keeps_interrupted:
            say(
                f"{what} kept; reports leave the evaluation out unless they get --include_interrupted"
                if published
                else f"{what} measured; nothing was published"
            )
        return INTERRUPTED
    every = evaluation.status is Status.FAILED
    if failures := kind.failures(measurement):
        say(failures_line(failures, every=every))
    elif every:
        say(f"failed: {kind.unanswered(measurement)}; reports leave the evaluation out")
    return FAILED_INPUTS if failures or every else SUCCESS


def _stability_code(evaluation: Evaluation) -> int:
    conditions = evaluation.conditions
    if conditions is not None and conditions.stability is Stability.STABLE:
        return SUCCESS
    say(f"--require_stable: the conditions were not stable: {conditions or 'not known'}")
    return NOT_STABLE


def run_job(
    invocation: Invocation,
    job: Job[Evaluation[Any]],
    *,
    publish: bool,
    predictions: bool = False,
    allow_invalid: bool = True,
    require_stable: bool = False,
    show: Callable[[Evaluation[Any]], None] = print_summary,
) -> int:
    """Runs a job, publishes each evaluation and prints its summary; repetitions also get a joint summary.

    Args:
        invocation: The configuration.
        job: The job.
        publish: Whether to store evaluations in the database.
        predictions: Whether to store their predictions too.
        allow_invalid: Whether to leave the exit code unchanged if figures cannot be trusted.
        require_stable: Whether to return a separate exit code if conditions were not stable.
        show: Prints an evaluation.

    Returns:
        The exit code: the highest if several evaluations have different ones.
    """
    worst, group, console = SUCCESS, list[Evaluation[Any]](), Console(show)
    runner = Runner(invocation, console, publish=publish, predictions=predictions)
    with closing(runner.run(job)) as evaluations:
        for evaluation in evaluations:
            code = evaluation_code(
                evaluation, published=publish, allow_invalid=allow_invalid, require_stable=require_stable
            )
            worst = max(worst, code)
            group.append(replace(evaluation, spans=()))
    print_rows(*process_rows(process_groups(group)))
    console.print_group()
    return worst


def run_evaluation(
    invocation: Invocation,
    request: EvaluationRequest,
    *,
    publish: bool,
    show_inputs: bool,
    pictures: Pictures | None = None,
    **more: bool,
) -> int:
    """Evaluates a model over a dataset; ``more`` contains further arguments of ``run_job``.

    ``pictures`` is the folder for pictures of predictions. If it is None, pictures of shown inputs are
    written to the data directory, provided that the evaluation is published.
    """

    def show(evaluation: Evaluation[Any]) -> None:
        if show_inputs:
            print_predictions(evaluation)
            print_failures(evaluation)
        print_summary(evaluation)
        place = pictures
        if place is None and show_inputs and publish:
            place = Pictures(invocation.data_directory / "predictions" / evaluation.id)
        if place is not None and (written := place.write(evaluation, request.dataset, invocation)):
            first = f"{len(written)} in {place.folder}, {written[0].name} is the first"
            print_rows(("pictures", first))

    return run_job(invocation, evaluation_job(request), publish=publish, show=show, **more)


def run_sweep(
    invocation: Invocation,
    requests: Sequence[EvaluationRequest],
    *,
    publish: bool,
    predictions: bool,
    require_stable: bool = False,
) -> int:
    """Runs the evaluations sequentially, publishes each one, and prints one table on stdout.

    The table includes failed evaluations, and is also printed if the sweep is interrupted.

    Returns:
        The exit code: the highest if several evaluations have different ones.
    """
    cells, worst, console = list[SweepCell](), SUCCESS, Console(None, aside=True)
    runner = Runner(invocation, console, publish=publish, predictions=predictions)
    try:
        with closing(runner.run(sweep_job(requests))) as found:
            for cell in found:
                cells.append(cell)
                if cell.evaluation is None:
                    runner.say(f"failed: {cell.error}")
                    worst = max(worst, FAILED_INPUTS if cell.error is None else exit_code(cell.error))
                    continue
                cells[-1] = SweepCell(cell.request, replace(cell.evaluation, spans=()))
                code = evaluation_code(cell.evaluation, published=publish, require_stable=require_stable)
                worst = max(worst, code)
    finally:
        if cells:
            write(COLUMNS, rows_of(cells), Format.TABLE, sys.stdout)
    console.print_group()
    return worst


_echo_error = partial(echo, err=True)


def run_comparison(
    invocation: Invocation,
    *,
    a: str,
    b: str,
    noise: str | None,
    threshold: float | None,
    accuracy_threshold: float,
    figures: str | None,
    fail_on_undecided: bool,
    printing: Mapping[str, Any],
) -> int:
    """Compares evaluations, and prints the rows and the conclusion.

    Arguments are named after the command-line options; ``printing`` is passed to ``print_report_rows``.

    Returns:
        The exit code.
    """
    check_one_threshold(noise is not None, threshold)
    wanted = None if figures is None else parse_figures(figures)
    reading = invocation.waiting.during("reading evaluations")
    with reading, closing(invocation.open_store()) as store:
        sides = [chosen_side(store, name, given, _echo_error) for name, given in (("A", a), ("B", b))]
        runs = None if noise is None else chosen_side(store, "noise", noise, _echo_error)
    found = compare(
        ComparisonRequest(
            a=sides[0],
            b=sides[1],
            noise=runs,
            threshold=threshold,
            accuracy_threshold=accuracy_threshold,
            figures=wanted,
        )
    )
    for line in found.notes:
        echo(line, err=True, indent=2)
    print_report_rows(found.columns, found.rows, **printing)
    for line in found.undecided:
        echo(f"warning: {line}", err=True, indent=2)
    for_people = printing["output"] is None and printing["format_name"].lower() == Format.TABLE.value
    echo(found.conclusion, err=not for_people, indent=2)
    failed = found.worse or (fail_on_undecided and bool(found.undecided))
    return REGRESSION if failed else SUCCESS
