"""Datasets in an LMDB of Caffe's Datums, as ``convert_imageset`` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.files.class_names import read_class_names
from inferometer.evaluators.datasets.files.datum import DatumFields, pixels_of, read_fields, tensor_of
from inferometer.evaluators.datasets.files.lmdb_pages import read_entries
from inferometer.evaluators.datasets.files.random_access import RandomAccessFile
from inferometer.evaluators.datasets.folder import MAX_IMAGE_BYTES, printable, too_large
from inferometer.manifests.errors import DatasetError, InputError

DATA_FILE = "data.mdb"
CLASSES_FILE = "classes.txt"


class LmdbDataset(Dataset):
    """The Datums of an LMDB, in the order of their keys, which are the ids.

    A Datum is an encoded image; raw pixels, channels × height × width in blue, green and red; or a tensor in
    ``float_data``. A label is the index of a class, as text; where ``classes.txt`` lies in the folder, with
    the name of a class in each line, it is that name. A label of -1 is none. Samples can be read from several
    threads. Neither the lock file nor the LMDB library is used, so that the LMDB must not be written to
    meanwhile, and a damaged one cannot end the process. A damaged Datum fails as an input.

    Args:
        path: The folder with ``data.mdb``, or a file like it.
        category: The category, such as ``vision``.
        checksum: ``sha256:…`` of the file, where it is known.
        name: The name of the dataset; None means the path.
        version: The manifest's version, where there is one.

    Raises:
        DatasetError: The file is unreadable, not an LMDB of one database, truncated, damaged or empty.
    """

    backend = "caffe_lmdb"

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        is_folder = path.is_dir()
        self._file = RandomAccessFile(path / DATA_FILE if is_folder else path)
        self._entries = read_entries(self._file)
        self._names = read_class_names(
            path / CLASSES_FILE if is_folder else path.with_suffix(f".{CLASSES_FILE}")
        )
        self.labels_are_indices = self._names is None
        if not (self._entries.offsets + self._entries.sizes <= self._file.size).any():
            raise DatasetError(
                f"{self._file.path}: is truncated: no sample is within its {self._file.size} bytes"
            )
        size = len(self._entries.offsets)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, size))

    def __iter__(self) -> Iterator[Sample]:
        return map(self.sample, range(len(self)))

    def sample(self, index: int) -> Sample:
        """Returns a sample; its label is read here, its data later."""
        key = printable(self._entries.key(index).decode("utf-8", "surrogateescape"))
        try:
            fields = self._fields(index)
        except (InputError, OSError):
            return Sample(key, partial(self._read_again, index))
        label = fields.label
        text = None
        if label is not None and label != -1:
            named = self._names is not None and 0 <= label < len(self._names)
            text = self._names[label] if named and self._names is not None else str(label)
        return Sample(key, partial(self._read, index, fields), text, self.labels_are_indices)

    def files(self) -> tuple[Path]:
        """Returns the file of the records."""
        return (self._file.path,)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _fields(self, index: int) -> DatumFields:
        """Reads the fields of a Datum; raises InputError, with the place, if it is damaged."""
        offset, size = int(self._entries.offsets[index]), int(self._entries.sizes[index])
        if damage := self._entries.damage(index, self._file):
            raise InputError(self._where(index, damage))
        if size > MAX_IMAGE_BYTES:
            raise too_large(self._where(index, "a Datum"), size)
        try:
            return read_fields(lambda count, place: self._file.read(count, offset + place), size)
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error

    def _read_again(self, index: int) -> Payload:
        return self._read(index, self._fields(index))

    def _read(self, index: int, fields: DatumFields) -> Payload:
        """Reads the data of a Datum."""
        try:
            if fields.encoded and fields.data_size:
                return EncodedImage(self._bytes(index, fields.data_offset, fields.data_size))
            if fields.floats and not fields.data_size:
                parts = [self._bytes(index, offset, size) for offset, size in fields.floats]
                return Tensor(tensor_of(fields, parts))
            return Pixels(pixels_of(fields, self._bytes(index, fields.data_offset, fields.data_size)))
        except InputError as error:
            raise InputError(self._where(index, str(error))) from error

    def _bytes(self, index: int, offset: int, size: int) -> bytes:
        content = self._file.read(size, int(self._entries.offsets[index]) + offset)
        if len(content) < size:
            raise InputError(f"is cut off: the file has become shorter than {self._file.size} bytes")
        return content

    def _where(self, index: int, what: str) -> str:
        key = printable(self._entries.key(index).decode("utf-8", "surrogateescape"))
        return (
            f"{self._file.path}: record {index}, {key}, at byte {int(self._entries.offsets[index])}: {what}"
        )
