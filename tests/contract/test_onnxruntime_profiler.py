"""ONNX Runtime's profiler as spans, on real networks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from profiled_rounds import Rounds, inputs, open_random, profiled
from tiny_models import save_onnx

from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.manifests.errors import ArtifactError, PredictionError


@pytest.fixture(scope="module")
def predictor() -> Iterator[Predictor]:
    with open_random("ResNet18", "ONNXRuntime") as predictor:
        yield predictor


@pytest.fixture(scope="module")
def rounds(predictor: Predictor) -> Rounds:
    """Three rounds of two batch sizes."""
    return profiled(predictor, TraceLevel.FULL_TRACE, [(1, 3), (2, 2), (1, 2)])


def test_every_convolution_is_a_layer_with_its_name_time_shapes_and_memory(rounds: Rounds) -> None:
    for prediction in rounds.predictions:
        convolutions = [layer for layer in prediction.layers if "Conv" in layer.type]
        assert len(convolutions) == 20
        assert convolutions[0].name == "/relu/Relu"  # which it was fused with
        assert convolutions[0].input_shapes[:2] == (f"{prediction.batch_size}x3x224x224", "64x3x7x7")
        assert convolutions[0].output_shapes == (f"{prediction.batch_size}x64x112x112",)
        assert convolutions[0].attribute("allocated_bytes") == prediction.batch_size * 64 * 112 * 112 * 4
        assert "/layer2/layer2.0/downsample/downsample.0/Conv" in {layer.name for layer in convolutions}
        assert all(layer.end_ns > layer.start_ns for layer in convolutions)


def test_each_prediction_has_the_same_layers_which_follow_each_other_in_it(rounds: Rounds) -> None:
    assert len(rounds.predictions) == 7
    for prediction in rounds.predictions:
        prediction.check_layers()
        assert [layer.name for layer in prediction.layers] == [x.name for x in rounds.predictions[0].layers]


def test_layers_make_up_the_time_of_the_predictions(rounds: Rounds) -> None:
    assert 0.5 <= rounds.share_of_layers <= 1


def test_what_onnx_runtime_does_not_give_is_noted_once(rounds: Rounds) -> None:
    assert rounds.notes == (
        "no peak memory for single layers: ONNX Runtime reserves memory for a whole run",
        "no calls to a device's runtime, kernels or copies: the model runs on the CPU",
    )


def test_answers_are_the_same_and_nothing_stays_behind(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batch = inputs(predictor, 2)
    before = predictor.predict(batch)
    profiler = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    assert profiler is not None
    profiler.start()
    during = predictor.predict(batch)
    assert list(tmp_path.iterdir())

    profiler.close()
    profiler.close()

    assert not list(tmp_path.iterdir())
    assert _same(before, during)
    assert _same(before, predictor.predict(batch))


def test_a_round_grows_to_what_the_profile_may_hold(predictor: Predictor) -> None:
    profiler = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    assert profiler is not None
    assert profiler.round_batches == 16
    found = profiled(predictor, TraceLevel.FRAMEWORK_TRACE, [(1, 1)], profiler)
    assert 16 < profiler.round_batches <= 10_000 / len(found.predictions[0].layers)


def test_nodes_of_a_graph_inside_a_node_are_operators_of_that_layer(
    open_predictor: Any, tmp_path: Path
) -> None:
    shape = ("batch", 1, 8, 8)
    branches = [
        helper.make_graph(
            [
                helper.make_node(operator, ["data"], [f"{name}_mid"]),
                helper.make_node("Abs", [f"{name}_mid"], [name]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        )
        for name, operator in (("yes", "Neg"), ("no", "Sin"))
    ]
    nodes = [
        helper.make_node("ReduceMax", ["data"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "most"], ["above"]),
        helper.make_node(
            "If", ["above"], ["chosen"], name="choice", then_branch=branches[0], else_branch=branches[1]
        ),
        helper.make_node("Exp", ["chosen"], ["out"], name="last"),
    ]
    artifacts = save_onnx(nodes, tmp_path / "if.onnx", shape, {"out": shape})
    predictor = open_predictor("ONNXRuntime", artifacts=artifacts)

    deep = profiled(predictor, TraceLevel.ML_LIBRARY_TRACE, [(2, 2)])
    flat = profiled(predictor, TraceLevel.FRAMEWORK_TRACE, [(2, 1)])

    for prediction in deep.predictions:
        prediction.check_layers()
        assert [layer.type for layer in prediction.layers][-2:] == ["If", "Exp"]
        choice = prediction.layers[-2]
        inner = [span for span in deep.spans if span.parent_id == choice.span_id]
        assert [span.type for span in inner] == ["Sin", "Abs"]
        assert all(choice.start_ns <= span.start_ns <= span.end_ns <= choice.end_ns for span in inner)
    assert len(flat.spans) == len(flat.predictions[0].layers) == len(deep.predictions[0].layers)


def test_a_graph_that_is_gone_is_an_error_and_the_predictor_goes_on(
    open_predictor: Any, tmp_path: Path
) -> None:
    relu = helper.make_node("Relu", ["data"], ["out"])
    shape = ("batch", 1, 8, 8)
    artifacts = save_onnx([relu], tmp_path / "net.onnx", shape, {"out": shape})
    predictor = open_predictor("ONNXRuntime", artifacts=artifacts)
    profiler = predictor.profiler(TraceLevel.FRAMEWORK_TRACE)
    artifacts.graph.unlink()

    with pytest.raises(ArtifactError, match=r"net\.onnx"):
        profiler.start()
    profiler.close()

    assert predictor.predict(inputs(predictor, 1))["out"].shape == (1, 1, 8, 8)


def test_a_predictor_that_is_not_loaded_has_no_profiler(predictor: Predictor) -> None:
    other = open_random("ResNet18", "ONNXRuntime")
    assert other.profiler(TraceLevel.FRAMEWORK_TRACE) is None
    with pytest.raises(PredictionError, match="is not loaded"):
        other.predict(inputs(other, 1))


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)
