"""The command ``agent score``."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import FILE, INPUT, Command, boolean, current_invocation, option
from inferometer.client.cli.options import score_options
from inferometer.client.cli.output import (
    FAILED_INPUTS,
    OUTPUT_NAMES,
    is_plain,
    output_options,
    picture_of,
    printer_of,
    say,
    say_drawn,
)
from inferometer.manifests.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from inferometer.evaluators.scoring.score import ScoredPredictions, ScoreRequest


_SHOWN_FAILURES = 20


@click.command(cls=Command)
@click.argument("predictions", type=INPUT)
@option(
    "--task",
    required=True,
    metavar="TASK",
    help="Task of the predictions: classification, multilabel, detection, instance_segmentation, "
    "semantic_segmentation, image_enhancement, regression, text_classification, question_answering or "
    "embedding.",
)
@option("--dataset_name", metavar="NAME", help="Dataset, by the name of its manifest.")
@option("--dataset_path", type=INPUT, metavar="PATH", help="Dataset, in any supported format.")
@option("--dataset_category", metavar="NAME", help="Category of the dataset.  [default: any]")
@option("--data_backend", metavar="NAME", help="Format of --dataset_path.  [default: detected]")
@option(
    "--sample_ids",
    "--image_ids",
    metavar="FILE|LIST",
    help="Only the samples with these ids count: a list with commas, or a file with one per line.  "
    "[default: all]",
)
@option(
    "--labels",
    type=INPUT,
    metavar="FILE",
    help="The classes in the order that the predictions number them, one per line.  [default: the dataset's]",
)
@score_options
@boolean("--per_class", help="Print a row for each class instead of the scores.")
@boolean("--fail_on_error", help="Stop at the first sample that cannot be scored.")
@option(
    "--plot",
    type=FILE,
    metavar="FILE",
    help="Also draw the scores, with the curve or the confusion matrix of the task: .html, .svg or .png.",
)
@output_options
def score(**given: Any) -> int:
    """Score PREDICTIONS, made by another tool, against a dataset; no model runs.

    For detection and instance_segmentation, PREDICTIONS is a JSON file of COCO results. For tasks that
    predict masks or images, it is a folder of PNG masks or of images with the file names of the dataset. For
    other tasks, it is a .csv, .jsonl or .json file with an id and a label, several labels, probabilities, an
    answer or numbers, or an .npz file of vectors. The metrics are those of agent predict dataset.

    All samples of the dataset count: an image that COCO's results do not name has no predicted objects, so
    all of its objects are missed. For other tasks, a sample without a prediction is reported and counted as
    failed, and the exit code is 1. Nothing is published.
    """
    # Imported here because the help does not need it.
    from inferometer.client.api.progress import ProgressBar
    from inferometer.evaluators.kinds.batches.report import CLASS_COLUMNS, class_rows
    from inferometer.evaluators.scoring.score import COLUMNS, rows_of
    from inferometer.evaluators.scoring.score import score as scored

    printing, per_class = {name: given.pop(name) for name in OUTPUT_NAMES}, given["per_class"]
    picture = picture_of(given["plot"], printing)
    put = printer_of(CLASS_COLUMNS if per_class else COLUMNS, **printing)
    request, invocation = _request(given), current_invocation()
    with closing(ProgressBar("scoring")) as bar:
        found = scored(request, invocation.catalog, invocation.cache, bar)
    rows = list(rows_of(found.result, len(found.failures), found.dataset.name))
    if per_class:
        put(class_rows(found.result))
    elif is_plain(printing):
        _print_summary(found)
    else:
        put(rows)
    if picture is not None:
        from inferometer.evaluators.kinds.batches.plot import drawing_of

        drawing = drawing_of(found.result, f"{given['predictions'].name}, {found.dataset.name}")
        source = f"Scores of {given['predictions']} by inferometer"
        say_drawn(picture, picture.draw(drawing, COLUMNS, rows, source, datetime.now(timezone.utc)))
    if found.failures:
        first = found.failures[0]
        say(f"failed inputs: {len(found.failures)}; the first: {first.input_id}: {first.message}")
        return FAILED_INPUTS
    return 0


def _request(given: dict[str, Any]) -> ScoreRequest:
    from inferometer.client.api.requests import inputs_of, scoring_of
    from inferometer.evaluators.datasets.files import read_class_names
    from inferometer.evaluators.scoring.score import ScoreRequest

    path: Path | None = given["labels"]
    labels = () if path is None else read_class_names(path)
    if path is not None and not labels:
        raise ConfigurationError(f"labels {path}: names no classes; give a file with one per line")
    return ScoreRequest(
        task=given["task"],
        predictions=given["predictions"],
        dataset=inputs_of(given).choice(),
        labels=labels or (),
        per_class=given["per_class"],
        options=scoring_of(given),
        fail_on_error=given["fail_on_error"],
    )


def _print_summary(found: ScoredPredictions) -> None:
    from inferometer.evaluators.kinds.batches.report import result_rows

    _print_failures(found)
    identity = found.dataset
    rows = (
        ("dataset", f"{identity.name}, {identity.size} samples"),
        ("task", found.result.task),
        *result_rows(found.result),
        ("failures", str(len(found.failures))),
    )
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        click.echo(f"{name:<{width}}{value}")


def _print_failures(found: ScoredPredictions) -> None:
    for failure in found.failures[:_SHOWN_FAILURES]:
        click.echo(printable(f"failed: {failure.input_id}: {failure.message}"))
    if (rest := len(found.failures) - _SHOWN_FAILURES) > 0:
        click.echo(f"… and {rest} more failures")
