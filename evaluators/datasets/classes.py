"""The index of each class of a dataset in a model that is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.kinds.batches.accuracy import ClassIndex, decimal
from inferometer.manifests.errors import DatasetError

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _AsTheyAre:
    """Labels that are indices."""

    dataset: str
    classes: int

    def __call__(self, label: str) -> int:
        index = decimal(label)
        if index is None or index >= self.classes:
            raise DatasetError(
                f'{self.dataset}: has the class "{label}"; the model has {self.classes} classes, 0 to '
                f"{self.classes - 1}"
            )
        return index


@dataclass(frozen=True, slots=True)
class _ByName:
    """Labels with an index each."""

    dataset: str
    indices: Mapping[str, int]

    def __call__(self, label: str) -> int:
        try:
            return self.indices[label]
        except KeyError:
            raise DatasetError(f'{self.dataset}: the class "{label}" was not among its classes') from None


def class_indices(dataset: Dataset, manifest_labels: Sequence[str], classes: int) -> Callable[[str], int]:
    """Returns the function that gives the index of a sample's label, which can be pickled.

    Where the format holds indices, they are taken as they are. Else, if all labels match labels of the model
    as ``ClassIndex`` matches them, the indices are the model's; else, if all are whole numbers below
    ``classes``, they are indices; else the index is the place among the sorted labels, as in torchvision's
    ``ImageFolder``.

    Args:
        dataset: The dataset; unless its labels are indices, all of them are looked at.
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
        return _AsTheyAre(name, classes)
    labels = sorted(dataset.labels())
    if not labels:
        raise DatasetError(f"{name}: has no labels; training requires a class for each sample")
    matched = _matched(labels, manifest_labels)
    if matched is not None and max(matched.values()) < classes:
        return _ByName(name, matched)
    if all((index := decimal(label)) is not None and index < classes for label in labels):
        return _AsTheyAre(name, classes)
    if len(labels) > classes:
        shown = ", ".join(labels[:_SHOWN])
        raise DatasetError(f"{name}: has {len(labels)} classes ({shown}, …), and the model has {classes}")
    return _ByName(name, {label: index for index, label in enumerate(labels)})


def _matched(labels: Sequence[str], manifest_labels: Sequence[str]) -> Mapping[str, int] | None:
    """Returns the index of each label among the model's; None if one matches none, or several."""
    if not manifest_labels:
        return None
    index = ClassIndex(manifest_labels)
    try:
        found = {label: index.find(label) for label in labels}
    except DatasetError:
        return None
    return found if len(set(found.values())) == len(found) else None
