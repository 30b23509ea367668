"""Datasets of texts: JSON lines, CSV, and SQuAD's JSON."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from inferometer.agent.preprocessing.inputs import Text
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.files.json_text import numbers, parse_json
from inferometer.evaluators.datasets.tasks.text_rows import Row, read_csv, read_json_lines, read_squad
from inferometer.evaluators.datasets.truths import AcceptedAnswers, TargetValues, Truth
from inferometer.manifests.errors import DatasetError, printable

_TEXTS = ("text", "sentence")
_PAIRS = (("question", "context"), ("sentence1", "sentence2"))
_LABELS = ("label",)
_SHOWN = 5


class TextDataset(Dataset):
    """Texts, or pairs of texts, with a label, accepted answers or a reference vector each, in memory.

    The columns are ``text`` or ``sentence``, with an optional ``pair``; or ``question`` and ``context``; or
    ``sentence1`` and ``sentence2``. Optional are ``id``, which is else the number of the line; ``label``, a
    text or a whole number; ``answers``, a list, or ``answer``, one text; and ``target``, a list of numbers.
    In a CSV, lists are written as in JSON. Further columns are passed over.

    The arguments are those of ``ArchiveDataset``.

    Raises:
        DatasetError: The file cannot be read, has no rows, or a row is not as above; the message has the
            number of its line.
    """

    def __init__(
        self,
        path: Path,
        category: str,
        *,
        checksum: str | None = None,
        name: str | None = None,
        version: str | None = None,
    ) -> None:
        self._path = path
        self._samples = tuple(map(_sample, self._rows(path)))
        if not self._samples:
            raise DatasetError(f"{path}: holds no texts")
        _refuse_equal_ids(path, self._samples)
        super().__init__(DatasetIdentity(category, name or str(path), version, checksum, len(self._samples)))

    @staticmethod
    @abstractmethod
    def _rows(path: Path) -> Iterator[Row]:
        """Yields the rows of a file; raises DatasetError where it cannot be read."""

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def sample(self, index: int) -> Sample:
        """Returns a sample, which is in memory."""
        return self._samples[index]

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], Path, DatasetIdentity]]:
        """Pickles the path; another process reads the file again."""
        return _reopened, (type(self), self._path, self.identity)


class JsonLinesDataset(TextDataset):
    """Texts in JSON lines; see ``TextDataset``."""

    backend = "jsonl"

    @staticmethod
    def _rows(path: Path) -> Iterator[Row]:
        return read_json_lines(path)


class CsvDataset(TextDataset):
    """Texts in a CSV, or tab-separated in a ``.tsv``; see ``TextDataset``."""

    backend = "csv"

    @staticmethod
    def _rows(path: Path) -> Iterator[Row]:
        return read_csv(path)


class SquadDataset(TextDataset):
    """The questions of SQuAD's JSON with their contexts and accepted answers."""

    backend = "squad"

    @staticmethod
    def _rows(path: Path) -> Iterator[Row]:
        return read_squad(path)


def _reopened(kind: Callable[..., Any], path: Path, identity: DatasetIdentity) -> Any:
    return kind(
        path, identity.category, checksum=identity.checksum, name=identity.name, version=identity.version
    )


def _refuse_equal_ids(path: Path, samples: tuple[Sample, ...]) -> None:
    known: set[str] = set()
    for sample in samples:
        if sample.id in known:
            raise DatasetError(f"{path}: two rows have the id {printable(sample.id)}; ids are for one each")
        known.add(sample.id)


def _sample(row: Row) -> Sample:
    text = _text(row)
    id_ = row.columns.get("id", row.number)
    if isinstance(id_, bool) or not isinstance(id_, str | int) or not str(id_).strip():
        raise DatasetError(f"{row.place}: id is neither a text nor a whole number")
    label = _label(row)
    return Sample(str(id_), text, label, truth=_truth(row))


def _text(row: Row) -> Text:
    """Returns the text or the pair of a row; an empty one is a text, which fails when it is preprocessed."""
    columns = row.columns
    for first, second in _PAIRS:
        if first in columns and second in columns:
            return Text(_of(row, first), _of(row, second))
    named = [name for name in _TEXTS if name in columns]
    if len(named) != 1:
        found = ", ".join(printable(str(name)) for name in list(columns)[:_SHOWN]) or "none"
        raise DatasetError(
            f"{row.place}: needs one column text (or sentence), or question and context; it has: {found}"
        )
    return Text(_of(row, named[0]), _of(row, "pair") if columns.get("pair") is not None else None)


def _of(row: Row, name: str) -> str:
    value = row.columns[name]
    if not isinstance(value, str):
        raise DatasetError(f"{row.place}: {name} is no text")
    if not _is_unicode(value):
        raise DatasetError(f"{row.place}: {name} holds half of a surrogate pair, which is no character")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _label(row: Row) -> str | None:
    value = next((row.columns[name] for name in _LABELS if name in row.columns), None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DatasetError(f"{row.place}: label is neither a text nor a whole number")
    if not str(value).strip():
        raise DatasetError(f"{row.place}: label is empty")
    return str(value)


def _truth(row: Row) -> Truth | None:
    columns = row.columns
    found = [name for name in ("answers", "answer", "target") if columns.get(name) is not None]
    if not found:
        return None
    if len(found) > 1:
        raise DatasetError(f"{row.place}: has {' and '.join(found)}; one of them is scored")
    if found[0] == "target":
        return TargetValues(_vector(row, _list_of(row, "target")))
    if found[0] == "answer":
        return AcceptedAnswers((_of(row, "answer"),))
    answers = columns["answers"]
    # as an object in Hugging Face's version of SQuAD
    answers = answers.get("text") if isinstance(answers, Mapping) else _list_of(row, "answers")
    if not isinstance(answers, list) or not all(
        isinstance(each, str) and _is_unicode(each) for each in answers
    ):
        raise DatasetError(f"{row.place}: answers are no list of texts")
    return AcceptedAnswers(tuple(answers))


def _list_of(row: Row, name: str) -> list[Any]:
    """Returns a value that is a list, or the JSON of one."""
    value = row.columns[name]
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, list):
        raise DatasetError(f"{row.place}: {name} is no list; write it as in JSON")
    return value


def _vector(row: Row, values: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        vector = numbers(values, "target")
    except ValueError as error:
        raise DatasetError(f"{row.place}: target is no list of finite numbers: {error}") from error
    if not vector:
        raise DatasetError(f"{row.place}: target is no list of finite numbers: it is empty")
    return np.array(vector, np.float64)
