"""Classes by name and by index, the samples that have predictions, and the accuracy of a classification."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from inferometer.agent.inference.results import BatchResult
from inferometer.agent.tasks.predictions import Predictions
from inferometer.evaluators.datasets.base import Dataset, Sample
from inferometer.manifests.errors import DatasetError, PredictionError

_SHOWN_LABELS = 3
_MAX_INDEX_DIGITS = 9


class ClassIndex:
    """The index of a dataset's class among a model's labels.

    A class matches the label of the same name. If there is none, it matches the label of the same name with
    case ignored, or else the label whose first word it is, as in the lines of ImageNet's ``synset.txt``,
    "n01440764 tench, Tinca tinca". Without labels, the name of a class is its decimal index.

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
            DatasetError: The model has no matching class, or several.
        """
        index = self._known.get(name)
        if index is None:
            index = self._known[name] = self._look_up(name)
        return index

    def find_or_index(self, name: str) -> int:
        """Returns the index of the class ``name`` or, if the model has no such class, the index it spells.

        Raises:
            DatasetError: The model has no matching class, or several, and not as many classes.
        """
        try:
            return self.find(name)
        except DatasetError:
            index = decimal(name)
            if index is None or index >= len(self):
                raise
            return index

    def of(self, sample: Sample) -> int | None:
        """Returns the index of the class of a sample; None if it has no label.

        Raises:
            DatasetError: The model has no matching class, or several.
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


def predicted_samples(samples: Sequence[Sample], result: BatchResult) -> list[Sample]:
    """Returns the samples of a batch that have predictions, one for each row of the outputs.

    Raises:
        PredictionError: The result is not for these samples.
    """
    outputs = result.outputs
    if isinstance(outputs, Predictions) and len(outputs) != len(result.input_ids):
        raise PredictionError(f"{len(result.input_ids)} predicted inputs have {len(outputs)} outputs")
    found = []
    remaining = iter(samples)
    for input_id in result.input_ids:
        sample = next((sample for sample in remaining if sample.id == input_id), None)
        if sample is None:
            raise PredictionError(f"input {input_id}: has an output, but was not requested in this position")
        found.append(sample)
    return found


def _places(names: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def decimal(name: str) -> int | None:
    """Returns the index that a name spells in decimal; None if it is not a decimal number."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) <= _MAX_INDEX_DIGITS else None


def _index(name: str) -> int:
    index = decimal(name)
    if index is None:
        raise DatasetError(
            f"the dataset's class \"{name}\" is not a class index, and the model's manifest gives no labels; "
            "add output.parameters.labels to it"
        )
    return index


def _quoted(text: str) -> str:
    """Returns the text in quotes, on one line."""
    return json.dumps(text, ensure_ascii=False)


_SHOWN = 3


def _as_index(dataset: str, classes: int, label: str) -> int:
    """Returns the index that a label is itself."""
    index = decimal(label)
    if index is None or index >= classes:
        raise DatasetError(
            f'{dataset}: has the class "{label}"; the model has {classes} classes, 0 to {classes - 1}'
        )
    return index


def _by_name(dataset: str, indices: Mapping[str, int], label: str) -> int:
    """Returns the index that is assigned to a label."""
    try:
        return indices[label]
    except KeyError:
        raise DatasetError(f'{dataset}: the class "{label}" was not among its classes') from None


def class_indices(dataset: Dataset, manifest_labels: Sequence[str], classes: int) -> Callable[[str], int]:
    """Returns a function, which can be pickled, that returns the index of a sample's label.

    If the format holds indices, they are used unchanged. Otherwise, if all labels match labels of the model
    by the rules of ``ClassIndex``, the indices are the model's; else, if all are whole numbers below
    ``classes``, they are indices; else the index is the position among the sorted labels, as in torchvision's
    ``ImageFolder``.

    Args:
        dataset: The dataset; unless its labels are indices, all of them are read.
        manifest_labels: The model's labels, in the order of its scores; may be empty.
        classes: The number of classes of the model.

    Returns:
        The function; it raises DatasetError for a label that the dataset did not have, or an index that the
        model lacks.

    Raises:
        DatasetError: The dataset has no labels, or more classes than the model.
    """
    name = dataset.identity.name
    if dataset.labels_are_indices:
        return partial(_as_index, name, classes)
    labels = sorted(dataset.labels())
    if not labels:
        raise DatasetError(f"{name}: has no labels; training requires a class for each sample")
    matched = _matched(labels, manifest_labels)
    if matched is not None and max(matched.values()) < classes:
        return partial(_by_name, name, matched)
    if all((index := decimal(label)) is not None and index < classes for label in labels):
        return partial(_as_index, name, classes)
    if len(labels) > classes:
        shown = ", ".join(labels[:_SHOWN])
        raise DatasetError(f"{name}: has {len(labels)} classes ({shown}, …), and the model has {classes}")
    return partial(_by_name, name, {label: index for index, label in enumerate(labels)})


def _matched(labels: Sequence[str], manifest_labels: Sequence[str]) -> Mapping[str, int] | None:
    """Returns the index of each label among the model's; None unless they match one to one."""
    if not manifest_labels:
        return None
    index = ClassIndex(manifest_labels)
    try:
        found = {label: index.find(label) for label in labels}
    except DatasetError:
        return None
    return found if len(set(found.values())) == len(found) else None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The numbers of correctly classified inputs and of evaluated inputs.

    Attributes:
        top1: Inputs whose most probable class is their label.
        top5: Inputs whose label is among the five most probable classes, or among all of fewer classes; None
            if the model names only the best class.
        evaluated: Inputs with a label and a prediction; failed ones do not count.
    """

    top1: int
    top5: int | None
    evaluated: int

    @property
    def top1_share(self) -> float | None:
        """``top1`` as a fraction of the evaluated inputs, 0…1; None if there are none."""
        return self.top1 / self.evaluated if self.evaluated else None

    @property
    def top5_share(self) -> float | None:
        """``top5`` as a fraction of the evaluated inputs, 0…1; None if there are none, or it is unknown."""
        return None if self.top5 is None or not self.evaluated else self.top5 / self.evaluated
