"""The index of a dataset's class among a model's labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from inferometer.evaluators.datasets.base import Sample
from inferometer.manifests.errors import DatasetError

_SHOWN_LABELS = 3
_MAX_INDEX_DIGITS = 9


class ClassIndex:
    """The index of a dataset's class among a model's labels.

    A class matches the label of the same name; else of the same name ignoring case; else the label whose
    first word it is, as in the lines of ImageNet's ``synset.txt``, "n01440764 tench, Tinca tinca". Without
    labels, a class is the decimal index itself.

    Args:
        labels: The model's labels, in the order of its scores; may be empty.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        names = [label.casefold().strip() for label in labels]
        first_words = [(name.split(maxsplit=1) or [""])[0] for name in names]
        self._by_rule = (_places(labels), _places(names), _places(first_words))
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def find(self, name: str) -> int:
        """Returns the index of the dataset's class ``name``.

        Raises:
            DatasetError: The model has no such class, or several.
        """
        index = self._known.get(name)
        if index is None:
            index = self._known[name] = self._look_up(name)
        return index

    def of(self, sample: Sample) -> int | None:
        """Returns the index of the class of a sample; None if it has no label.

        Raises:
            DatasetError: The model has no such class, or several.
        """
        if sample.label is None:
            return None
        if not sample.label_is_index:
            return self.find(sample.label)
        index = decimal(sample.label)
        if index is None or (self._labels and index >= len(self._labels)):
            raise DatasetError(
                f"the dataset's class {sample.label} is no index of the model's {len(self._labels)} classes"
            )
        return index

    def _look_up(self, name: str) -> int:
        if not self._labels:
            return _index(name)
        folded = name.casefold().strip()
        for places, key in zip(self._by_rule, (name, folded, folded), strict=True):
            found = places.get(key, [])
            if len(found) > 1:
                several = ", ".join(
                    f"{_quoted(self._labels[place])} ({place})" for place in found[:_SHOWN_LABELS]
                )
                raise DatasetError(
                    f"the dataset's class {_quoted(name)} fits {len(found)} classes of the model: {several}"
                )
            if found:
                return found[0]
        examples = ", ".join(_quoted(label) for label in self._labels[:_SHOWN_LABELS])
        more = ", …" if len(self._labels) > _SHOWN_LABELS else ""
        raise DatasetError(
            f"the dataset's class {_quoted(name)} is none of the {len(self._labels)} classes of the model: "
            f"{examples}{more}"
        )


def _places(names: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def decimal(name: str) -> int | None:
    """Returns the index that a name is; None if it is none."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _MAX_INDEX_DIGITS else None


def _index(name: str) -> int:
    index = decimal(name)
    if index is None:
        raise DatasetError(
            f"the dataset's class \"{name}\" is no class index, and the model's manifest gives no labels; "
            "add output.parameters.labels to it"
        )
    return index


def _quoted(text: str) -> str:
    """The text in quotes, on one line."""
    return json.dumps(text, ensure_ascii=False)
