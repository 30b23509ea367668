"""What is ONNX Runtime's own: its providers, graphs of a fixed batch size, its threads and its log."""

from __future__ import annotations

import numpy as np
import onnxruntime
import psutil
import pytest
from onnx import helper
from tiny_models import save_onnx

from agent.device import Device, DeviceKind
from manifests.errors import ArtifactError, DeviceError, PredictionError

GPU = Device(DeviceKind.GPU, 99)


def test_a_session_that_falls_back_to_the_cpu_is_a_device_error(open_predictor, monkeypatch, capfd):
    # As with onnxruntime-gpu without its CUDA libraries: the provider is listed, and the session has it not.
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(DeviceError, match="gpu:99") as caught:
        open_predictor("ONNXRuntime", device=GPU)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_graph_of_a_fixed_batch_size_refuses_another_in_one_line(open_predictor, tmp_path, images, capfd):
    relu = helper.make_node("Relu", ["data"], ["out"])
    artifacts = save_onnx([relu], tmp_path / "one.onnx", (1, 1, 8, 8), {"out": (1, 1, 8, 8)})
    predictor = open_predictor("ONNXRuntime", artifacts=artifacts)
    with pytest.raises(PredictionError, match="ONNX Runtime failed on a batch of 7") as caught:
        predictor.predict({"data": images[:7]})
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(predictor.predict({"data": images[:1]})["out"], np.maximum(images[:1], 0))
    assert capfd.readouterr() == ("", "")


def test_several_outputs_have_the_graphs_names_and_order(open_predictor, tmp_path, images):
    nodes = [helper.make_node("Neg", ["data"], ["b"]), helper.make_node("Abs", ["data"], ["a"])]
    shape = ("batch", 1, 8, 8)
    artifacts = save_onnx(nodes, tmp_path / "two.onnx", shape, {"b": shape, "a": shape})
    outputs = open_predictor("ONNXRuntime", artifacts=artifacts).predict({"data": images})
    assert list(outputs) == ["b", "a"]
    np.testing.assert_array_equal(outputs["b"], -images)
    np.testing.assert_array_equal(outputs["a"], np.abs(images))


def test_a_model_that_returns_its_input_does_not_share_its_memory(open_predictor, tmp_path, images):
    shape = ("batch", 1, 8, 8)
    same = helper.make_node("Identity", ["data"], ["out"])
    artifacts = save_onnx([same], tmp_path / "same.onnx", shape, {"out": shape})
    output = open_predictor("ONNXRuntime", artifacts=artifacts).predict({"data": images})["out"]
    assert not np.may_share_memory(output, images)


def test_an_input_of_another_name_is_refused_with_the_nearest(open_predictor, tmp_path):
    shape = ("batch", 1, 8, 8)
    relu = helper.make_node("Relu", ["date"], ["out"])
    artifacts = save_onnx([relu], tmp_path / "date.onnx", shape, {"out": shape}, input_name="date")
    with pytest.raises(ArtifactError, match=r'no single input "data"; did you mean "date"\?'):
        open_predictor("ONNXRuntime", artifacts=artifacts)


def test_starts_as_many_threads_as_were_asked_for(open_predictor):
    def threads_started(threads: int) -> int:
        before = {thread.id for thread in psutil.Process().threads()}
        open_predictor("ONNXRuntime", threads=threads)
        return len({thread.id for thread in psutil.Process().threads()} - before)

    # the calling thread is the first
    assert [threads_started(count) for count in (1, 2, 4)] == [0, 1, 3]
