"""Reads the files of datasets: images, random access, JSON and rows of other programs, the names of classes.

Several threads, and the processes that it is sent to, can read a random-access file at any position. Errors
in JSON, its numbers and its names are reported in the program's own messages. The names of classes are in a
text file, one per line, in the order of their indices.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.manifests.errors import DatasetError, InputError, one_line, printable, printable_name

FORMATS = ("bmp", "gif", "j2k", "jp2", "jpeg", "jpg", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp")
IMAGE_SUFFIXES = frozenset(f".{name}" for name in FORMATS)
MAX_IMAGE_BYTES = 256 * 1024 * 1024
"""The maximum size of an encoded image; larger files are not read into memory."""


@contextmanager
def reading(source: object) -> Iterator[None]:
    """Raises DatasetError, which names the ``source``, if reading or decoding fails in the block."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{source}: is not UTF-8 at byte {error.start}") from error


def read_whole(path: Path, most_bytes: int, remedy: str = "") -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: It cannot be read.
        DatasetError: It is larger than ``most_bytes``; the message ends with the ``remedy``.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise DatasetError(f"{path}: is larger than {most_bytes} bytes{remedy}")
    return content


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walks a folder like ``os.walk``; raises DatasetError if it, or a folder in it, cannot be read."""

    def refuse(error: OSError) -> None:
        raise DatasetError(
            f"{error.filename or folder}: cannot be read: {error.strerror or error}"
        ) from error

    return os.walk(folder, onerror=refuse)


def is_shown(path: str) -> bool:
    """Returns whether no part of a path inside a dataset is hidden."""
    return not any(part.startswith(".") for part in path.split("/"))


def is_image(path: str) -> bool:
    """Returns whether a path inside a dataset names an image, and no part of it is hidden."""
    return PurePosixPath(path).suffix.casefold() in IMAGE_SUFFIXES and is_shown(path)


def read_image(path: Path) -> EncodedImage:
    """Reads the file of one image.

    Raises:
        InputError: It is not a file, or is too large for an image.
        OSError: It cannot be read.
    """
    try:
        status = path.stat()
    except ValueError as error:  # a name that no file can have, such as one with a NUL
        raise InputError(f"{printable_name(str(path))}: is not a path: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is not a file that can be read")
    if status.st_size > MAX_IMAGE_BYTES:
        raise too_large(str(path), status.st_size)
    return EncodedImage(path.read_bytes())


def too_large(path: str, size_bytes: int) -> InputError:
    """Returns the error for a file larger than ``MAX_IMAGE_BYTES``."""
    return InputError(
        f"{printable_name(path)}: is {size_bytes} bytes; an image of more than {MAX_IMAGE_BYTES} is not read"
    )


class RandomAccessFile:
    """A file that is read at offsets and keeps no position. Thread-safe; it is not mapped into memory.

    If a file shrinks while it is mapped, the next access crashes the process, whereas ``read`` returns less.
    The pickle holds the path and the size; the process that it is sent to opens the file when it reads.

    Attributes:
        path: The file.
        size: Its size in bytes when it was first opened.

    Raises:
        DatasetError: The file cannot be opened, or is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._number: int | None = None
        self._closing: weakref.finalize[[int], RandomAccessFile] | None = None
        with reading(path):
            self.size = os.fstat(self._open()).st_size

    def read(self, size: int, offset: int) -> bytes:
        """Returns ``size`` bytes from an offset, fewer if the file ends first; raises OSError."""
        number = self._number
        content = os.pread(self._open() if number is None else number, size, offset)
        if len(content) == size or offset + len(content) >= self.size:
            return content
        parts = [content]
        while content and (missing := size - sum(map(len, parts))) > 0:  # one call reads 2 GiB at most
            content = os.pread(self._open(), missing, offset + size - missing)
            parts.append(content)
        return b"".join(parts)

    def close(self) -> None:
        """Closes the file; no thread may be reading it. A later read opens it again."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._number = self._closing = None

    def _open(self) -> int:
        with self._lock:
            if self._number is None:
                number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._closing = weakref.finalize(self, os.close, number)
                self._number = number
            return self._number

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self.size = state["path"], state["size"]
        self._lock, self._number, self._closing = Lock(), None, None


_SHOWN_CHARACTERS = 60


def parse_json(content: str | bytes) -> Any:
    """Returns the content of a JSON text; bytes are UTF-8, with or without a byte order mark.

    Raises:
        ValueError: It is not JSON, or an object has a name twice. The message gives the position, and is
            meant to follow the name of the file.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        raise ValueError(f"is not JSON at {line}column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("is JSON that cannot be read: it is nested too deeply") from error
    except _RepeatedNameError:
        raise
    except ValueError as error:  # the interpreter's limit
        raise ValueError("is JSON that cannot be read: a number has too many digits") from error


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; raises DatasetError if it cannot be read, or is not JSON."""
    with reading(path):
        content = path.read_bytes()
    try:
        return parse_json(content)
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error


class _RepeatedNameError(ValueError):
    """The error for an object that has a name twice."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedNameError(f'has "{printable(name[:_SHOWN_CHARACTERS])}" twice in one object')
        found[name] = value
    return found


def shown(value: object) -> str:
    """Returns a short text for a JSON value, for use in a message."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return printable(one_line(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS))


def number(value: object, name: str) -> float:
    """Returns a finite number from JSON; for others, raises ValueError, which begins with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shown(value)}, not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found}")
    return found


