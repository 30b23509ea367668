"""What the single inputs of an evaluation gave, as it is printed before the summary."""

from __future__ import annotations

import sys

import click

from agent.results import InputFailure
from evaluators.datasets.layout import printable
from evaluators.evaluation import Evaluation, InputPrediction
from evaluators.reports.base import Column, Row
from evaluators.reports.writer import Format, write

SHOWN_INPUTS = 20
_COLUMNS = (
    Column("input", "input"),
    Column("label", "top-1"),
    Column("probability", "probability", decimals=4),
)


def print_predictions(evaluation: Evaluation) -> None:
    """Prints the most probable class of the first inputs, as a table on stdout, if there are any."""
    predictions = evaluation.predictions
    if not predictions:
        return
    labels = evaluation.system.manifest.output.parameters.labels
    rows = [_row(prediction, labels) for prediction in predictions[:SHOWN_INPUTS]]
    write(_COLUMNS, rows, Format.TABLE, sys.stdout)
    _echo_rest(len(predictions), "predictions", "--publish_predictions keeps all in the database")
    click.echo()


def print_failures(evaluation: Evaluation) -> None:
    """Prints the first failures, one a line with its reason, on stdout, if there are any."""
    failures = evaluation.failures
    if not failures:
        return
    for failure in failures[:SHOWN_INPUTS]:
        click.echo(f"failed: {failure_line(failure)}")
    _echo_rest(len(failures), "failures", "a published evaluation keeps all")
    click.echo()


def failure_line(failure: InputFailure) -> str:
    """Returns which input failed, in which stage and why, on one line, whatever a server has put into it."""
    return printable(f"{failure.input_id} in {failure.stage.value}: {failure.message}")


def _row(prediction: InputPrediction, labels: tuple[str, ...]) -> Row:
    index = int(prediction.indices[0])
    return {
        "input": prediction.input_id,
        "label": labels[index] if labels else str(index),
        "probability": float(prediction.probabilities[0]),
    }


def _echo_rest(count: int, what: str, where: str) -> None:
    """Says how many of ``count`` were not shown, if any."""
    if count > SHOWN_INPUTS:
        click.echo(f"… and {count - SHOWN_INPUTS} more {what}; {where}")
