"""The precision of models in code, and cuDNN's benchmark mode, in every framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.errors import ConfigurationError, DeviceError
from inferometer.manifests.schema import ModelManifest

NETS = {
    "PyTorch": ("DigitsCNN", (1, 16, 16)),
    "MXNet": ("gluon:squeezenet1.1", (3, 224, 224)),
    "ONNXRuntime": ("DigitsCNN", (1, 16, 16)),
}
# the share of the largest score: half the distance of two numbers of the type, many times over
TOLERANCES = {Precision.FLOAT16: 0.01, Precision.BFLOAT16: 0.08}
RUNS = [
    ("PyTorch", Precision.FLOAT16),
    ("PyTorch", Precision.BFLOAT16),
    ("MXNet", Precision.BFLOAT16),
    ("ONNXRuntime", Precision.FLOAT16),
]


def in_code(framework: str) -> ModelManifest:
    return manifest_of(framework, *NETS[framework])


def manifest_of(framework: str, architecture: str, dimensions: tuple[int, ...]) -> ModelManifest:
    tensor = {"type": "tensor", "parameters": {"element_type": "float32", "dimensions": list(dimensions)}}
    return ModelManifest.model_validate(
        {
            "name": "Tiny",
            "framework": {"name": framework},
            "inputs": [tensor],
            "output": {"type": "raw"},
            "model": {"architecture": architecture},
        }
    )


def batch_for(framework: str, size: int = 5) -> np.ndarray:
    _, dimensions = NETS[framework]
    return np.random.default_rng(3).normal(0, 1, (size, *dimensions)).astype(np.float32)


@pytest.fixture
def opened(open_predictor):
    """Loads a small model in code with random weights."""

    def opened(framework: str, precision: Precision = Precision.FLOAT32, **options):
        return open_predictor(
            framework,
            manifest=in_code(framework),
            artifacts=Artifacts(),
            weights=Weights.RANDOM,
            seed=5,
            precision=precision,
            **options,
        )

    return opened


@pytest.mark.parametrize(("framework", "precision"), RUNS)
def test_a_lower_precision_gives_almost_the_same_scores_in_float32(opened, framework, precision):
    batch = batch_for(framework)
    full, lower = opened(framework), opened(framework, precision)
    [expected] = full.predict({"data": batch}).values()
    [found] = lower.predict({"data": batch}).values()
    [one] = lower.predict({"data": batch[:1]}).values()

    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    assert not np.array_equal(found, expected), "nothing was computed in another precision"
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCES[precision] * scale)
    np.testing.assert_allclose(one, found[:1], rtol=0, atol=TOLERANCES[precision] * scale)


def test_scores_in_float16_are_numbers_of_float16(opened):
    [found] = opened("PyTorch", Precision.FLOAT16).predict({"data": batch_for("PyTorch")}).values()
    np.testing.assert_array_equal(found.astype(np.float16).astype(np.float32), found)


@pytest.mark.parametrize(
    ("framework", "precision", "parts"),
    [
        ("MXNet", Precision.FLOAT16, ("cannot run it in float16 on cpu", "use bfloat16 or float32")),
        ("ONNXRuntime", Precision.BFLOAT16, ("cannot cast it to bfloat16", "use float32 or float16")),
    ],
)
def test_what_a_framework_cannot_compute_is_one_line_with_the_precisions_that_it_can(
    opened, framework, precision, parts
):
    with pytest.raises(ConfigurationError) as caught:
        opened(framework, precision)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("framework", "parts"),
    [
        ("PyTorch", ("not implemented for 'Half'", "use bfloat16 or float32")),
        ("ONNXRuntime", ("use float32",)),
    ],
)
def test_an_operator_without_a_kernel_is_found_when_the_model_is_loaded(open_predictor, framework, parts):
    normalised = manifest_of(framework, "GoogLeNet", (3, 224, 224))
    with pytest.raises(ConfigurationError) as caught:
        open_predictor(
            framework,
            manifest=normalised,
            artifacts=Artifacts(),
            weights=Weights.RANDOM,
            precision=Precision.FLOAT16,
        )
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in (*parts, "float16")), message


def test_a_model_in_a_file_keeps_its_own_precision(open_predictor, framework):
    with pytest.raises(ConfigurationError, match="is a file and has its own precision") as caught:
        open_predictor(framework, precision=Precision.BFLOAT16)
    assert "\n" not in str(caught.value)


def test_a_module_in_memory_is_not_cast(open_predictor):
    net = torch.nn.Flatten()
    with pytest.raises(ConfigurationError, match="is in memory and has its own precision"):
        open_predictor("PyTorch", artifacts=Artifacts(in_memory=net), precision=Precision.FLOAT16)


def test_a_session_of_a_file_of_halves_refuses_float32_that_was_asked_for(tiny_models):
    model = tiny_models["PyTorch"]
    path = str(model.artifacts.graph)
    document = model.manifest.model_dump(mode="json") | {"model": {"graph_path": path}}
    document["inputs"][0]["parameters"]["element_type"] = "float16"
    halves = ModelManifest.model_validate({k: v for k, v in document.items() if k != "source"})
    with pytest.raises(ConfigurationError, match="only a model that is built in code"):
        open_session(halves, SessionOptions(precision=Precision.FLOAT32), Registry())


def test_float16_of_convolutions_before_an_rnn_does_not_end_the_process():
    code = """
