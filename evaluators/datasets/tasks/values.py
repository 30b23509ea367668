"""Datasets of regression: a table of image files, and the numbers that a model should find in each."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.folder import printable, read_image
from inferometer.evaluators.datasets.tasks.text_rows import CSV_RULES, TEXT_COLUMNS
from inferometer.evaluators.datasets.truths import TargetValues
from inferometer.manifests.errors import DatasetError

SUFFIX = ".csv"
FILE_COLUMN = "file"


class _Row(NamedTuple):
    file: str
    values: tuple[float, ...]


class ValuesTableDataset(Dataset):
    """A ``.csv`` of image files and numbers. The order is that of the lines.

    The first line names the columns; the first is ``file``, with paths relative to the table's folder, and
    the others are numbers, the targets. It is UTF-8, separated by commas.

    ``path`` is the table; the other arguments are those of ``MaskFolderDataset``.

    Raises:
        DatasetError: It cannot be read, or a line is not as above.
    """

    backend = "values_csv"

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._folder = path.parent
        self._rows = _read(path)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(self._rows)))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample, whose image is read later."""
        row = self._rows[index]
        truth = TargetValues(np.array(row.values, np.float64))
        return Sample(printable(row.file), partial(read_image, self._folder / row.file), truth=truth)

    def files(self) -> Iterator[Path]:
        """Returns the files of the images."""
        return (self._folder / row.file for row in self._rows)


def is_values_table(path: Path) -> bool:
    """Returns whether the first column of a ``.csv`` is ``file``, and no column is that of a text."""
    if path.suffix.casefold() != SUFFIX:
        return False
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
    except (OSError, ValueError, csv.Error):
        return False
    named = [name.strip().casefold() for name in header]
    return named[:1] == [FILE_COLUMN] and len(named) > 1 and TEXT_COLUMNS.isdisjoint(named)


def targets_of(values: NDArray[np.float64], samples: int, where: str) -> NDArray[np.float64]:
    """Returns targets as float64, samples × k.

    Args:
        values: Numbers; N or N × k.
        samples: The number of samples.
        where: The array, for errors.

    Raises:
        DatasetError: The targets are not numbers, not finite, or not for these samples.
    """
    if (
        values.dtype.kind not in "fiub"
        or values.ndim not in {1, 2}
        or len(values) != samples
        or not values.size
    ):
        raise DatasetError(
            f"{where}: targets are {values.dtype} of shape {list(values.shape)}; accepted for {samples} "
            "samples: numbers, N or N × k"
        )
    targets = values.reshape(samples, -1).astype(np.float64)
    if len(wrong := np.flatnonzero(~np.isfinite(targets).all(axis=1))):
        raise DatasetError(f"{where}: a target of sample {wrong[0]} is not a finite number")
    return targets


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _read(path: Path) -> Sequence[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if [name.strip().casefold() for name in header[:1]] != [FILE_COLUMN] or len(header) < 2:
                raise DatasetError(
                    f"{path}: line 1 names the columns {FILE_COLUMN}, and one or more of numbers"
                )
            found = [_row(path, rows.line_num, cells, len(header)) for cells in rows if cells]
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is no table in UTF-8, at byte {error.start}") from error
    except csv.Error as error:
        raise DatasetError(f"{path}: line {rows.line_num}: is no CSV; {CSV_RULES}") from error
    if not found:
        raise DatasetError(f"{path}: has no line with a file and its numbers")
    return found


def _row(path: Path, line: int, cells: Sequence[str], columns: int) -> _Row:
    if len(cells) != columns:
        raise DatasetError(f"{path}: line {line} has {len(cells)} columns; the first line names {columns}")
    file = cells[0].strip()
    if not file or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
        raise DatasetError(
            f'{path}: line {line}: "{file}" is no path in the folder of the table; it is such as images/1.png'
        )
    for text in cells[1:]:
        if not _is_number(text):
            raise DatasetError(f'{path}: line {line}: "{text}" is not a finite number')
    return _Row(file, tuple(float(text) for text in cells[1:]))
