"""Datasets without labels from a list of URLs and paths."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from inferometer.agent.artifacts.urls import without_credentials
from inferometer.agent.preprocessing.inputs import EncodedImage, Url
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.folder import printable, read_image
from inferometer.manifests.errors import DatasetError, InputError

CATEGORY = "urls"
MAX_LIST_BYTES = 64 * 1024 * 1024
"""The maximum size of a list."""
_SHOWN_CHARACTERS = 80
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BOM = "\ufeff"


class UrlsDataset(Dataset):
    """The images that a file lists, one URL or path a line, in the file's order.

    Blank lines and lines that begin with ``#`` are skipped. The agent that runs the model fetches URLs, which
    have a scheme as in ``https://…``. Other lines are paths of images, relative to the file, which are read
    here. Each line is an input with an id of its own, even if two lines are equal.

    Args:
        path: The file, in UTF-8.
        duplicate_input: The number of passes over the list.

    Raises:
        DatasetError: The file cannot be read, is not UTF-8, is too large, or lists nothing.
    """

    def __init__(self, path: Path, *, duplicate_input: int = 1) -> None:
        content = _content(path)
        self._folder = path.parent
        self._lines = _lines(content, path)
        self._copies = duplicate_input
        checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
        size = len(self._lines) * duplicate_input
        super().__init__(DatasetIdentity(CATEGORY, printable(str(path)), None, checksum, size))

    def __iter__(self) -> Iterator[Sample]:
        for copy in range(1, self._copies + 1):
            for number, text in self._lines:
                data = Url(text) if _URL.match(text) else partial(_read, self._folder / text)
                yield Sample(_input_id(number, text, copy), data)


def _input_id(number: int, text: str, copy: int) -> str:
    """Returns the id of an input: line and text; the number of a further pass follows that of the line.

    The id is stored, and omits the credentials of a URL.
    """
    place = str(number) if copy == 1 else f"{number}.{copy}"
    return f"{place}:{_shortened(printable(without_credentials(text)))}"


def _read(path: Path) -> EncodedImage:
    try:
        return read_image(path)
    except ValueError as error:  # a name that no file can have, such as one with a NUL
        raise InputError(f"{printable(str(path))}: is no path: {error}") from error


def _content(path: Path) -> bytes:
    """Reads the list."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        raise DatasetError(f"list of URLs {path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_LIST_BYTES:
        raise DatasetError(f"list of URLs {path} is larger than {MAX_LIST_BYTES} bytes")
    return content


def _lines(content: bytes, path: Path) -> Sequence[tuple[int, str]]:
    """Returns the lines that name an input by a URL or path, each with its number, from 1."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"list of URLs {path} is not UTF-8 at byte {error.start}; give a text file with one URL or path "
            "a line"
        ) from error
    stripped = enumerate(map(str.strip, text.removeprefix(_BOM).split("\n")), start=1)
    lines = tuple((number, line) for number, line in stripped if line and not line.startswith("#"))
    if not lines:
        raise DatasetError(f"list of URLs {path} is empty; give one URL or path a line")
    return lines


def _shortened(text: str) -> str:
    """Returns the text, without its middle if it is long; the end contains the file's name."""
    half = (_SHOWN_CHARACTERS - 1) // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]}…{text[-half:]}"
