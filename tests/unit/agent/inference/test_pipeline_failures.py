"""The pipeline's inputs, and the reports on those that fail in a stage."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pipeline_fakes import EchoPredictor, answers, failures, inputs, manifest, no_fetch, number, opened

from inferometer.agent.inference.stages import Stage
from inferometer.agent.preprocessing.inputs import EncodedImage, Input, Payload, Tensor, Tensors, Url
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.manifests.errors import InputError, PredictionError


def test_a_url_is_fetched_and_decoded() -> None:
    buffer = io.BytesIO()
    Image.new("L", (1, 1), 7).save(buffer, "PNG")
    asked: list[str] = []

    def fetch(address: str) -> bytes:
        asked.append(address)
        return buffer.getvalue() if address.endswith("good") else no_fetch(address)

    with opened(fetch=fetch) as pipeline:
        result = pipeline.predict([Input("a", Url("http://x/good")), Input("b", lambda: Url("http://x/bad"))])
    assert sorted(asked) == ["http://x/bad", "http://x/good"]
    assert answers(result) == {"a": 7}
    assert failures(result) == [("b", Stage.READ)]
    assert result.failures[0].message == "http://x/bad is not there"


def test_a_tensor_of_a_whole_batch_is_predicted_with_numbered_ids() -> None:
    with opened() as pipeline:
        result = pipeline.predict_tensor(np.array([4, 2, 9]).reshape(3, 1, 1, 1))
    assert answers(result) == {"0": 4, "1": 2, "2": 9}
    assert result.times.read_ns == 0


@pytest.mark.parametrize("shape", [(), (0, 1, 1, 1), (2, 1, 1), (2, 1, 1, 2)])
def test_a_tensor_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    predictor = EchoPredictor()
    with opened(predictor) as pipeline, pytest.raises(InputError):
        pipeline.predict_tensor(np.zeros(shape, np.float32))
    assert predictor.batches == []


def test_raw_outputs_come_out_as_they_are() -> None:
    with opened(EchoPredictor(manifest(kind="raw"))) as pipeline:
        result = pipeline.predict(inputs([1, 2]))
    assert isinstance(result.outputs, RawOutputs)
    assert result.outputs.tensors["scores"].argmax(axis=1).tolist() == [1, 2]


def test_an_input_that_cannot_be_read_fails_alone() -> None:
    def reading(value: int) -> Payload:
        if value == 2:
            raise InputError("input 2: is broken")
        if value == 3:
            raise FileNotFoundError(2, "No such file or directory")
        return number(value)

    predictor = EchoPredictor()
    with opened(predictor) as pipeline:
        result = pipeline.predict(inputs([1, 2, 3, 4], reading))
    assert answers(result) == {"1": 1, "4": 4}
    assert predictor.batches == [[1, 4]]
    assert failures(result) == [("2", Stage.READ), ("3", Stage.READ)]
    assert [f.message for f in result.failures] == [
        "input 2: is broken",
        "input 3: cannot be read: No such file or directory",
    ]


def test_an_input_that_cannot_be_preprocessed_fails_alone() -> None:
    with opened() as pipeline:
        result = pipeline.predict(
            [*inputs([1]), Input("bad", EncodedImage(b"x")), Input("wrong", Tensor(np.zeros(3)))]
        )
    assert answers(result) == {"1": 1}
    assert failures(result) == [("bad", Stage.PREPROCESS), ("wrong", Stage.PREPROCESS)]
    assert all(len(failure.message.splitlines()) == 1 for failure in result.failures)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_whose_inputs_all_fail_is_not_predicted_and_the_next_one_is(threads: int) -> None:
    bad = [Input(id_, EncodedImage(b"")) for id_ in ("a", "b", "c")]
    predictor = EchoPredictor()
    with opened(predictor, threads=threads) as pipeline:
        first, second = pipeline.predict_batches([bad, inputs([5])])
    assert (first.input_ids, first.outputs) == ((), None)
    assert failures(first) == [("a", Stage.PREPROCESS), ("b", Stage.PREPROCESS), ("c", Stage.PREPROCESS)]
    assert (first.times.predict_ns, first.times.postprocess_ns) == (0, 0)
    assert answers(second) == {"5": 5}
    assert predictor.batches == [[5]]


def test_a_predictor_that_fails_on_a_batch_fails_that_batch_only() -> None:
    def during(batch: int) -> None:
        if batch == 1:
            raise PredictionError("out of memory")

    predictor = EchoPredictor()
    predictor.during = during
    bad = Input("bad", EncodedImage(b""))
    with opened(predictor) as pipeline:
        results = list(
            pipeline.predict_batches([inputs([1]), [*inputs([2]), bad, *inputs([3])], inputs([4])])
        )
    assert [answers(result) for result in results] == [{"1": 1}, {}, {"4": 4}]
    assert results[1].outputs is None
    assert failures(results[1]) == [("bad", Stage.PREPROCESS), ("2", Stage.PREDICT), ("3", Stage.PREDICT)]
    assert results[1].failures[1].message == "out of memory"
    assert [len(result.failures) for result in results] == [0, 3, 0]


class ScriptedScores(EchoPredictor):
    """Answers with scores that are given."""

    def __init__(self, scores: NDArray[Any]) -> None:
        super().__init__()
        self.scores = scores

    def predict(self, inputs: Tensors) -> Tensors:
        return {"scores": self.scores}


def test_scores_that_are_not_finite_fail_their_input_alone() -> None:
    scores = np.eye(10, dtype=np.float32)[:3]
    scores[1, 4] = np.nan
    with opened(ScriptedScores(scores)) as pipeline:
        result = pipeline.predict(inputs([0, 1, 2]))
    assert answers(result) == {"0": 0, "2": 2}
    assert failures(result) == [("1", Stage.POSTPROCESS)]
    assert "not a finite number" in result.failures[0].message


def test_without_any_finite_scores_there_are_no_outputs() -> None:
    with opened(ScriptedScores(np.full((2, 10), np.inf, np.float32))) as pipeline:
        result = pipeline.predict(inputs([0, 1]))
    assert (result.input_ids, result.outputs) == ((), None)
    assert failures(result) == [("0", Stage.POSTPROCESS), ("1", Stage.POSTPROCESS)]


@pytest.mark.parametrize("shape", [(2, 7), (3, 10), (2,)])
def test_outputs_of_a_wrong_shape_fail_the_batch_in_postprocessing(shape: tuple[int, ...]) -> None:
    with opened(ScriptedScores(np.zeros(shape, np.float32))) as pipeline:
        result = pipeline.predict(inputs([0, 1]))
    assert result.outputs is None
    assert failures(result) == [("0", Stage.POSTPROCESS), ("1", Stage.POSTPROCESS)]


def test_every_input_is_once_among_the_predicted_or_the_failed() -> None:
    def reading(value: int) -> Payload:
        if value % 3 == 0:
            raise InputError("broken")
        return EncodedImage(b"x") if value % 3 == 1 else number(value % 10)

    batches = [inputs(range(start, start + 11), reading) for start in range(0, 66, 11)]
    with opened(threads=3) as pipeline:
        for batch, result in zip(batches, pipeline.predict_batches(batches), strict=True):
            told = [*result.input_ids, *(failure.input_id for failure in result.failures)]
            assert sorted(told) == sorted(item.id for item in batch)
