"""A plug-in: linear models as a framework, images in a CSV file as a dataset, and a report.

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
    Pixels,
    PredictionError,
    Predictor,
    Report,
    Row,
    Sample,
    Tensors,
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
        self,
        path: Path,
        category: str,
        *,
        checksum: str,
        name: str | None = None,
        version: str | None = None,
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
