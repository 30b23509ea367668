"""A list of URLs and paths as a dataset without labels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent.addresses import without_credentials
from agent.inputs import EncodedImage, Payload, Url
from evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from evaluators.datasets.folder import read_image
from evaluators.datasets.layout import printable
from manifests.errors import DatasetError, InputError

CATEGORY = "urls"
MAX_LIST_BYTES = 64 * 1024 * 1024
"""No list is longer; a larger file is no list of URLs."""
_SHOWN_CHARACTERS = 80
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the list: its number, from 1, and the URL or path that it holds."""

    number: int
    text: str

    def input_id(self, copy: int) -> str:
        """Names the input by line and text; copies after the first have their number beside the line's.

        Credentials in a URL are left out, as the id is stored.
        """
        place = str(self.number) if copy == 1 else f"{self.number}.{copy}"
        return f"{place}:{_shortened(printable(without_credentials(self.text)))}"


class UrlsDataset(Dataset):
    """The images that a file lists, one URL or path a line, in the file's order.

    Blank lines and lines that begin with ``#`` are skipped. What has a scheme, as in ``https://…``, is a URL
    and is fetched by whoever runs the model. Anything else is the path of an image, relative to the file, and
    is read here. Each line is an input with an id of its own, also where two lines are the same. None has a
    label.

    Args:
        path: The file, in UTF-8.
        duplicate_input: How many times the whole list is gone through.

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
            for line in self._lines:
                yield Sample(line.input_id(copy), self._data(line.text))

    def _data(self, text: str) -> Payload | Callable[[], Payload]:
        return Url(text) if _URL.match(text) else partial(_read, self._folder / text)


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


def _lines(content: bytes, path: Path) -> Sequence[_Line]:
    """The lines that name an input."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"list of URLs {path} is not UTF-8 at byte {error.start}; give a text file with one URL or path "
            "a line"
        ) from error
    stripped = enumerate(map(str.strip, text.removeprefix(_BOM).split("\n")), start=1)
    lines = tuple(_Line(number, line) for number, line in stripped if line and not line.startswith("#"))
    if not lines:
        raise DatasetError(f"list of URLs {path} is empty; give one URL or path a line")
    return lines


def _shortened(text: str) -> str:
    """The text, or where it is long its beginning and its end, which holds the file's name."""
    half = (_SHOWN_CHARACTERS - 1) // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]}…{text[-half:]}"
