"""Predictions of every kind on the wire: what one end writes, the other reads, or refuses in one line."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from inferometer.agent.inference.stages import BatchResult, StageTimes
from inferometer.agent.protocol.messages import decode_response, encode_response
from inferometer.agent.tasks.predictions import (
    Classifications,
    ClassMaps,
    Columns,
    Detections,
    Images,
    Instances,
    Predictions,
    Texts,
    Values,
)
from inferometer.agent.tasks.registry import PREDICTIONS
from inferometer.protos.inferometer.v1 import predict_pb2

EVERY: list[Predictions] = [
    Classifications(np.array([[1, 0], [0, 1]], np.int64), np.array([[0.9, 0.1], [0.6, 0.4]], np.float32)),
    Detections(
        np.array([2, 0], np.int64),
        np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.float32),
        np.array([0.9, 0.5], np.float32),
        np.array([3, 1], np.int64),
    ),
    Detections(
        np.zeros(2, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    ),
    Instances(
        np.array([1, 1], np.int64),
        np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.float32),
        np.array([0.9, 0.5], np.float32),
        np.array([3, 1], np.int64),
        np.array([[2, 3], [4, 5]], np.int64),
        np.array([1, 2], np.int64),
        np.array([54, 48, 68], np.uint8),
    ),
    ClassMaps(np.array([[2, 3], [1, 2]], np.int64), np.arange(8, dtype=np.int32)),
    Images(np.linspace(0, 1, 2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)),
    Values(np.array([[1.5, -2.0], [0.0, np.inf]], np.float32)),
    Texts.of(["", "zwölf"]),
]


def result(outputs: Predictions) -> BatchResult:
    return BatchResult(("a", "b"), outputs, (), StageTimes(1, 2, 3, 4))


def plain(columns: Columns) -> dict[str, tuple[object, object, object]]:
    return {name: (column.dtype, column.shape, column.tolist()) for name, column in columns.items()}


@pytest.mark.parametrize("predictions", EVERY, ids=lambda each: each.kind)
def test_predictions_come_back_as_they_were(predictions: Predictions) -> None:
    read = decode_response(encode_response(result(predictions)))

    assert type(read.outputs) is type(predictions)
    assert isinstance(read.outputs, Predictions)
    assert plain(read.outputs.columns()) == plain(predictions.columns())
    assert (read.input_ids, read.times) == (("a", "b"), StageTimes(1, 2, 3, 4))


@pytest.mark.parametrize("predictions", EVERY, ids=lambda each: each.kind)
def test_a_row_is_the_predictions_of_one_input(predictions: Predictions) -> None:
    rows = [predictions.row(0), predictions.row(1)]
    assert [len(row) for row in rows] == [1, 1]
    for name, column in predictions.columns().items():
        joined = np.concatenate([row.columns()[name] for row in rows])
        assert joined.tolist() == column.tolist()
    for place in (-1, 2):
        with pytest.raises(IndexError, match=f"input {place} of 2 {predictions.kind}"):
            predictions.row(place)


def test_the_library_reads_what_is_written_and_clients_of_earlier_versions_still_read_classes() -> None:
    first = predict_pb2.PredictResponse.FromString(encode_response(result(EVERY[0])))
    assert first.WhichOneof("outputs") == "classifications"
    other = predict_pb2.PredictResponse.FromString(encode_response(result(EVERY[1])))
    assert other.predictions.kind == "detections"
    assert [each.name for each in other.predictions.columns] == ["counts", "boxes", "scores", "classes"]


def changed(kind: str, **columns: np.ndarray) -> bytes:
    """A message whose predictions have other columns than their kind has."""

    class Foreign(Values):
        def columns(self) -> Columns:
            return columns

    Foreign.kind = kind
    return encode_response(result(Foreign(np.zeros((2, 1), np.float32))))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed("sounds", values=np.zeros((2, 1))), 'kind of predictions "sounds"'),
        (changed("values"), "lack the column values"),
        (changed("values", values=np.float32(1)), "is a single number"),
        (changed("texts", counts=np.array([-1, 1]), characters=np.zeros(0, np.uint8)), "not numbers of"),
        (changed("texts", counts=np.array([1, 1]), characters=np.zeros(0, np.uint8)), "0 bytes do not fit"),
        (
            changed(
                "detections",
                counts=np.array([1, 0]),
                boxes=np.zeros((1, 3)),
                scores=np.zeros(1),
                classes=np.zeros(1),
            ),
            "a box has four numbers",
        ),
        (changed("class_maps", sizes=np.array([2, 2]), pixels=np.zeros(4)), "not heights and widths"),
        (
            changed("classifications", indices=np.zeros((2, 2)), probabilities=np.zeros((2, 1))),
            "differ in number",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said) as caught:
        decode_response(content)
    assert "\n" not in str(caught.value)


def test_every_kind_has_the_name_of_its_class() -> None:
    assert [PREDICTIONS.find(name).kind for name in PREDICTIONS.names()] == list(PREDICTIONS.names())
