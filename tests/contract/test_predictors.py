"""The contract of every predictor, for every framework."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import (
    Device,
    DeviceKind,
    PredictorOptions,
    default_threads,
    usable_cores,
)
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import Registry
from inferometer.manifests.errors import (
    ArtifactError,
    ConfigurationError,
    DeviceError,
    InferometerError,
    PredictionError,
)

FAR_GPU = Device(DeviceKind.GPU, 99)


def scores(predictor: Predictor, images: np.ndarray) -> np.ndarray:
    (output,) = predictor.predict({"data": images}).values()
    return output


def reference(weights: Mapping[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The tiny net in NumPy, in float64."""
    padded = np.pad(images.astype(np.float64)[:, 0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    hidden = np.einsum("nhwij,cij->nchw", windows, weights["conv_weight"][:, 0])
    hidden = np.maximum(hidden + weights["conv_bias"][:, None, None], 0)
    pooled = hidden.reshape(len(images), 4, 4, 2, 4, 2).max(axis=(3, 5))
    return pooled.reshape(len(images), -1) @ weights["fc_weight"].T + weights["fc_bias"]


def assert_one_line(error: InferometerError) -> None:
    message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 600


def test_computes_what_the_net_means(framework, open_predictor, weights, images):
    np.testing.assert_allclose(
        scores(open_predictor(framework), images), reference(weights, images), atol=1e-5
    )


def test_all_frameworks_agree(tiny_models, open_predictor, images):
    answers = [scores(open_predictor(framework), images) for framework in tiny_models]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=1e-5)
        np.testing.assert_array_equal(answer.argmax(1), answers[0].argmax(1))


def test_batches_of_changing_size_give_the_rows_of_single_inputs(framework, open_predictor, images):
    predictor = open_predictor(framework)
    single = np.concatenate([scores(predictor, images[i : i + 1]) for i in range(16)])
    for size in (16, 7, 1, 16, 2, 3, 4, 5, 7, 1, 16):
        batch = scores(predictor, images[:size])
        assert batch.shape == single[:size].shape
        np.testing.assert_allclose(batch, single[:size], atol=1e-5)


def test_outputs_stay_valid_after_the_next_call(framework, open_predictor, images):
    predictor = open_predictor(framework)
    first = scores(predictor, images[:7])
    kept = first.copy()
    second = scores(predictor, images[7:14])
    np.testing.assert_array_equal(first, kept)
    assert not np.may_share_memory(first, second)
    assert not np.allclose(first, second)


def test_outputs_are_finished_when_predict_returns(framework, open_predictor, images):
    predictor = open_predictor(framework)
    batch = np.tile(images, (64, 1, 1, 1))
    answer = scores(predictor, batch)
    at_return = answer.copy()
    scores(predictor, batch)  # another whole batch: whatever was still running is over after it
    np.testing.assert_array_equal(answer, at_return)


def test_inputs_are_left_as_they_were(framework, open_predictor, images):
    before = images.copy()
    scores(open_predictor(framework), images)
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("form", ["read-only", "a strided view", "reversed"])
def test_takes_arrays_of_any_memory_layout(framework, open_predictor, images, form):
    predictor = open_predictor(framework)
    if form == "read-only":
        array = np.frombuffer(images.tobytes(), images.dtype).reshape(images.shape)
        assert not array.flags.writeable
    else:
        array = images[::2] if form == "a strided view" else images[::-1]
    np.testing.assert_allclose(scores(predictor, array), scores(predictor, array.copy()), atol=1e-6)


def test_names_the_outputs(open_predictor, images):
    names = {
        framework: list(open_predictor(framework).predict({"data": images}))
        for framework in ("PyTorch", "MXNet", "ONNXRuntime")
    }
    assert names == {"PyTorch": ["output0"], "MXNet": ["fc_output"], "ONNXRuntime": ["scores"]}


def test_predicts_in_another_thread_than_it_was_loaded_in(framework, open_predictor, images):
    predictor = open_predictor(framework)
    expected = scores(predictor, images)
    answers: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: answers.append(scores(predictor, images)))
    thread.start()
    thread.join(timeout=60)
    np.testing.assert_allclose(answers[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"image": np.zeros((1, 1, 8, 8), np.float32)}, '"image"'),
        ({}, "none"),
        ({"data": np.zeros((1, 1, 8, 8), np.float64)}, "float64"),
        ({"data": np.zeros((1, 1, 8, 9), np.float32)}, "(1, 1, 8, 9)"),
        ({"data": np.zeros((1, 8, 8), np.float32)}, "(batch, 1, 8, 8)"),
        ({"data": np.zeros((0, 1, 8, 8), np.float32)}, "(0, 1, 8, 8)"),
        ({"data": np.float32(1) * np.ones(())}, "allowed"),
    ],
)
def test_a_wrong_input_is_a_prediction_error_that_says_what_is_allowed(
    framework, open_predictor, images, inputs, reason
):
    predictor = open_predictor(framework)
    with pytest.raises(PredictionError) as caught:
        predictor.predict(inputs)
    assert_one_line(caught.value)
    assert reason in str(caught.value)
    assert scores(predictor, images).shape == (64, 10), "a predictor works on after a wrong input"


