"""Properties of ONNX Runtime only: providers, fixed batch sizes, threads and log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import save_onnx

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.allocator import VARIABLE
from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.manifests.errors import ArtifactError, DeviceError, PredictionError

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


def test_sessions_of_the_exact_allocator_give_the_same(open_predictor, images, monkeypatch):
    default = open_predictor("ONNXRuntime").predict({"data": images})
    monkeypatch.setenv(VARIABLE, "exact")
    for size in (64, 3):  # the second session has the arena of the first
        exact = open_predictor("ONNXRuntime").predict({"data": images[:size]})
        for name, output in default.items():
            np.testing.assert_allclose(exact[name], output[:size], rtol=1e-5, atol=1e-6)


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


@pytest.fixture
def with_external_data(tmp_path):
    """A graph that adds an initializer from another file, at the top or in a branch of an ``If``."""

    def saved(*, nested):
        ones = numpy_helper.from_array(np.ones((1, 1, 8, 8), np.float32), "ones")
        add = helper.make_node("Add", ["data", "ones"], ["out"])
        shape = ("batch", 1, 8, 8)
        if not nested:
            artifacts = save_onnx([add], tmp_path / "net.onnx", shape, {"out": shape}, [ones])
        else:
            branch = helper.make_graph(
                [helper.make_node("Add", ["data", "ones"], ["sum"])],
                "branch",
                [],
                [helper.make_tensor_value_info("sum", TensorProto.FLOAT, shape)],
                [ones],
            )
            true = helper.make_tensor("true", TensorProto.BOOL, [], [True])
            nodes = [
                helper.make_node("Constant", [], ["yes"], value=true),
                helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch),
            ]
            artifacts = save_onnx(nodes, tmp_path / "net.onnx", shape, {"out": shape})
        model = onnx.load(artifacts.graph)
        onnx.save(model, artifacts.graph, save_as_external_data=True, location="w.bin", size_threshold=0)
        assert (tmp_path / "w.bin").stat().st_size >= 256
        return artifacts

    return saved


@pytest.mark.parametrize("nested", [False, True], ids=["top", "branch"])
def test_weights_in_a_file_that_no_manifest_names_are_refused(open_predictor, with_external_data, nested):
    artifacts = with_external_data(nested=nested)
    with pytest.raises(ArtifactError, match=r"net\.onnx: takes its weights from w\.bin; accepted: one file"):
        open_predictor("ONNXRuntime", artifacts=artifacts)
    other = artifacts.graph.with_name("other.bin")
    other.write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"takes its weights from w\.bin"):
        open_predictor("ONNXRuntime", artifacts=replace(artifacts, weights=other))


def test_weights_in_the_file_that_the_manifest_names_are_used(open_predictor, with_external_data, images):
    artifacts = with_external_data(nested=False)
    named = replace(artifacts, weights=artifacts.graph.with_name("w.bin"))
    outputs = open_predictor("ONNXRuntime", artifacts=named).predict({"data": images})
    np.testing.assert_array_equal(outputs["out"], images + 1)


ENTRY = b"\x0a\x08location\x12\x05w.bin"
"""The key and the value that name the file of an initializer's values, as they stand in the graph."""


def test_a_file_that_is_named_before_the_key_is_refused(open_predictor, with_external_data):
    artifacts = with_external_data(nested=False)
    content = artifacts.graph.read_bytes()
    assert content.count(ENTRY) == 1
    artifacts.graph.write_bytes(content.replace(ENTRY, ENTRY[10:] + ENTRY[:10]))  # ONNX Runtime reads both
    with pytest.raises(ArtifactError, match=r"takes its weights from w\.bin"):
        open_predictor("ONNXRuntime", artifacts=artifacts)


def test_a_graph_behind_a_field_number_of_too_many_bits_is_refused(open_predictor, with_external_data):
    artifacts = with_external_data(nested=False)
    model = onnx.load(artifacts.graph, load_external_data=False)
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    tag = b"\xba\x80\x80\x80\x10"  # 7 << 3 | 2, the graph, with the bit 2**32 on top, which protobuf drops
    length = bytes([len(graph) & 127 | 128, len(graph) >> 7])
    artifacts.graph.write_bytes(model.SerializeToString() + tag + length + graph)
    with pytest.raises(ArtifactError, match=r"net\.onnx: is not an ONNX model: a field number that is too"):
        open_predictor("ONNXRuntime", artifacts=artifacts)


def test_a_location_that_is_no_path_is_refused(open_predictor, with_external_data):
    artifacts = with_external_data(nested=False)
    content = artifacts.graph.read_bytes()
    artifacts.graph.write_bytes(content.replace(ENTRY, ENTRY.replace(b"w.bin", b"w\0bin")))
    with pytest.raises(ArtifactError, match=r"net\.onnx: is not an ONNX model: ") as raised:
        open_predictor("ONNXRuntime", artifacts=artifacts)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x80", b"\x3b", b"\xff" * 12]
)
def test_what_is_no_onnx_model_is_refused(open_predictor, tmp_path, content):
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"net\.onnx: is not an ONNX model: ") as raised:
        open_predictor("ONNXRuntime", artifacts=Artifacts(graph=tmp_path / "net.onnx"))
    assert "\n" not in str(raised.value)


def test_a_model_that_cannot_be_run_here_is_said_to_be_one(open_predictor, tmp_path):
    own = onnx.helper.make_node("Unheard", ["x"], ["y"], domain="of.nobody")
    floats = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([own], "own", floats[:1], floats[1:])
    imports = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("of.nobody", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9), tmp_path / "net.onnx")
    with pytest.raises(ArtifactError, match=r"net\.onnx: ONNX Runtime cannot open it: .*of\.nobody"):
        open_predictor("ONNXRuntime", artifacts=Artifacts(graph=tmp_path / "net.onnx"))


def test_starts_as_many_threads_as_were_asked_for(open_predictor):
    def threads_started(threads: int) -> int:
        before = {thread.id for thread in psutil.Process().threads()}
        open_predictor("ONNXRuntime", threads=threads)
        return len({thread.id for thread in psutil.Process().threads()} - before)

    # the calling thread is the first
    assert [threads_started(count) for count in (1, 2, 4)] == [0, 1, 3]


def test_tells_the_providers_and_the_settings_of_the_session(open_predictor):
    told = open_predictor("ONNXRuntime").details()

    assert told.settings["execution providers"] == "CPUExecutionProvider"
    assert told.settings["inter-op threads"] == "1"
    assert "CPUExecutionProvider" in told.build
    assert "build type=" in told.build


@pytest.mark.parametrize(
    ("use_tf32", "tf32"), [({}, "on"), ({"use_tf32": "1"}, "on"), ({"use_tf32": "0"}, "off")]
)
def test_a_session_on_a_gpu_tells_tf32_and_the_search_of_cudnn(open_predictor, monkeypatch, use_tf32, tf32):
    predictor = open_predictor("ONNXRuntime")
    options = {"cudnn_conv_algo_search": "EXHAUSTIVE", **use_tf32}
    monkeypatch.setattr(
        predictor._session, "get_provider_options", lambda: {"CUDAExecutionProvider": options}
    )

    settings = predictor.details().settings
    assert settings["TF32 in convolutions"] == settings["TF32 in matrix products"] == tf32
    assert settings["cuDNN autotuning"] == "exhaustive"
