"""Postprocessing: scores to ranked classes, and invalid scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from inferometer.agent.inference.stages import Postprocessor, whole_batch_outputs
from inferometer.agent.tasks.predictions import Classifications, RawOutputs
from inferometer.agent.tasks.vectors import softmax
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput


def postprocessor(limit: int = 5, kind: str = "classification", **parameters: Any) -> Postprocessor:
    return Postprocessor(ModelOutput.model_validate({"type": kind, "parameters": parameters}), limit)


def classify(
    process: Postprocessor, scores: NDArray[Any], **others: NDArray[Any]
) -> tuple[Classifications, list[bool]]:
    outputs, good = process({"scores": scores, **others}, len(scores))
    assert isinstance(outputs, Classifications)
    assert len(outputs.indices) == len(outputs.probabilities) == good.sum()
    return outputs, good.tolist()


def refusal(process: Postprocessor, tensors: dict[str, NDArray[Any]], batch_size: int) -> str:
    with pytest.raises(PredictionError) as caught:
        process(tensors, batch_size)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_classes_are_ranked_with_the_best_first() -> None:
    outputs, _ = classify(postprocessor(2), np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32))
    assert outputs.indices.tolist() == [[1, 2], [0, 2]]
    np.testing.assert_allclose(outputs.probabilities, [[0.7, 0.2], [0.5, 0.3]])
    assert (outputs.indices.dtype, outputs.probabilities.dtype) == (np.int64, np.float32)


def test_of_equal_scores_the_first_class_wins() -> None:
    outputs, _ = classify(postprocessor(4), np.array([[1, 3, 3, 1, 3]], np.float32))
    assert outputs.indices.tolist() == [[1, 2, 4, 0]]
    scores = np.random.default_rng(0).integers(0, 4, (1, 1000)).astype(np.float32)
    outputs, _ = classify(postprocessor(0), scores)
    assert outputs.indices[0].tolist() == sorted(range(1000), key=lambda place: (-scores[0, place], place))


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (5, 3), (3, 3), (0, 3)])
def test_no_more_classes_are_kept_than_there_are_and_0_keeps_all(limit: int, kept: int) -> None:
    outputs, _ = classify(postprocessor(limit), np.array([[3, 1, 2]], np.float32))
    assert outputs.indices.tolist() == [[0, 2, 1][:kept]]


def test_zero_keeps_all_of_many_classes_too() -> None:
    outputs, _ = classify(postprocessor(0), np.random.default_rng(0).normal(size=(2, 1000)))
    assert outputs.indices.shape == (2, 1000)
    assert (np.diff(outputs.probabilities, axis=1) <= 0).all()


def test_the_softmax_is_that_of_float64() -> None:
    scores = np.random.default_rng(0).normal(0, 10, (20, 50)).astype(np.float32)
    outputs, _ = classify(postprocessor(0, probabilities_transform="softmax"), scores)
    exact = np.exp(scores.astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs.probabilities, -np.sort(-exact, axis=1), rtol=2e-5)
    np.testing.assert_array_equal(outputs.indices, np.argsort(-scores, axis=1, kind="stable"))


def test_scores_without_a_transform_stay_as_they_are() -> None:
    outputs, _ = classify(postprocessor(), np.array([[-5.0, 12.0]], np.float32))
    assert outputs.probabilities.tolist() == [[12.0, -5.0]]


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=finite))
def test_probabilities_are_of_one_for_any_finite_scores(scores: NDArray[np.float32]) -> None:
    probabilities = softmax(scores)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    best = scores.argmax(axis=1)
    assert (np.take_along_axis(probabilities, best[:, None], 1)[:, 0] == probabilities.max(axis=1)).all()


@pytest.mark.parametrize("transform", ["none", "softmax"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_masked_and_no_other(transform: str, bad: float) -> None:
    scores = np.array([[1, 2], [bad, 1], [4, 3]], np.float32)
    outputs, good = classify(postprocessor(probabilities_transform=transform), scores)
    assert good == [True, False, True]
    assert outputs.indices.tolist() == [[1, 0], [0, 1]]
    assert np.isfinite(outputs.probabilities).all()


def test_all_rows_may_be_masked() -> None:
    outputs, good = classify(
        postprocessor(probabilities_transform="softmax"), np.full((2, 3), np.nan, np.float32)
    )
    assert good == [False, False]
    assert outputs.indices.shape == (0, 3)


@pytest.mark.parametrize("kind", ["classification", "multilabel_classification"])
def test_the_sigmoid_of_each_score_is_a_probability(kind: str) -> None:
    output = {"type": kind, "parameters": {"probabilities_layer": 0, "probabilities_transform": "sigmoid"}}
    process = Postprocessor(ModelOutput.model_validate(output), 5)
    [probabilities] = classify(process, np.array([[-200, 0, 200, 1]], np.float32))[0].probabilities
    assert probabilities == pytest.approx([1, 1 / (1 + np.exp(-1)), 0.5, 0])


def test_scores_beyond_float32_are_masked() -> None:
    _, good = classify(postprocessor(), np.array([[1e300, 0], [1, 0]]))
    assert good == [False, True]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "int64", "bool"])
def test_scores_may_be_any_numbers(dtype: str) -> None:
    outputs, _ = classify(postprocessor(), np.array([[0, 1, 0]]).astype(dtype))
    assert outputs.indices[0, 0] == 1
    assert outputs.probabilities.dtype == np.float32


def test_the_lowest_integer_is_the_last_and_not_the_first() -> None:
    outputs, _ = classify(postprocessor(), np.array([[-128, 0, 127]], np.int8))
    assert outputs.indices.tolist() == [[2, 1, 0]]


@pytest.mark.parametrize("dtype", ["U3", "object", "complex64"])
def test_scores_that_are_no_numbers_are_refused(dtype: str) -> None:
    assert "element type" in refusal(postprocessor(), {"scores": np.ones((1, 2)).astype(dtype)}, 1)


def test_sides_of_one_behind_the_classes_do_not_matter() -> None:
    outputs, _ = classify(postprocessor(), np.array([1, 3, 2], np.float32).reshape(1, 3, 1, 1))
    assert outputs.indices.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4), (2, 1, 3), (2, 3, 1, 2), (2, 0)])
def test_what_is_not_inputs_by_classes_is_refused(shape: tuple[int, ...]) -> None:
    assert f"output scores has shape {list(shape)}" in refusal(
        postprocessor(), {"scores": np.zeros(shape, np.float32)}, 2
    )


@pytest.mark.parametrize("kind", ["classification", "raw"])
@pytest.mark.parametrize("shape", [(3, 2), (1, 2), (0, 2)])
def test_an_output_without_a_row_for_every_input_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    message = refusal(postprocessor(kind=kind), {"scores": np.zeros(shape, np.float32)}, 2)
    assert message == f"output scores has shape {list(shape)} for a batch of 2 inputs"


@pytest.mark.parametrize(
    ("size", "whole"), [(1, {"loss", "three"}), (2, {"loss", "one", "three"}), (3, {"loss", "one", "three"})]
)
def test_an_output_for_the_whole_batch_is_kept_and_is_no_prediction(size: int, whole: set[str]) -> None:
    """Exporters write 1 for the batch axis too, so an output of 1 may be that of the only input."""
    tensors = {
        "scores": np.eye(3, dtype=np.float32)[:size],
        "loss": np.float32(1).reshape(()),
        "one": np.ones(1, np.float32),
        "three": np.ones((3, 2), np.float32),
    }
    fixed = {"scores": 1, "one": 1, "three": 3}
    assert whole_batch_outputs(tensors, size, fixed) == whole
    raw, _ = Postprocessor(ModelOutput(type="raw"), 5, fixed)(tensors, size)
    assert isinstance(raw, RawOutputs)
    assert raw.tensors["loss"].shape == ()
    for layer in (*whole, "scores"):
        output = ModelOutput.model_validate({"type": "regression", "parameters": {"values_layer": layer}})
        process = Postprocessor(output, 5, fixed)
        if layer == "scores":
            assert process(tensors, size)[1].sum() == size
        else:
            assert refusal(process, tensors, size).startswith(f"output {layer} is for the whole batch")


@pytest.mark.parametrize(
    ("labels", "named", "indices"),
    [
        ([], np.array([3, 0]), [3, 0]),
        (["b", "a"], np.array(["a", "b"], object), [1, 0]),
        (["b", "a"], np.array([[1], [0]], np.uint8), [1, 0]),
        (["1", "-1"], np.array([-1.0, 1.0], np.float32), [1, 0]),
        (["no", "yes"], np.array([True, False]), [1, 0]),
    ],
)
def test_a_class_that_the_model_names_has_no_probability(
    labels: list[str], named: NDArray[Any], indices: list[int]
) -> None:
    process = postprocessor(classes_layer="scores", labels=labels)
    outputs, good = classify(process, named)
    assert (outputs.indices.tolist(), good) == ([[each] for each in indices], [True, True])
    assert np.isnan(outputs.probabilities).all()


@pytest.mark.parametrize(
    ("labels", "named", "said"),
    [
        (["a"], np.array(["b"], object), 'returns the class "b", which is none of the manifest\'s 1 labels'),
        (["a"], np.array([1]), 'returns the class "1", which'),
        ([], np.array([-1]), 'returns the class "-1", which'),
        ([], np.array(["a"], object), "none of the manifest's 0 labels"),
        ([], np.array([0.5]), 'returns the class "0.5"'),
        ([], np.array([np.nan]), 'returns the class "nan"'),
        ([], np.array([2**63], np.uint64), f'returns the class "{2**63}", which'),
        ([], np.array([[1, 2]]), "has shape [1, 2]; expected one class per input"),
    ],
)
def test_a_class_that_the_labels_lack_is_refused(labels: list[str], named: NDArray[Any], said: str) -> None:
    assert said in refusal(postprocessor(classes_layer=0, labels=labels), {"scores": named}, 1)


def test_another_number_of_scores_than_of_labels_is_refused() -> None:
    process = postprocessor(labels=["cat", "dog"])
    assert classify(process, np.zeros((1, 2), np.float32))[1] == [True]
    message = refusal(process, {"scores": np.zeros((1, 3), np.float32)}, 1)
    assert message == "the model gives 3 scores, but its manifest has 2 labels"


@pytest.mark.parametrize(("layer", "best"), [(0, 0), (1, 1), ("scores", 0), ("other", 1)])
def test_the_output_is_taken_by_its_number_or_its_name(layer: int | str, best: int) -> None:
    process = postprocessor(probabilities_layer=layer)
    outputs, _ = classify(process, np.array([[9, 1]], np.float32), other=np.array([[1, 9]], np.float32))
    assert outputs.indices[0, 0] == best


@pytest.mark.parametrize(
    ("layer", "said"),
    [(2, "no output number 2; it has 2"), (-1, "no output number -1"), ("x", 'no output "x"; it has: a, b')],
)
def test_an_output_that_there_is_not_is_refused(layer: int | str, said: str) -> None:
    tensors: dict[str, NDArray[Any]] = {"a": np.zeros((1, 2)), "b": np.zeros((1, 2))}
    assert said in refusal(postprocessor(probabilities_layer=layer), tensors, 1)


def test_raw_outputs_stay_as_they_are() -> None:
    tensors = {"a": np.full((2, 3, 4), np.nan), "b": np.ones((2, 0))}
    outputs, good = postprocessor(kind="raw")(tensors, 2)
    assert isinstance(outputs, RawOutputs)
    assert good.tolist() == [True, True]
    assert outputs.tensors["a"] is tensors["a"]
    assert list(outputs.tensors) == ["a", "b"]
