"""The index of each class: the format's, the model's, the number that it is, or its place in the order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from inferometer.agent.preprocessing.inputs import Pixels
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.tasks.metric import class_indices
from inferometer.manifests.errors import DatasetError

PIXELS = Pixels(np.zeros((1, 1), np.uint8))


class Labelled(Dataset):
    """A dataset of labels."""

    def __init__(self, labels: Sequence[str | None], indices: bool = False) -> None:
        super().__init__(DatasetIdentity("vision", "some", None, None, len(labels)))
        self._labels = labels
        self.labels_are_indices = indices

    def __iter__(self) -> Iterator[Sample]:
        for number, label in enumerate(self._labels):
            yield Sample(str(number), PIXELS, label, self.labels_are_indices)


@pytest.mark.parametrize(
    ("labels", "model", "classes", "expected"),
    [
        (["b", "a", "b"], ("x", "A", "b"), 3, {"a": 1, "b": 2}),
        (["n02", "n01"], ("n01 tench", "n02 fish", "n03 bird"), 3, {"n01": 0, "n02": 1}),
        (["1", "2"], ("1", "2"), 2, {"1": 0, "2": 1}),
        (["3", "0"], (), 4, {"3": 3, "0": 0}),
        (["3", "0"], ("zero", "one", "two", "three"), 4, {"3": 3, "0": 0}),
        (["b", "a", "10"], (), 3, {"10": 0, "a": 1, "b": 2}),
        (["5", "7"], (), 2, {"5": 0, "7": 1}),
        (["a", "x"], ("a", "b"), 2, {"a": 0, "x": 1}),
    ],
)
def test_labels_get_the_models_indices_their_own_or_those_of_their_order(
    labels: list[str], model: tuple[str, ...], classes: int, expected: dict[str, int]
) -> None:
    index = class_indices(Labelled(labels), model, classes)

    assert {label: index(label) for label in expected} == expected
    assert pickle.loads(pickle.dumps(index))(labels[0]) == expected[labels[0]]


def test_indices_of_the_format_are_taken_as_they_are() -> None:
    index = class_indices(Labelled(["1", "2"], indices=True), ("1", "2", "3"), 3)

    assert (index("1"), index("2")) == (1, 2)
    with pytest.raises(DatasetError, match='some: has the class "3"; the model has 3 classes, 0 to 2'):
        index("3")


def test_more_classes_than_the_model_has_none_and_an_unknown_one_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"some: has 3 classes \(a, b, c, …\), and the model has 2"):
        class_indices(Labelled(["a", "b", "c"]), (), 2)
    with pytest.raises(DatasetError, match="some: has no labels; training requires a class"):
        class_indices(Labelled([None, None]), (), 2)
    with pytest.raises(DatasetError, match='the class "c" was not among its classes'):
        class_indices(Labelled(["a", "b"]), (), 2)("c")
