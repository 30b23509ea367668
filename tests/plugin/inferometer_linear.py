"""A plug-in: linear models as a framework, counting as a task, images in a CSV file, and a report.

It imports ``inferometer`` and NumPy, and no module of inferometer's folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer import (
    ArtifactError,
    BatchMeasurement,
    Column,
    Dataset,
    DatasetError,
    DatasetIdentity,
    DeviceError,
    Evaluation,
    FrameworkEntry,
    ModelManifest,
    ModelOutput,
    Pixels,
    PredictedInputs,
    PredictionError,
    Predictions,
    Predictor,
    Report,
    Row,
    Sample,
    Score,
    TaskMetric,
    TaskPostprocessor,
    TaskResult,
    Tensors,
    Values,
    bootstrap_interval,
)

LINEAR = FrameworkEntry(
    name="Linear",
    predictor="inferometer_linear:LinearPredictor",
    distributions=("inferometer-linear",),
    install="pip install inferometer-linear",
)


class LinearPredictor(Predictor):
    """A matrix and a bias in an ``.npz``; the output is ``input @ matrix + bias``, on the CPU."""

    _matrix: NDArray[np.float32] | None = None
    _bias: NDArray[np.float32] | None = None

    def load(self) -> None:
        """Reads the matrix and the bias; see ``Predictor``."""
        if self.options.device.is_gpu:
            raise DeviceError(f"{self}: Linear cannot use {self.options.device}; run on the CPU")
        if self.artifacts.graph is None:
            raise ArtifactError(f"{self}: needs graph_path, the .npz file")
        try:
            with np.load(self.artifacts.graph) as arrays:
                self._matrix, self._bias = arrays["matrix"], arrays["bias"]
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(f"{self.artifacts.graph}: is no linear model: {error}") from error

    def predict(self, inputs: Tensors) -> Tensors:
        """Multiplies; see ``Predictor``."""
        if self._matrix is None or self._bias is None:
            raise PredictionError(f"{self}: is not loaded")
        batch = self.checked_input(inputs)
        return {"logits": batch.reshape(len(batch), -1) @ self._matrix + self._bias}

    @property
    def threads(self) -> int | None:
        """NumPy does not report its number of threads."""
        return None

    def close(self) -> None:
        """Drops the arrays."""
        self._matrix = self._bias = None


class Counting(TaskPostprocessor):
    """The task of telling a number: the place of the largest output."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        """Takes the manifest's output, of which it uses nothing."""

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        """Returns the numbers; see ``TaskPostprocessor``."""
        (scores,) = tensors.values()
        numbers = scores.argmax(axis=1)[:, np.newaxis].astype(np.float32)
        return Values(numbers), np.ones(inputs.size, np.bool_)


class CountingMetric(TaskMetric):
    """The mean error of the numbers; a number that is labelled "9" cannot be told from 6."""

    task: ClassVar[str] = "counting"

    def __init__(self, manifest: ModelManifest) -> None:
        super().__init__(manifest)
        self._errors: list[float] = []

    def add(self, sample: Sample, prediction: Predictions) -> None:
        """Takes the prediction of one image; see ``TaskMetric``."""
        if not isinstance(prediction, Values) or sample.label is None:
            return
        if sample.label == "9":
            raise DatasetError("9 looks like 6")
        self._errors.append(abs(float(prediction.values[0, 0]) - int(sample.label)))

    def result(self) -> TaskResult | None:
        """Returns the mean error; see ``TaskMetric``."""
        if not self._errors:
            return None
        errors = np.array(self._errors)
        interval = bootstrap_interval(lambda chosen: float(errors[chosen].mean()), len(errors))
        scores = (Score("MAE", float(errors.mean()), interval, "digits"),)
        return TaskResult(self.task, "counting 1.2", len(errors), scores)


class CsvDataset(Dataset):
    """Square grey images, one a line: the label, then the pixels from 0 to 255.

    Args:
        path: The file.
        category: Such as ``vision``.
        checksum: ``sha256:…`` of the file.
        name: The manifest's name; None gives the path.
        version: The manifest's version.

    Raises:
        DatasetError: The file cannot be read.
    """

    def __init__(
        self, path: Path, category: str, *, checksum: str, name: str | None = None, version: str | None = None
    ) -> None:
        try:
            lines = np.loadtxt(path, delimiter=",", dtype=np.uint8, ndmin=2)
        except (OSError, ValueError) as error:
            raise DatasetError(f"dataset {path}: is no CSV file of images: {error}") from error
        side = round((lines.shape[1] - 1) ** 0.5)
        self._labels = lines[:, 0]
        self._images = lines[:, 1:].reshape(len(lines), side, side)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(lines)))

    def __iter__(self) -> Iterator[Sample]:
        """The images in the order of the file."""
        for number, (image, label) in enumerate(zip(self._images, self._labels, strict=True)):
            yield Sample(str(number), Pixels(image), str(label))


class CoverageReport(Report[BatchMeasurement]):
    """One row for each evaluation: the dataset and its size."""

    name: ClassVar[str] = "coverage"
    summary: ClassVar[str] = "the dataset of each evaluation"
    takes = (BatchMeasurement,)
    columns: ClassVar[tuple[Column, ...]] = (
        Column("id", "evaluation"),
        Column("dataset_name", "dataset"),
        Column("dataset_samples", "samples"),
    )

    def rows(self, evaluations: Sequence[Evaluation[BatchMeasurement]]) -> Iterator[Row]:
        """Yields one row for each of the ``evaluations``, in their order."""
        for evaluation in evaluations:
            dataset = evaluation.dataset
            yield {"id": evaluation.id, "dataset_name": dataset.name, "dataset_samples": dataset.size}
