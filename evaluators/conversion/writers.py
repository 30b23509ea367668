"""Writers of datasets, which can resume after an interruption, and the conversion of a sample's data."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.agent.closeable import Closeable
from inferometer.agent.preprocessing.inputs import (
    FORMATS,
    EncodedImage,
    Payload,
    Pixels,
    Tensor,
    Text,
    decoded_image,
    in_mode,
    open_image,
    undecodable,
)
from inferometer.evaluators.datasets.recordio import IMAGE_HEADER, framed
from inferometer.manifests.errors import ConfigurationError, DatasetError, InputError, one_line

_GREY_MODES = frozenset({"1", "L", "LA", "I", "F"})
_DEFAULT_QUALITY = 95
_BEGINNINGS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG\r\n\x1a\n": ".png",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"\0\0\0\x0cjP": ".jp2",
    b"\xff\x4f\xff\x51": ".j2k",
}
_PORTABLE = {b"P1": ".pnm", b"P2": ".pnm", b"P3": ".pnm", b"P4": ".pnm", b"P5": ".pgm", b"P6": ".ppm"}
DIGEST_BITS = 256


@dataclass(frozen=True, slots=True)
class Encoding:
    """How images are written.

    Attributes:
        resize: The length of the shorter side in pixels; None keeps the size.
        quality: The JPEG quality, 1 to 100, at which all images are written. None keeps the bytes of encoded
            images that are not resized; of the others, JPEG images are written as JPEG, and the rest as PNG.
        raw: Whether pixels are written, in formats that offer a choice.

    Raises:
        ConfigurationError: A number is out of range.
    """

    resize: int | None = None
    quality: int | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (("resize", self.resize, 16384), ("quality", self.quality, 100)):
            if value is not None and not 1 <= value <= most:
                raise ConfigurationError(f"{name} is {value}; allowed: 1 to {most}")
        if self.raw and self.quality is not None:
            raise ConfigurationError("raw pixels have no quality; leave out one of the two")

    def encoded(self, payload: Payload) -> EncodedImage:
        """Returns an image as an image file; its bytes are kept if neither a size nor a quality is requested.

        Raises:
            InputError: It is not an image, or cannot be decoded.
        """
        suffix = suffix_of(payload.content) if isinstance(payload, EncodedImage) else ".png"
        if isinstance(payload, EncodedImage) and self.resize is None and self.quality is None:
            return payload
        image = self._resized(_image(payload))
        if self.quality is None and suffix != ".jpg":
            return EncodedImage(_saved(image, "PNG"))
        return EncodedImage(_saved(image, "JPEG", quality=self.quality or _DEFAULT_QUALITY))

    def pixels(
        self, payload: Payload, *, square: bool = False, grey: bool | None = None
    ) -> NDArray[np.uint8]:
        """Returns the pixels of an image: height × width if it is grey, else height × width × 3.

        Args:
            payload: The image.
            square: Whether a resized image is also cropped to a square at its centre.
            grey: Whether to convert to grey or colour; None keeps the colours.

        Raises:
            InputError: It is not an image, or cannot be decoded.
        """
        image = self._resized(_image(payload), square=square)
        if grey is not None:
            image = in_mode(image, "L" if grey else "RGB")
        return np.asarray(image)

    def _resized(self, image: Image.Image, *, square: bool = False) -> Image.Image:
        if self.resize is None:
            return image
        short, long = sorted(image.size)
        if not short:
            raise InputError("image is empty")
        if short != self.resize:
            other = self.resize * long // short
            size = (self.resize, other) if image.width <= image.height else (other, self.resize)
            image = image.resize(size, Image.Resampling.BILINEAR)
        if square and image.width != image.height:
            left, top = (image.width - self.resize) // 2, (image.height - self.resize) // 2
            image = image.crop((left, top, left + self.resize, top + self.resize))
        return image


def suffix_of(content: bytes) -> str:
    """Returns the suffix for an image file by its first bytes; raises InputError for other formats."""
    for beginning, suffix in _BEGINNINGS.items():
        if content.startswith(beginning):
            return suffix
    if content[:2] in _PORTABLE and content[2:3].isspace():
        return _PORTABLE[content[:2]]
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ".webp"
    raise undecodable(content, f"it is none of the formats {', '.join(FORMATS)}")


def is_grey(payload: Payload) -> bool:
    """Returns whether an image is grey, by its header; raises InputError if that is damaged."""
    if isinstance(payload, EncodedImage):
        mode = open_image(payload.content, FORMATS).mode
        return mode in _GREY_MODES or mode.startswith("I;16")
    return isinstance(payload, Pixels) and payload.array.ndim == 2


def _image(payload: Payload) -> Image.Image:
    """Returns the image in grey or in red, green and blue."""
    if isinstance(payload, Pixels):
        return Image.fromarray(payload.array)
    if not isinstance(payload, EncodedImage):
        raise InputError(f"is {type(payload).__name__.lower()} data, not an image")
    return in_mode(decoded_image(payload.content), "L" if is_grey(payload) else "RGB")


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def digest_of(index: int, label: str | None, payload: Payload) -> int:
    """Returns a ``DIGEST_BITS``-bit digest of a sample's index, label and data.

    The sum of the digests of all samples, modulo 2 ** ``DIGEST_BITS``, is the checksum of a dataset; it can
    be continued after an interruption.
    """
    if isinstance(payload, EncodedImage):
        head, content = "encoded", payload.content
    elif isinstance(payload, Pixels | Tensor):
        head, content = f"{payload.array.dtype} {payload.array.shape}", payload.array.tobytes()
    elif isinstance(payload, Text):
        head, content = "text", repr(payload).encode("utf-8")
    else:
        raise InputError("is a URL, which has to be fetched first")
    digest = hashlib.sha256(f"{index}\n{label!r}\n{head}\n".encode())
    digest.update(content)
    return int.from_bytes(digest.digest(), "big")


def added(checksum: int, digest: int) -> int:
    """Returns a checksum to which the digest of one more sample is added."""
    return (checksum + digest) % (1 << DIGEST_BITS)


State = Mapping[str, int]
"""The state of a writer after ``flush``."""


class DatasetWriter(Closeable):
    """Writes samples one after another into the files of a folder.

    Args:
        folder: An existing folder. It holds the files of an earlier writer if ``state`` is not empty.
        encoding: How images are written.
        state: The position of the earlier writer at its last flush; later data is written again.

    Raises:
        OSError: A file cannot be written; every method may raise this.
    """

    def __init__(self, folder: Path, encoding: Encoding, state: State) -> None:
        self.folder = folder
        self.encoding = encoding

    @abstractmethod
    def write(self, index: int, payload: Payload, label: str | None, number: int | None) -> Payload:
        """Writes the next sample, and returns its data as it should read back.

        Args:
            index: The sample's index, from 0.
            payload: The sample's data.
            label: The sample's label.
            number: The index of the sample's class.

        Raises:
            InputError: The format cannot hold the sample.
        """

    @abstractmethod
    def flush(self) -> State:
        """Waits until everything is on the disk, and returns the state of the writer."""

    def finish(self) -> None:
        """Completes the files, after the last ``flush``."""


class RecordWriter(DatasetWriter):
    """Writes ``train.rec`` with ``train.idx``; see ``DatasetWriter``."""

    def __init__(self, folder: Path, encoding: Encoding, state: State) -> None:
        super().__init__(folder, encoding, state)
        self._records = _reopened(folder / "train.rec", state.get("rec_bytes", 0))
        self._index = _reopened(folder / "train.idx", state.get("idx_bytes", 0))

    def write(self, index: int, payload: Payload, label: str | None, number: int | None) -> Payload:
        """Writes the next sample."""
        image = self.encoding.encoded(payload)
        header = IMAGE_HEADER.pack(0, -1.0 if number is None else float(number), index, 0)
        offset = self._records.tell()
        self._records.write(framed(header + image.content))
        self._index.write(b"%d\t%d\n" % (index, offset))
        return image

    def flush(self) -> State:
        """Returns the sizes of the two files."""
        for file in (self._records, self._index):
            _flush(file)
        return {"rec_bytes": self._records.tell(), "idx_bytes": self._index.tell()}

    def close(self) -> None:
        """Closes the files."""
        self._records.close()
        self._index.close()


class LmdbWriter(DatasetWriter):
    """Writes an LMDB of Datums; see ``DatasetWriter``. The LMDB contains samples once they are flushed."""

    def __init__(self, folder: Path, encoding: Encoding, state: State) -> None:
        try:
            from inferometer.evaluators.conversion.lmdb_environment import LmdbEnvironment
        except ImportError as error:
            raise ConfigurationError(
                f"caffe_lmdb requires the package lmdb, which cannot be imported ({one_line(error)}); "
                "install it with: pip install 'inferometer[data]'"
            ) from error
        super().__init__(folder, encoding, state)
        self._environment = LmdbEnvironment(folder)

    def write(self, index: int, payload: Payload, label: str | None, number: int | None) -> Payload:
        """Writes the next sample."""
        from inferometer.evaluators.conversion.lmdb_environment import encoded_datum, float_datum, raw_datum

        written: Payload
        if isinstance(payload, Tensor):
            if payload.array.ndim != 3 or payload.array.dtype != np.float32:
                shape = list(payload.array.shape)
                raise InputError(
                    f"is a tensor of {payload.array.dtype} of shape {shape}; a Datum holds float32 in 3 axes"
                )
            written, message = payload, float_datum(payload.array, number)
        elif self.encoding.raw:
            written = Pixels(self.encoding.pixels(payload))
            message = raw_datum(written.array, number)
        else:
            written = self.encoding.encoded(payload)
            message = encoded_datum(written.content, number)
        self._environment.put(b"%08d" % index, message)
        return written

    def flush(self) -> State:
        """Commits the transaction."""
        self._environment.commit()
        return {}

    def close(self) -> None:
        """Closes the environment, and discards data that was not flushed."""
        self._environment.close()


class FolderWriter(DatasetWriter):
    """Writes images into class folders, numbered by their index; see ``DatasetWriter``."""

    _labelled: bool | None = None

    def write(self, index: int, payload: Payload, label: str | None, number: int | None) -> Payload:
        """Writes the next sample."""
        if self._labelled is not None and self._labelled != (label is not None):
            raise DatasetError("only some samples have a class; a folder of images has either all or none")
        self._labelled = label is not None
        image = self.encoding.encoded(payload)
        folder = self.folder
        if label is not None:
            if not label or label[0] == "." or {"/", "\0"} & set(label) or len(os.fsencode(label)) > 255:
                raise DatasetError(f'the class "{label}" cannot be the name of a folder')
            folder = folder / label
            folder.mkdir(exist_ok=True)
        (folder / f"{index:08d}{suffix_of(image.content)}").write_bytes(image.content)
        return image

    def flush(self) -> State:
        """Returns at once: written files survive if the process is killed."""
        return {}

    def finish(self) -> None:
        """Syncs all files of this machine to the disk, which is faster than syncing very many one by one."""
        os.sync()

    def close(self) -> None:
        """Does nothing: no file stays open."""


class ArrayWriter(DatasetWriter):
    """Writes an ``.npz`` of samples of one size; see ``DatasetWriter``.

    Up to ``count`` samples, some of which may fail, are converted by ``convert`` to arrays of the shape and
    element type of ``first``, which is the first sample.
    """

    FILE = "data.npz"

    def __init__(
        self,
        folder: Path,
        encoding: Encoding,
        state: State,
        *,
        count: int,
        first: NDArray[Any],
        convert: Callable[[Payload], NDArray[Any]],
    ) -> None:
        super().__init__(folder, encoding, state)
        self._name = "images" if first.dtype == np.uint8 and first.ndim >= 2 else "inputs"
        path = folder / f"{self._name}.npy"
        if state and path.is_file():
            self._array = _mapped(path, "r+")
        else:
            self._array = _mapped(path, "w+", first.dtype, (count, *first.shape))
        self._labels = _reopened(folder / "labels.jsonl", state.get("labels_bytes", 0))
        self._convert = convert
        self._count = state.get("count", 0)

    def write(self, index: int, payload: Payload, label: str | None, number: int | None) -> Payload:
        """Writes the next sample."""
        array = self._convert(payload)
        if array.shape != self._array.shape[1:] or array.dtype != self._array.dtype:
            raise InputError(
                f"is {array.dtype} of shape {list(array.shape)}, and the first one is {self._array.dtype} of "
                f"shape {list(self._array.shape[1:])}; an .npz has only one size; for images, use --resize"
            )
        self._array[index] = array
        self._labels.write(f"{json.dumps(label)}\n".encode())
        self._count = index + 1
        return Pixels(array) if self._name == "images" else Tensor(array)

    def flush(self) -> State:
        """Writes the array and the labels to the disk."""
        self._array.flush()
        _flush(self._labels)
        return {"count": self._count, "labels_bytes": self._labels.tell()}

    def finish(self) -> None:
        """Puts the array and the labels into one file."""
        path = self.folder / f"{self._name}.npy"
        count, labels = self._count, self._written_labels()
        if count < len(self._array):
            smaller = self.folder / "smaller.npy"
            kept = _mapped(smaller, "w+", self._array.dtype, (count, *self._array.shape[1:]))
            kept[:] = self._array[:count]
            kept.flush()
            smaller.replace(path)
        with zipfile.ZipFile(self.folder / self.FILE, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            archive.write(path, path.name)
            if labels is not None:
                with archive.open("labels.npy", "w", force_zip64=True) as file:
                    np.save(file, np.array(labels, dtype=np.str_), allow_pickle=False)
        with (self.folder / self.FILE).open("rb") as written:
            os.fsync(written.fileno())

    def _written_labels(self) -> list[str] | None:
        """Returns the labels of the samples; None if there are none."""
        lines = (self.folder / "labels.jsonl").read_text(encoding="utf-8").splitlines()
        labels = [json.loads(line) for line in lines]
        if None in labels and any(label is not None for label in labels):
            raise DatasetError("only some samples have a class; an .npz has labels for all or for none")
        return None if None in labels else labels

    def close(self) -> None:
        """Closes the labels."""
        self._labels.close()


def _mapped(
    path: Path, mode: Literal["r+", "w+"], dtype: Any = None, shape: tuple[int, ...] | None = None
) -> np.memmap[Any, Any]:
    """Opens an array that is stored in a file."""
    array: np.memmap[Any, Any] = np.lib.format.open_memmap(  # type: ignore[no-untyped-call,unused-ignore]
        path, mode, dtype, shape
    )
    return array


def _reopened(path: Path, size: int) -> IO[bytes]:
    """Opens a file for appending after its first ``size`` bytes; truncates the rest."""
    file = path.open("ab")
    file.truncate(size)
    file.seek(size)
    return file


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def publish(content: Path, target: Path) -> None:
    """Moves the completed files of a writer to their target; continues where it was interrupted.

    Args:
        content: The folder of the writer.
        target: The dataset: a folder, or a ``.rec`` or an ``.npz`` by its suffix.
    """
    if target.suffix == ".npz":
        (content / ArrayWriter.FILE).replace(target)
    elif target.suffix == ".rec":
        for suffix in (".classes.txt", ".idx", ".rec"):
            part = content / f"train{suffix}"
            if part.exists():
                part.replace(target.with_suffix(suffix))
    else:
        content.replace(target)