def test_a_gpu_that_is_not_there_is_a_device_error(framework, open_predictor):
    with pytest.raises(DeviceError) as caught:
        open_predictor(framework, device=FAR_GPU)
    assert_one_line(caught.value)
    assert "gpu:99" in str(caught.value)
    assert framework in str(caught.value).replace("ONNX Runtime", "ONNXRuntime")


@pytest.mark.parametrize("damage", ["truncated", "empty", "noise", "text"])
@pytest.mark.parametrize("kind", ["graph", "weights"])
def test_a_damaged_file_is_an_artifact_error_that_names_it(
    framework, open_predictor, tiny_models, tmp_path, kind, damage
):
    artifacts = tiny_models[framework].artifacts
    intact = artifacts.graph if kind == "graph" else artifacts.weights
    if intact is None:
        intact = artifacts.graph  # these frameworks read weights of their own beside the graph, or not at all
        kind = "graph"
    assert intact is not None
    content = intact.read_bytes()
    damaged = tmp_path / intact.name
    damaged.write_bytes(
        {
            "truncated": content[: len(content) // 2],
            "empty": b"",
            "noise": np.random.default_rng(3).bytes(len(content)),
            "text": b"version https://git-lfs.github.com/spec/v1\n",
        }[damage]
    )
    changed = replace(artifacts, graph=damaged) if kind == "graph" else replace(artifacts, weights=damaged)
    with pytest.raises(ArtifactError) as caught:
        open_predictor(framework, artifacts=changed)
    assert_one_line(caught.value)
    assert damaged.name in str(caught.value)


def test_a_model_without_files_is_an_artifact_error(framework, open_predictor):
    with pytest.raises(ArtifactError, match="needs"):
        open_predictor(framework, artifacts=Artifacts())


def test_close_can_be_repeated_and_ends_the_predictor(framework, open_predictor, images):
    predictor = open_predictor(framework)
    predictor.close()
    predictor.close()
    with pytest.raises(PredictionError, match=r"Tiny 1\.0: is not loaded"):
        scores(predictor, images)
    predictor.load()
    assert scores(predictor, images).shape == (64, 10), "a closed predictor can be loaded again"


def test_predict_before_load_is_a_prediction_error(framework, tiny_models, images):
    model = tiny_models[framework]
    predictor = Registry().find(framework).load()(model.manifest, model.artifacts, PredictorOptions())
    predictor.close()
    with pytest.raises(PredictionError, match="is not loaded"):
        scores(predictor, images)


def test_a_failed_load_leaves_nothing_to_predict_with(framework, open_predictor, tiny_models, tmp_path):
    broken = Path(tmp_path / "broken.json")
    broken.write_bytes(b"{}")
    model = tiny_models[framework]
    kind = Registry().find(framework).load()
    predictor = kind(model.manifest, replace(model.artifacts, graph=broken), PredictorOptions())
    with pytest.raises(ArtifactError):
        predictor.load()
    with pytest.raises(PredictionError, match="is not loaded"):
        predictor.predict({"data": np.zeros((1, 1, 8, 8), np.float32)})
    predictor.close()


# MXNet, which takes the number once in a process, is tested in processes of its own: test_mxnet_predictor.py
@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
@pytest.mark.parametrize("threads", [1, 2])
def test_records_the_threads_that_were_asked_for(framework, open_predictor, threads):
    assert open_predictor(framework, threads=threads).threads == threads


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_the_default_threads_are_not_those_of_an_earlier_predictor(framework, open_predictor):
    default = open_predictor(framework).threads
    for threads in (1, 2, 3):
        open_predictor(framework, threads=threads)
    assert open_predictor(framework).threads == default


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_the_default_threads_leave_spare_cores_and_those_that_were_asked_for_do_not(
    framework, open_predictor
):
    spare_cores = max(1, usable_cores() - 1)

    assert open_predictor(framework, spare_cores=spare_cores).threads == 1
    assert open_predictor(framework, spare_cores=10_000).threads == 1
    assert open_predictor(framework, spare_cores=spare_cores, threads=3).threads == 3


def test_the_default_threads_are_the_same_in_every_framework(framework, open_predictor):
    assert open_predictor(framework).threads == default_threads()


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_the_variable_of_openmp_sets_the_default_threads_of_every_framework(
    framework, open_predictor, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert open_predictor(framework).threads == 3
    assert open_predictor(framework, threads=2).threads == 2


def test_tells_its_libraries_its_build_and_how_many_operators_run_at_once(framework, open_predictor):
    told = open_predictor(framework).details()

    assert told.libraries["BLAS"]
    assert told.build
    assert int(told.settings["inter-op threads"]) >= 1
    for text in (told.build, *told.libraries.values(), *told.settings.values()):
        assert text == text.strip()
        assert "\n" not in text
    for name in (*told.libraries, *told.settings):
        assert "." not in name  # a name is a key in documents


@pytest.mark.parametrize("threads", [0, -1])
def test_options_refuse_fewer_than_one_thread(threads):
    with pytest.raises(ConfigurationError, match="allowed: 1 or more"):
        PredictorOptions(threads=threads)
