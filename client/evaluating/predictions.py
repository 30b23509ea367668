"""Prints the predictions and failures of single inputs on stdout, and draws predictions into a folder."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click
from PIL import Image

from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.inference.results import LOCAL_AGENT
from inferometer.agent.preprocessing.image_decoder import decoded_image, in_mode
from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Url
from inferometer.agent.tasks.predictions import Classifications, Images
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.output import say
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.job import DatasetChoice
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement, InputPrediction
from inferometer.evaluators.kinds.batches.predictions import (
    can_be_drawn,
    image_alone,
    picture_of,
    prediction_table,
)
from inferometer.evaluators.kinds.summary import failure_line
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format, write
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    InputError,
    OutputError,
    explained,
    one_line,
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
    """The output folder for pictures of predictions.

    Attributes:
        folder: The folder, which is created if it does not exist.
        most: The maximum number of pictures.
    """

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
            here = evaluation.system.agent == LOCAL_AGENT
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
