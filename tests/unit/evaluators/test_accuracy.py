"""Counting correct predictions: how classes are matched, and which inputs count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.inference.stages import BatchResult, InputFailure, Stage, StageTimes
from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.agent.tasks.predictions import Classifications
from inferometer.evaluators.datasets.base import Sample
from inferometer.evaluators.tasks.classification import ClassificationMetric
from inferometer.evaluators.tasks.metric import METRICS, Accuracy, ClassIndex, predicted_samples
from inferometer.manifests.errors import ConfigurationError, DatasetError, PredictionError
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest

DIGITS = tuple("0123456789")
IMAGE = EncodedImage(b"")


def model(labels: tuple[str, ...]) -> ModelManifest:
    manifest = parse_manifest(
        {
            "name": "M",
            "framework": {"name": "PyTorch"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": "classification", "parameters": {"labels": labels}},
            "model": {"graph_path": "m.onnx"},
        },
        Path("m.yml"),
    )
    assert isinstance(manifest, ModelManifest)
    return manifest


def batch(*labels: str | None) -> list[Sample]:
    return [Sample(f"s{index}", IMAGE, label) for index, label in enumerate(labels)]


def answer(rows: list[list[int]], failed: tuple[int, ...] = ()) -> BatchResult:
    """The best classes of the inputs of a batch in which the inputs ``failed`` have no answer."""
    total = len(rows) + len(failed)
    indices = np.array(rows, np.int64)
    return BatchResult(
        input_ids=tuple(f"s{i}" for i in range(total) if i not in failed),
        outputs=Classifications(indices, np.zeros(indices.shape, np.float32)) if rows else None,
        failures=tuple(InputFailure(f"s{i}", Stage.PREPROCESS, "damaged") for i in failed),
        times=StageTimes(0, 0, 0, 0),
    )


def add(metric: ClassificationMetric, samples: list[Sample], result: BatchResult) -> None:
    """Adds a batch as a run does."""
    if isinstance(result.outputs, Classifications):
        metric.add_batch(predicted_samples(samples, result), result.outputs)


def test_top1_and_top5_are_counted_over_all_batches() -> None:
    metric = ClassificationMetric(model(DIGITS))

    add(metric, batch("3", "4"), answer([[3, 1, 2, 4, 5], [1, 2, 3, 5, 4]]))
    add(metric, batch("9"), answer([[0, 1, 2, 3, 4]]))

    assert metric.accuracy == Accuracy(top1=1, top5=2, evaluated=3)


def test_a_sixth_class_does_not_count_as_top5() -> None:
    metric = ClassificationMetric(model(DIGITS))

    add(metric, batch("5"), answer([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]))

    assert metric.accuracy == Accuracy(0, 0, 1)


@pytest.mark.parametrize("labels", [("cat", "dog"), ()])
def test_fewer_than_five_classes_are_all_of_the_top5(labels: tuple[str, ...]) -> None:
    metric = ClassificationMetric(model(labels))

    add(metric, batch(*(labels or ("0", "1"))), answer([[1, 0], [1, 0]]))

    assert metric.accuracy == Accuracy(top1=1, top5=2, evaluated=2)


def test_too_few_classes_for_top5_are_refused_rather_than_counted_wrong() -> None:
    with pytest.raises(ConfigurationError, match="top-5 needs the 5 best classes of each input, but 3"):
        add(ClassificationMetric(model(DIGITS)), batch("1"), answer([[1, 2, 3]]))


def test_a_failed_input_is_not_counted_and_shifts_no_other() -> None:
    metric = ClassificationMetric(model(("a", "b", "c")))

    add(metric, batch("a", "b", "c"), answer([[0, 1, 2], [2, 1, 0]], failed=(1,)))

    assert metric.accuracy == Accuracy(top1=2, top5=2, evaluated=2)


def test_a_batch_in_which_every_input_failed_counts_nothing() -> None:
    metric = ClassificationMetric(model(DIGITS))

    add(metric, batch("1", "2"), answer([], failed=(0, 1)))

    assert metric.accuracy is None


def test_unlabelled_samples_are_not_counted() -> None:
    metric = ClassificationMetric(model(("a", "b")))

    add(metric, batch(None, "b"), answer([[0, 1], [1, 0]]))

    assert metric.accuracy == Accuracy(1, 1, 1)


def test_without_a_labelled_sample_there_is_no_accuracy() -> None:
    metric = ClassificationMetric(model(("a", "b")))

    add(metric, batch(None, None), answer([[0, 1], [1, 0]]))

    assert metric.accuracy is None


def test_a_model_that_does_not_classify_has_no_accuracy() -> None:
    assert "raw" not in METRICS


def test_an_answer_for_another_input_is_refused() -> None:
    with pytest.raises(PredictionError, match="input s1: has an output, but was not requested"):
        add(ClassificationMetric(model(("a",))), batch("a"), answer([[0]], failed=(0,)))


def test_an_answer_with_rows_missing_is_refused() -> None:
    short = BatchResult(
        ("s0", "s1"),
        Classifications(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)),
        (),
        StageTimes(0, 0, 0, 0),
    )

    with pytest.raises(PredictionError, match="2 predicted inputs have 1 outputs"):
        add(ClassificationMetric(model(("a",))), batch("a", "a"), short)


def test_classes_can_be_checked_before_the_model_runs() -> None:
    metric = ClassificationMetric(model(("cat", "dog")))

    def unread() -> EncodedImage:
        raise AssertionError("the data was read")

    metric.check(Sample("0", unread, "dog"))
    metric.check(Sample("1", unread, None))
    with pytest.raises(
        DatasetError, match=r'class "cow" is none of the 2 classes of the model: "cat", "dog"$'
    ):
        metric.check(Sample("2", unread, "cow"))


@given(st.data())
def test_the_count_is_the_plain_one(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 8))
    names = tuple(f"class {i}" for i in range(classes))
    expected = data.draw(st.lists(st.none() | st.integers(0, classes - 1), min_size=1, max_size=12))
    rows = [data.draw(st.permutations(range(classes))) for _ in expected]
    metric = ClassificationMetric(model(names))

    add(metric, batch(*(None if e is None else names[e] for e in expected)), answer(rows))

    pairs = [(e, row) for e, row in zip(expected, rows, strict=True) if e is not None]
    plain = Accuracy(sum(e == r[0] for e, r in pairs), sum(e in r[:5] for e, r in pairs), len(pairs))
    assert metric.accuracy == (plain if pairs else None)


class TestClassIndex:
    @pytest.mark.parametrize(
        ("labels", "name", "index"),
        [
            (("cat", "dog"), "dog", 1),
            (("Cat", "Dog"), "dOG", 1),
            (("a", "A"), "A", 1),  # the same case comes first, as with letters
            (("A", "a"), "a", 1),
            (("n01440764 tench, Tinca tinca", "n01443537 goldfish"), "n01443537", 1),
            (("dog house", "dog"), "dog", 1),  # the whole name comes before the first word
            ((), "7", 7),
            ((), "0012", 12),
        ],
    )
    def test_a_class_is_found(self, labels: tuple[str, ...], name: str, index: int) -> None:
        assert ClassIndex(labels).find(name) == index

    def test_an_unknown_class_is_named_with_examples(self) -> None:
        labels = tuple(f"n{i} thing" for i in range(1000))

        with pytest.raises(DatasetError) as caught:
            ClassIndex(labels).find("cat")

        assert str(caught.value) == (
            'the dataset\'s class "cat" is none of the 1000 classes of the model: "n0 thing", "n1 thing", '
            '"n2 thing", …'
        )

    @pytest.mark.parametrize("labels", [("crane", "crane"), ("Crane", "CRANE"), ("crane bird", "crane lift")])
    def test_a_class_that_fits_several_is_refused(self, labels: tuple[str, ...]) -> None:
        with pytest.raises(
            DatasetError, match=r'class "crane" fits 2 classes of the model: .*\(0\), .*\(1\)'
        ):
            ClassIndex(labels).find("crane")

    @pytest.mark.parametrize("name", ["cat", "-1", "1.5", "", "٣", "1" * 30])
    def test_without_labels_only_an_index_will_do(self, name: str) -> None:
        with pytest.raises(DatasetError, match="is not a class index, and the model's manifest gives no"):
            ClassIndex(()).find(name)
