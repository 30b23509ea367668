"""The command line as a door of jobs: what is printed of one, and the exit code of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from inferometer.client.api.runner import Door
from inferometer.client.cli.exit_codes import FAILED_INPUTS, INTERRUPTED, INVALID, NOT_STABLE, SUCCESS
from inferometer.client.cli.output import echo
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.summary import conditions_rows, failures_line, name_width, trace_rows
from inferometer.evaluators.running.resources import JobPart, JobStart
from inferometer.manifests.errors import printable


def print_summary(evaluation: Evaluation) -> None:
    """Prints the figures of an evaluation, its conditions, its trace and its id."""
    rows = (*kind_of(evaluation).summary(evaluation), *conditions_rows(evaluation), *trace_rows(evaluation))
    if evaluation.status is Status.INTERRUPTED and not kind_of(evaluation).keeps_interrupted:
        rows = (
            ("INTERRUPTED", "not published; measured until then:"),
            *kind_of(evaluation).summary(evaluation),
        )
        print_rows(*rows)
        return
    print_rows(*rows, ("evaluation", evaluation.id))


class Console(Door):
    """Prints what a job measures.

    Args:
        show: Prints an evaluation; None prints nothing of it.
        aside: Whether stdout has something else, so that the lines go to stderr.
    """

    def __init__(
        self, show: Callable[[Evaluation], None] | None = print_summary, *, aside: bool = False
    ) -> None:
        self._show = show
        self._aside = aside
        self._group_id: str | None = None

    def part(self, part: JobPart) -> None:
        """Announces one evaluation of several."""
        what = part.name if part.trace_level is None else part.trace_level.name
        if part.count > 1:
            say(f"{part.number} of {part.count}{', ' if what else ''}{what}:")

    def start(self, what: JobStart) -> None:
        """Prints what is measured above its figures, so that a default that was not meant is seen.

        Where stdout cannot be written, the evaluation goes on, and its figures fail after it is kept.
        """
        with suppress(OSError):
            echo(printable(_start_line(what)), err=self._aside, indent=2)

    def say(self, line: str) -> None:
        """Prints a line that the user should know on stderr."""
        say(line)

    def show(self, evaluation: Evaluation) -> None:
        """Prints an evaluation."""
        if self._show is not None:
            self._show(evaluation)

    def published(self, evaluation: Evaluation, location: str) -> None:
        """Prints where an evaluation is."""
        self._group_id = evaluation.group_id
        echo(f"published   {evaluation.id} to {location}", err=self._aside, indent=12)

    def print_group(self) -> None:
        """Prints the id that several published evaluations have in common."""
        if self._group_id:
            echo(f"group       {self._group_id}", err=self._aside, indent=12)


def say(line: str) -> None:
    """Prints a line that the user should know on stderr."""
    echo(printable(line), err=True)


def print_rows(*rows: tuple[str, str]) -> None:
    """Prints rows of a name and a text; a row without a name belongs to the one above."""
    width = name_width(rows)
    for name, value in rows:
        echo(printable(f"{name:<{width}}{value}"), indent=width)


def _start_line(what: JobStart) -> str:
    """What is measured in one line: the model, what it runs on, and its inputs or its load."""
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
    """Returns the exit code of an evaluation, and prints one line on stderr for what is wrong with it."""
    kind, measurement = kind_of(evaluation), evaluation.measurement
    return max(
        _completeness_code(evaluation, published=published),
        INVALID if not allow_invalid and kind.invalid(measurement) else SUCCESS,
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
