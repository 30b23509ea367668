"""Prints the results of single inputs on stdout: predictions and failures."""

from __future__ import annotations

import sys

import click

from inferometer.agent.tasks.predictions import Classifications
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, InputPrediction
from inferometer.evaluators.kinds.summary import failure_line
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.predictions import prediction_table
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import one_line

SHOWN_INPUTS = 20
_LABEL_CHARACTERS = 80
_COLUMNS = (
    Column("input", "input"),
    Column("label", "top-1"),
    Column("probability", "probability", decimals=4),
)
_TOPS = ("top-1", "top-5")
_NS_PER_MS = 1_000_000
_WITH_NETWORK = (("", "from the request to the answer of the server: the network is in it"),)
_PROFILED = (("", "under the framework's profiler, which slows the model down; --leveled measures both"),)


def print_predictions(evaluation: Evaluation[BatchMeasurement]) -> None:
    """Prints the most probable class of the first inputs, if any, as a table on stdout.

    Predictions of other tasks are printed in the format of ``prediction_table``.
    """
    predictions = evaluation.measurement.predictions
    if not predictions:
        return
    if not isinstance(predictions[0].prediction, Classifications):
        labels = evaluation.system.manifest.output.parameters.labels
        table = prediction_table(predictions[:SHOWN_INPUTS], labels)
        write(table.columns, table.rows, Format.TABLE, sys.stdout)
        _echo_rest(len(predictions), "predictions", "--publish_predictions keeps all in the database")
        click.echo()
        return
    labels = evaluation.system.manifest.output.parameters.labels
    rows = [_row(prediction, labels) for prediction in predictions[:SHOWN_INPUTS]]
    write(_COLUMNS, rows, Format.TABLE, sys.stdout)
    _echo_rest(len(predictions), "predictions", "--publish_predictions keeps all in the database")
    click.echo()


def print_failures(evaluation: Evaluation[BatchMeasurement]) -> None:
    """Prints the first failures on stdout, one per line with its reason."""
    failures = evaluation.measurement.failures
    if not failures:
        return
    for failure in failures[:SHOWN_INPUTS]:
        click.echo(f"failed: {failure_line(failure)}")
    _echo_rest(len(failures), "failures", "a published evaluation keeps all")
    click.echo()


def _row(prediction: InputPrediction, labels: tuple[str, ...]) -> Row:
    index = int(prediction.indices[0])
    return {
        "input": prediction.input_id,
        "label": one_line(labels[index], _LABEL_CHARACTERS) if labels else str(index),
        "probability": float(prediction.probabilities[0]),
    }


def _echo_rest(count: int, what: str, where: str) -> None:
    """Prints how many of ``count`` items were not shown, if any."""
    if count > SHOWN_INPUTS:
        click.echo(f"… and {count - SHOWN_INPUTS} more {what}; {where}")