def numbers(value: object, name: str) -> list[float]:
    """Returns a list of numbers; raises ValueError if it is not a list, or like ``number`` for an element."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shown(value)}, not a list of numbers")
    return [number(each, f"a number of {name}") for each in value]


def key(value: object, name: str) -> int | str:
    """Returns an id: a whole number, which may be written as ``1.0``, or a text.

    Raises:
        ValueError: The value is neither of the two; the message begins with ``name``.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is {shown(value)}, neither a whole number nor a text")
    return value


_MAX_NAMES_BYTES = 64 * 1024 * 1024


def read_class_names(path: Path) -> tuple[str, ...] | None:
    """Returns the names of the classes; None if the file does not exist.

    Raises:
        DatasetError: The file cannot be read, is not UTF-8, or has no names, an empty or a repeated one.
    """
    with reading(path):
        try:
            content = read_whole(path, _MAX_NAMES_BYTES)
        except FileNotFoundError:
            return None
        names = tuple(line.strip() for line in content.decode("utf-8").rstrip().split("\n"))
    for row, name in enumerate(names):
        if not name:
            raise DatasetError(f"{path}: line {row + 1} is empty; accepted: the name of a class in each line")
    if len(set(names)) < len(names):
        repeated = next(name for name, times in Counter(names).items() if times > 1)
        raise DatasetError(f"{path}: has the class {repeated} twice")
    return names


CSV_RULES = (
    f"a quote is closed at the end of its value, and a value has at most {csv.field_size_limit()} characters"
)
_ID = "id"
_LINES = (".jsonl", ".ndjson")
ACCEPTED = "a .csv with a column id, a .jsonl of objects with an id, or a .json of {id: prediction}"


