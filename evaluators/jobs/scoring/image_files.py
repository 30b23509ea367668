"""Folders of predicted images: masks of classes, and enhanced images."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from inferometer.agent.tasks.predictions import ClassMaps, Images, Predictions
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.evaluators.datasets.folder import is_image
from inferometer.evaluators.datasets.tasks.masks import read_mask
from inferometer.evaluators.datasets.tasks.pairs import read_target
from inferometer.evaluators.jobs.scoring.prediction_files import PredictionFile
from inferometer.manifests.errors import DatasetError, PredictionError


class _Folder(PredictionFile):
    """Images whose paths are those of the dataset's images, up to the suffix."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        super().__init__(path, dataset, labels)
        self._files: dict[str, Path] = {}
        if not path.is_dir():
            raise DatasetError(f"{path}: is no folder; predicted images are one file for each image")
        for file in _images(path):
            stem = _stem(file.relative_to(path).as_posix())
            if stem in self._files:
                raise DatasetError(f"{file}: has the name of {self._files[stem].name}; one file is allowed")
            self._files[stem] = file
        if not self._files:
            raise DatasetError(f"{path}: holds no images")

    def key(self, sample: Sample) -> str:
        """Returns the path of a sample without its suffix."""
        return _stem(sample.id)

    def keys(self) -> Collection[str]:
        """Returns the paths of the files without their suffixes."""
        return self._files.keys()

    def read(self, sample: Sample) -> Predictions | None:
        """Returns the image of a sample, which is read now."""
        file = self._files.get(self.key(sample))
        if file is None:
            return None
        try:
            return self._read(file)
        except DatasetError as error:
            raise PredictionError(str(error)) from error

    def _read(self, file: Path) -> Predictions:
        raise NotImplementedError


class MaskFiles(_Folder):
    """PNG files whose pixels are the numbers of the dataset's classes; 255 is none of them."""

    def __init__(self, path: Path, dataset: Dataset, labels: Sequence[str]) -> None:
        named = next((getattr(sample.truth, "classes", ()) for sample in dataset), ())
        super().__init__(path, dataset, labels or named)

    def _read(self, file: Path) -> ClassMaps:
        found = read_mask(file, self.labels).pixels
        return ClassMaps(np.array([found.shape], np.int64), found.ravel())


class EnhancedFiles(_Folder):
    """Enhanced images in any supported image format."""

    def _read(self, file: Path) -> Images:
        pixels = read_target(file).pixels.astype(np.float64) / 255
        return Images(pixels[np.newaxis])


def _images(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise DatasetError(
            f"{error.filename or folder}: cannot be read: {error.strerror or error}"
        ) from error

    return [
        Path(place, name)
        for place, _, names in os.walk(folder, onerror=refuse)
        for name in sorted(names)
        if is_image(name) and not name.startswith(".")
    ]


def _stem(path: str) -> str:
    return PurePosixPath(path).with_suffix("").as_posix()