from inferometer.agent.hardware.environment import Precision, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import select_model
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.catalog import Catalog
import numpy as np

registry = Registry()
manifest = select_model(Catalog(), registry, "DeepSpeech2", framework="ONNXRuntime", weights=Weights.RANDOM)
# of few time steps: PyTorch, which exports the network, takes seconds for convolutions of 200 in float16
tensor = manifest.inputs[0]
short = tensor.parameters.model_copy(update={"dimensions": (1, 20, 161)})
manifest = manifest.model_copy(update={"inputs": (tensor.model_copy(update={"parameters": short}),)})
options = SessionOptions(weights=Weights.RANDOM, precision=Precision.FLOAT16)
with open_session(manifest, options, registry) as session:
    shape = (1, *manifest.inputs[0].parameters.dimensions)
    [output] = session.infer({manifest.tensors[0].name: np.zeros(shape, np.float32)}).outputs.values()
    print(output.dtype, session.description.environment.settings["optimisers left out"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "float32 NchwcTransformer\n"), done.stderr


# cuDNN's benchmark mode


def test_pytorch_has_the_setting_while_a_model_is_open(opened):
    before = torch.backends.cudnn.benchmark
    wanted = not before
    first = opened("PyTorch", cudnn_benchmark=wanted)
    assert torch.backends.cudnn.benchmark is wanted
    second = opened("PyTorch", cudnn_benchmark=wanted)
    with pytest.raises(ConfigurationError, match="PyTorch has one setting per process"):
        opened("PyTorch", cudnn_benchmark=before)
    first.close()
    first.close()
    assert torch.backends.cudnn.benchmark is wanted
    second.close()
    assert torch.backends.cudnn.benchmark is before


def test_a_pytorch_model_that_cannot_be_loaded_leaves_the_setting_alone(open_predictor):
    before = torch.backends.cudnn.benchmark
    gpu = Device(DeviceKind.GPU, 99)
    with pytest.raises(DeviceError):
        open_predictor("PyTorch", device=gpu, cudnn_benchmark=not before)
    assert torch.backends.cudnn.benchmark is before


def test_mxnet_takes_the_setting_once_in_a_process():
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import tempfile
from pathlib import Path
from tiny_models import random_weights, tiny_manifest, write_symbol
from inferometer.agent.frameworks.mxnet.predictor import MXNetPredictor
from inferometer.agent.inference.predictor import PredictorOptions
from inferometer.manifests.errors import ConfigurationError

files = write_symbol(Path(tempfile.mkdtemp()), random_weights(1))
for wanted in (None, False, False, True):
    predictor = MXNetPredictor(tiny_manifest("MXNet"), files, PredictorOptions(cudnn_benchmark=wanted))
    try:
        with predictor:
            print(wanted, os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT"))
    except ConfigurationError as error:
        print(error)
"""
    environment = {name: value for name, value in os.environ.items() if "CUDNN" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.splitlines() == [
        "None None",
        "False 0",
        "False 0",
        "cudnn_benchmark: found true; MXNet sets it once per process, and here it is false; "
        "use another process",
    ], done.stderr


@pytest.mark.parametrize(("wanted", "search"), [(None, None), (True, "EXHAUSTIVE"), (False, "HEURISTIC")])
def test_onnx_runtime_gets_the_setting_with_its_cuda_provider(open_predictor, monkeypatch, wanted, search):
    asked = []

    def session(path, settings, providers, **_):
        asked.extend(providers)
        raise RuntimeError("CUDA is not here")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr("inferometer.agent.frameworks.onnxruntime.sessions.gpu_count", lambda: 1)
    with pytest.raises(DeviceError, match="CUDA is not here"):
        open_predictor("ONNXRuntime", device=Device(DeviceKind.GPU), cudnn_benchmark=wanted)
    [(name, options)] = asked
    assert name == "CUDAExecutionProvider"
    assert options.get("cudnn_conv_algo_search") == search


@pytest.mark.parametrize("framework", ["PyTorch", "ONNXRuntime"])
def test_on_a_cpu_the_setting_changes_nothing(open_predictor, framework, images):
    [expected] = open_predictor(framework).predict({"data": images}).values()
    [found] = open_predictor(framework, cudnn_benchmark=True).predict({"data": images}).values()
    np.testing.assert_array_equal(found, expected)