def read_rows(path: Path, column: str, *, several: bool = False) -> Mapping[str, Any]:
    """Reads the prediction of each sample, by its id, as written in the file.

    Args:
        path: A ``.csv`` whose first line names the columns, ``.jsonl`` with an object on each line, or
            ``.json`` with such objects in a list, or with an object of predictions by their ids.
        column: The column with the prediction.
        several: Whether a prediction consists of several numbers: in a ``.csv``, all columns except the id;
            elsewhere, a list in ``column``, or an object. They are returned as a list of float64, even a
            single one, or, where they have names, as a dictionary.

    Raises:
        DatasetError: The file cannot be read, or an entry lacks an id or a prediction, or repeats the id of
            another.
    """
    suffix = path.suffix.casefold()
    readers = {".csv": _of_csv, ".json": _of_json} | dict.fromkeys(_LINES, _of_lines)
    if suffix not in readers:
        raise DatasetError(f"{path}: is not a file of predictions that can be read; accepted: {ACCEPTED}")
    try:
        with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
            found: dict[str, Any] = {}
            for place, name, value in readers[suffix](file, column, several):
                if name in found:
                    raise ValueError(f'{place}: "{printable(name)}" was predicted before')
                found[name] = _numbers(value, place) if several else value
    except csv.Error as error:
        raise DatasetError(f"{path}: is not CSV; {CSV_RULES}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not found:
        raise DatasetError(f"{path}: holds no predictions")
    return found


_Found = Iterator[tuple[str, str, Any]]


def _of_csv(file: Any, column: str, several: bool) -> _Found:
    rows = csv.reader(file, strict=True)
    names = [name.strip() for name in next(rows, [])]  # the names of numbers keep their case
    header = [name if several and name.casefold() != _ID else name.casefold() for name in names]
    if _ID not in header or len(set(header)) < max(2, len(header)) or (column not in header and not several):
        wanted = f"{_ID} and numbers" if several else f"{_ID} and {column}"
        raise ValueError(f"line 1 names no columns {wanted}")
    for cells in rows:
        if not cells:
            continue
        if len(cells) != len(header):
            raise ValueError(f"line {rows.line_num} has {len(cells)} columns; the first names {len(header)}")
        row = dict(zip(header, cells, strict=True))
        name = row.pop(_ID).strip()
        place = f"line {rows.line_num}"
        value = {n: _parsed_number(text, place) for n, text in row.items()} if several else row[column]
        yield place, _id_of(name, place), value


def _of_lines(file: Any, column: str, several: bool) -> _Found:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _of_object(_parsed(line, f"line {number}: "), f"line {number}", column)


def _of_json(file: Any, column: str, several: bool) -> _Found:
    content = _parsed(file.read())
    if isinstance(content, dict):
        yield from ((f'"{printable(name)}"', name, value) for name, value in content.items())
    elif isinstance(content, list):
        for number, entry in enumerate(content):
            yield _of_object(entry, f"entry {number}", column)
    else:
        raise ValueError("is neither an object of predictions by their ids, nor a list of objects")


def _parsed(text: str, place: str = "") -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error


def _of_object(entry: Any, place: str, column: str) -> tuple[str, str, Any]:
    if not isinstance(entry, dict) or _ID not in entry or column not in entry:
        raise ValueError(f"{place} is not an object with {_ID} and {column}")
    return place, _id_of(entry[_ID], place), entry[column]


def _id_of(given: object, place: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ValueError(f"{place}: its id is neither a text nor a whole number")
    return str(given)


def _parsed_number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'{place}: "{printable(text)}" is not a number') from None


def _numbers(given: Any, place: str) -> list[float] | dict[str, float]:
    """Returns the numbers of a prediction, with or without names; any that are too large become infinite."""
    if isinstance(given, dict):
        return dict(zip(given, _numbers(list(given.values()), place), strict=True))
    found = given if isinstance(given, list) else [given]
    if not found:
        raise ValueError(f"{place}: has no numbers")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{place}: {shown(each)} is not a number")
    return [_as_float(each) for each in found]


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of JSON
        return math.inf


_START = 65536
_NAME = r'"(?:[^"\\]|\\.)*"\s*:\s*'
_OF_NUMBERS = re.compile(rf"\s*\{{\s*{_NAME}[\[{{]\s*(?:{_NAME})?-?\d[\d.eE+-]*\s*,")
"""The beginning of a JSON object whose first value is a list, or an object, of several numbers."""


def has_numbers(path: Path, column: str) -> bool:
    """Returns whether a file of predictions holds numbers of each sample instead of the ``column``."""
    suffix = path.suffix.casefold()
    if suffix == ".npz":
        return True
    with reading(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        start = file.read(_START)
    if suffix == ".csv":
        names = [name.strip(' "').casefold() for name in start.partition("\n")[0].split(",")]
        return len(names) > 2 and column not in names
    return f'"{column}"' not in start and ('"probabilities"' in start or bool(_OF_NUMBERS.match(start)))
