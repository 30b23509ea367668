"""Datasets in a file of RecordIO, as MXNet's ``im2rec`` writes them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.files.class_names import read_class_names
from inferometer.evaluators.datasets.files.random_access import RandomAccessFile
from inferometer.evaluators.datasets.files.record_framing import (
    HEADER,
    MAGIC,
    find_records,
    join_parts,
    padded,
    read_index,
    split_word,
)
from inferometer.evaluators.datasets.folder import MAX_IMAGE_BYTES, too_large
from inferometer.manifests.errors import InputError

SUFFIX = ".rec"
IMAGE_HEADER = struct.Struct("<IfQQ")
"""MXNet's ``IRHeader``: the number of labels that follow it, the only label if that is 0, and two ids."""
_BEGIN = struct.Struct("<IIIfQQ")
_LABEL = struct.Struct("<f")


class RecordDataset(Dataset):
    """The images of a ``.rec``, in the order of the file.

    A label is the index of a class, as text; of several labels it is the first. Where ``<name>.classes.txt``
    lies beside the file, with the name of a class in each line, it is that name. A label of -1 is none. With
    an ``.idx`` of the same name beside it, the file is not gone through. Samples can be read from several
    threads. A damaged record fails as an input.

    Args:
        path: The ``.rec``.
        category: The category, such as ``vision``.
        checksum: ``sha256:…`` of the file, where it is known.
        name: The name of the dataset; None means the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The file cannot be read or has no record, or the ``.idx`` is damaged or of another file.
    """

    backend = "recordio"

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._file = RandomAccessFile(path)
        index = path.with_suffix(".idx")
        self._places = read_index(index, self._file) if index.exists() else find_records(self._file)
        self._names = read_class_names(path.with_suffix(".classes.txt"))
        self.labels_are_indices = self._names is None
        size = len(self._places.offsets)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, size))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample; its label is read here, its image later."""
        offset = int(self._places.offsets[index])
        try:
            begin = self._file.read(_BEGIN.size, offset)
        except OSError:
            begin = b""
        if len(begin) == _BEGIN.size:
            magic, word, labels, label, _, _ = _BEGIN.unpack(begin)
            is_whole = offset + HEADER.size + padded(word) <= int(self._places.ends[index])
            if magic == MAGIC and labels == 0 and word >> 29 == 0 and is_whole:
                size = word - IMAGE_HEADER.size
                read = partial(self._read, index, offset + _BEGIN.size, size)
                return Sample(str(index), read, self._text(label), self.labels_are_indices)
        return self._unusual(index, offset, int(self._places.ends[index]))

    def files(self) -> tuple[Path]:
        """Returns the file of the records."""
        return (self._file.path,)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, index: int, offset: int, size: int) -> EncodedImage:
        """Reads the image of a record in one part with one label."""
        if not 0 <= size <= self._file.size - offset:
            raise InputError(self._where(index, f"is cut off: {self._extent(size)}"))
        if size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "an image"), size)
        content = self._file.read(size, offset)
        if len(content) < size:
            raise InputError(self._where(index, f"is cut off: {self._extent(size)}"))
        return EncodedImage(content)

    def _extent(self, size: int) -> str:
        return f"it should have {size + _BEGIN.size} bytes, and the file ends at byte {self._file.size}"

    def _unusual(self, index: int, offset: int, end: int) -> Sample:
        """Returns the sample of a record in several parts, with several labels, or damaged."""
        read = partial(self._read_record, index, offset, end)
        try:
            _, label = self._content(index, offset, min(end, offset + 4096))
        except (InputError, OSError):
            try:
                _, label = self._content(index, offset, end)
            except (InputError, OSError):
                return Sample(str(index), read)
        return Sample(str(index), read, self._text(label), self.labels_are_indices)

    def _read_record(self, index: int, offset: int, end: int) -> EncodedImage:
        return EncodedImage(self._content(index, offset, end)[0])

    def _content(self, index: int, offset: int, end: int) -> tuple[bytes, float]:
        """Returns the image of a record, and its first label."""
        size = end - offset
        if size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "an image"), size)
        record = self._file.read(size, offset)
        if len(record) < HEADER.size:
            raise InputError(self._where(index, f"is cut off: the file ends at byte {offset + len(record)}"))
        magic, word = HEADER.unpack_from(record)
        if magic != MAGIC:
            raise InputError(self._where(index, f"does not begin with the number {MAGIC:#x} of RecordIO"))
        flag, length = split_word(word)
        if flag == 0 and length > size - HEADER.size:
            raise InputError(
                self._where(
                    index,
                    f"is cut off or damaged: its length is {length}, and {size - HEADER.size} are there",
                )
            )
        try:
            content = join_parts(record)
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error
        return self._split(index, content)

    def _split(self, index: int, content: bytes) -> tuple[bytes, float]:
        """Returns the image after the header and the labels, and the first label."""
        if len(content) < IMAGE_HEADER.size:
            raise InputError(
                self._where(index, f"has {len(content)} bytes, too few for the header of an image")
            )
        labels, label, _, _ = IMAGE_HEADER.unpack_from(content)
        begin = IMAGE_HEADER.size + labels * _LABEL.size
        if begin > len(content):
            raise InputError(self._where(index, f"has {labels} labels, which do not fit into it"))
        if labels:
            [label] = _LABEL.unpack_from(content, IMAGE_HEADER.size)
        return content[begin:], float(label)

    def _text(self, label: float) -> str | None:
        """Returns the label as text; None for none."""
        if math.isnan(label) or label == -1:
            return None
        if label != np.floor(label):
            return str(label)
        if self._names is not None and 0 <= label < len(self._names):
            return self._names[int(label)]
        return str(int(label)) if math.isfinite(label) else str(label)

    def _where(self, index: int, what: str) -> str:
        return f"{self._file.path}: record {index} at byte {int(self._places.offsets[index])}: {what}"
