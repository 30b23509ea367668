"""Tables of predictions: a row with an id and a label, an answer or numbers for each sample."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inferometer.evaluators.datasets.files.json_text import parse_json, shown
from inferometer.evaluators.datasets.tasks.text_rows import CSV_RULES
from inferometer.manifests.errors import DatasetError, printable

_ID = "id"
_LINES = (".jsonl", ".ndjson")
ACCEPTED = "a .csv with a column id, a .jsonl of objects with an id, or a .json of {id: prediction}"


def read_rows(path: Path, column: str, *, several: bool = False) -> Mapping[str, Any]:
    """Reads what is predicted for each sample, by its id, as it stands in the file.

    Args:
        path: A ``.csv`` whose first line names the columns, ``.jsonl`` with an object on each line, or
            ``.json`` with such objects in a list, or with an object of predictions by their ids.
        column: The column with the prediction.
        several: Whether a prediction is numbers: those of all columns but the id in a ``.csv``, and a list
            ``values`` elsewhere. They are given as a list of float64, also of one.

    Raises:
        DatasetError: The file cannot be read, or an entry lacks an id or a prediction, or has an id of
            another.
    """
    suffix = path.suffix.casefold()
    readers = {".csv": _of_csv, ".json": _of_json} | dict.fromkeys(_LINES, _of_lines)
    if suffix not in readers:
        raise DatasetError(f"{path}: is none of the predictions that can be read; accepted: {ACCEPTED}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found: dict[str, Any] = {}
            for place, name, value in readers[suffix](file, column, several):
                if name in found:
                    raise ValueError(f'{place}: "{printable(name)}" was predicted before')
                found[name] = _numbers(value, place) if several else value
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not UTF-8 at byte {error.start}") from error
    except csv.Error as error:
        raise DatasetError(f"{path}: is no CSV; {CSV_RULES}") from error
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not found:
        raise DatasetError(f"{path}: holds no predictions")
    return found


_Found = Iterator[tuple[str, str, Any]]


def _of_csv(file: Any, column: str, several: bool) -> _Found:
    rows = csv.reader(file, strict=True)
    header = [name.strip().casefold() for name in next(rows, [])]
    if _ID not in header or len(header) < 2 or (column not in header and not several):
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
        value = [_parsed_number(text, place) for text in row.values()] if several else row[column]
        yield place, _id_of(name, place), value


def _of_lines(file: Any, column: str, several: bool) -> _Found:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _of_object(_parsed(line, f"line {number}: "), f"line {number}", column, several)


def _of_json(file: Any, column: str, several: bool) -> _Found:
    content = _parsed(file.read())
    if isinstance(content, dict):
        yield from ((f'"{printable(name)}"', name, value) for name, value in content.items())
    elif isinstance(content, list):
        for number, entry in enumerate(content):
            yield _of_object(entry, f"entry {number}", column, several)
    else:
        raise ValueError("is neither an object of predictions by their ids, nor a list of objects")


def _parsed(text: str, place: str = "") -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{place}{error}") from error


def _of_object(entry: Any, place: str, column: str, several: bool) -> tuple[str, str, Any]:
    name = "values" if several else column
    if not isinstance(entry, dict) or _ID not in entry or name not in entry:
        raise ValueError(f"{place} is no object with {_ID} and {name}")
    return place, _id_of(entry[_ID], place), entry[name]


def _id_of(given: object, place: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
        raise ValueError(f"{place}: its id is neither a text nor a whole number")
    return str(given)


def _parsed_number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'{place}: "{printable(text)}" is no number') from None


def _numbers(given: Any, place: str) -> list[float]:
    """Returns the numbers of a prediction, a list or a single one; too large ones are infinite."""
    found = given if isinstance(given, list) else [given]
    if not found:
        raise ValueError(f"{place}: has no numbers")
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float):
            raise ValueError(f"{place}: {shown(each)} is no number")
    return [_as_float(each) for each in found]


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of JSON
        return math.inf
