"""Runs jobs and comparisons for the command line: prints progress and results, and computes the exit code.

The predictions and failures of single inputs are printed on stdout, and predictions are drawn into a folder.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
from PIL import Image

from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Url, decoded_image, in_mode
from inferometer.agent.tasks.predictions import Classifications, Images
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.results import chosen_side
from inferometer.client.api.runner import Door, Runner
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
from inferometer.evaluators.comparing.job import ComparisonRequest, check_one_threshold, compare
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import DatasetChoice, Job, JobPart, JobStart
from inferometer.evaluators.kinds.batches.job import COLUMNS, SweepCell, evaluation_job, rows_of, sweep_job
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, InputPrediction
from inferometer.evaluators.kinds.batches.predictions import (
    can_be_drawn,
    image_alone,
    picture_of,
    prediction_table,
)
from inferometer.evaluators.kinds.batches.request import EvaluationRequest
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.summary import (
    conditions_rows,
    failure_line,
    failures_line,
    name_width,
    process_groups,
    process_rows,
    trace_rows,
)
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format, write
from inferometer.evaluators.verdict import parse_figures
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    InputError,
    OutputError,
    explained,
    one_line,
    printable,
)

SHOWN_INPUTS = 20
_LABEL_CHARACTERS = 80
_COLUMNS = (
    Column("input", "input"),
    Column("label", "top-1"),
    Column("probability", "probability", decimals=4),
)


def print_predictions(evaluation: Evaluation[BatchMeasurement]) -> None:
    """Prints the most probable class of each of the first inputs as a table on stdout.

    Predictions of tasks other than classification are printed in the format of ``prediction_table``.
    """
    predictions = evaluation.measurement.predictions
    if not predictions:
        return
    labels, shown = evaluation.system.manifest.output.parameters.labels, predictions[:SHOWN_INPUTS]
    if isinstance(predictions[0].prediction, Classifications):
        write(_COLUMNS, [_row(each, labels) for each in shown], Format.TABLE, sys.stdout)
    else:
        table = prediction_table(shown, labels)
        write(table.columns, table.rows, Format.TABLE, sys.stdout)
    _echo_rest(len(predictions), "predictions", "--publish_predictions stores all in the database")
    click.echo()


def print_failures(evaluation: Evaluation[BatchMeasurement]) -> None:
    """Prints the first failures on stdout, each on one line with its reason."""
    failures = evaluation.measurement.failures
    if not failures:
        return
    for failure in failures[:SHOWN_INPUTS]:
        click.echo(f"failed: {failure_line(failure)}")
    _echo_rest(len(failures), "failures", "a published evaluation contains all")
    click.echo()


def _row(prediction: InputPrediction, labels: tuple[str, ...]) -> Row:
    index = int(prediction.indices[0])
    return {
        "input": prediction.input_id,
        "label": one_line(labels[index], _LABEL_CHARACTERS) if labels else str(index),
        "probability": None if math.isnan(best := float(prediction.probabilities[0])) else best,
    }


def _echo_rest(count: int, what: str, where: str) -> None:
    """Prints how many of ``count`` items were not shown, if any."""
    if count > SHOWN_INPUTS:
        click.echo(f"… and {count - SHOWN_INPUTS} more {what}; {where}")


MOST_PICTURES = 20
"""The default maximum number of pictures."""
_NAME_CHARACTERS = 60
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,5}$")


@dataclass(frozen=True, slots=True)
class Pictures:
    """The output folder for pictures of predictions."""

    folder: Path
    most: int = MOST_PICTURES

    def check(self) -> None:
        """Creates the folder; raises OutputError if it cannot be created."""
        with explained(OutputError, f"{self.folder}: cannot be created"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def write(
        self, evaluation: Evaluation[BatchMeasurement], choice: DatasetChoice, invocation: Invocation
    ) -> Sequence[Path]:
        """Reads the inputs again, and draws the first predictions of an evaluation over them.

        No picture is drawn for an input that cannot be read again, and a line reports it. An enhanced image
        is also written on its own, as ``…_output.png``.

        Returns:
            The pictures written; empty if this type of prediction cannot be drawn.

        Raises:
            OutputError: A file cannot be written.
            InferometerError: The dataset cannot be opened again.
        """
        predictions = [each for each in evaluation.measurement.predictions if can_be_drawn(each.prediction)]
        if not predictions:
            return ()
        manifest = evaluation.system.manifest
        self.check()
        written = []
        with closing(choice.open_for(manifest, invocation.catalog, invocation.cache)) as dataset:
            here = evaluation.system.is_local
            drawn = predictions[: self.most]
            wanted = {each.input_id for each in drawn}
            samples = {each.id: each for each in islice(dataset, len(dataset)) if each.id in wanted}
            for number, each in enumerate(drawn, start=1):
                try:
                    image = _image_of(samples, each.input_id, here=here)
                    picture = picture_of(each.prediction, image, manifest.output.parameters.labels)
                except (InferometerError, ValueError) as error:
                    say(f"no picture of {each.input_id}: {one_line(error)}")
                    continue
                name = f"{number:04}_{_file_name(each.input_id)}"
                written.append(self._save(picture, name))
                if isinstance(each.prediction, Images):
                    self._save(image_alone(each.prediction), f"{name}_output")
        return written

    def _save(self, picture: Image.Image, name: str) -> Path:
        path = self.folder / f"{name}.png"
        with explained(OutputError, f"{path}: cannot be written"):
            picture.save(path)
        return path


def _image_of(samples: Mapping[str, Sample], name: str, *, here: bool) -> Image.Image:
    if name not in samples:
        raise InputError("is no longer in the dataset")
    payload = samples[name].read()
    if isinstance(payload, Url):
        if not here:
            raise InputError("the agent fetched it, not this process")
        payload = EncodedImage(fetch_image(payload.address, allow_private=True))
    if isinstance(payload, Pixels):
        return Image.fromarray(payload.array)
    if not isinstance(payload, EncodedImage):
        raise InputError("is not an image")
    return in_mode(decoded_image(payload.content), "RGB")


def _file_name(name: str) -> str:
    """Returns the last part of an input's id without its suffix, limited to portable characters."""
    name = _SUFFIX.sub("", name)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "_" for c in name)
    return plain[-_NAME_CHARACTERS:].strip("._") or "input"


def pictures_of(folder: Path | None, most: int | None) -> Pictures | None:
    """Returns the output folder for pictures; None if no folder is given.

    Raises:
        ConfigurationError: A number of pictures is given, but no folder.
        OutputError: The folder cannot be created.
    """
    if folder is None:
        if most is not None:
            raise ConfigurationError("picture_count requires a folder for pictures; give --pictures=DIR")
        return None
    found = Pictures(folder, MOST_PICTURES if most is None else most)
    found.check()
    return found


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

    ``show`` prints an evaluation; None prints none. Lines go ``aside``, to stderr, if stdout is used for
    other output.
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

    Figures that cannot be trusted change the exit code unless ``allow_invalid``; so do unstable conditions
    with ``require_stable``.

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
