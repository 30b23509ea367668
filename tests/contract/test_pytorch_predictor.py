"""Properties of PyTorch only: architectures in code, safe loading of weights, threads per caller."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import save_torchscript, tiny_manifest

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN
from inferometer.agent.architectures.pytorch.inception import Inception3
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import default_threads
from inferometer.manifests.errors import ArtifactError, PredictionError

DIGITS = tiny_manifest("PyTorch", (1, 16, 16), architecture="DigitsCNN", weights_path="digits.pt")


@pytest.fixture
def digits(tmp_path: Path) -> tuple[DigitsCNN, Artifacts]:
    torch.manual_seed(5)
    net = DigitsCNN()
    torch.save(net.state_dict(), tmp_path / "digits.pt")
    return net.eval(), Artifacts(weights=tmp_path / "digits.pt")


def test_an_architecture_in_code_gets_its_weights(open_predictor, digits):
    net, artifacts = digits
    batch = np.random.default_rng(1).normal(size=(5, 1, 16, 16)).astype(np.float32)
    output = open_predictor("PyTorch", manifest=DIGITS, artifacts=artifacts).predict({"data": batch})[
        "output0"
    ]
    with torch.no_grad():
        np.testing.assert_allclose(output, net(torch.from_numpy(batch)).numpy(), atol=1e-6)


def test_an_architecture_needs_weights(open_predictor):
    with pytest.raises(ArtifactError, match="has no weights; give weights_path, or use --weights=random"):
        open_predictor("PyTorch", manifest=DIGITS, artifacts=Artifacts())


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape", "no state dict", "truncated"])
def test_weights_that_do_not_fit_are_an_artifact_error_of_one_line(open_predictor, digits, tmp_path, change):
    net, _ = digits
    path = tmp_path / "wrong.pt"
    state = net.state_dict()
    if change == "missing":
        del state["fc2.bias"]
    elif change == "unexpected":
        state["fc3.bias"] = torch.zeros(1)
    elif change == "shape":
        state["fc2.bias"] = torch.zeros(11)
    torch.save([1, 2] if change == "no state dict" else state, path)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ArtifactError, match=r"wrong\.pt") as caught:
        open_predictor("PyTorch", manifest=DIGITS, artifacts=Artifacts(weights=path))
    assert "\n" not in str(caught.value)


def test_inception3_passes_over_the_auxiliary_classifier_and_nothing_else(open_predictor, tmp_path):
    manifest = tiny_manifest("PyTorch", architecture="inception3", weights_path="published.pt")
    with torch.device("meta"):  # none of the weights is used
        shapes = {name: value.shape for name, value in Inception3().state_dict().items()}
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    state["AuxLogits.fc.weight"] = torch.zeros(1000, 768)
    artifacts = Artifacts(weights=tmp_path / "published.pt")
    torch.save(state, artifacts.weights)
    open_predictor("PyTorch", manifest=manifest, artifacts=artifacts)
    state["Mixed_8a.conv.weight"] = torch.zeros(1)
    torch.save(state, artifacts.weights)
    with pytest.raises(ArtifactError, match=r'Unexpected key\(s\) in state_dict: "Mixed_8a.conv.weight"'):
        open_predictor("PyTorch", manifest=manifest, artifacts=artifacts)


class Exploit:
    """Pickles to a call: what a weights file of an attacker holds."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_that_is_no_checkpoint_is_an_artifact_error(open_predictor, tmp_path):
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"conv1.weight": 1}, protocol=4))
    with pytest.raises(ArtifactError, match=r"plain\.pt: are not the weights"):
        open_predictor("PyTorch", manifest=DIGITS, artifacts=Artifacts(weights=tmp_path / "plain.pt"))


def test_weights_cannot_run_code(open_predictor, tmp_path):
    marker = tmp_path / "was here"
    torch.save({"conv1.weight": Exploit(marker)}, tmp_path / "evil.pt")
    with pytest.raises(ArtifactError, match=r"evil\.pt") as caught:
        open_predictor("PyTorch", manifest=DIGITS, artifacts=Artifacts(weights=tmp_path / "evil.pt"))
    assert not marker.exists()
    assert "\n" not in str(caught.value)
    assert "mkdir" in str(caught.value)
    assert "weights_only" not in str(caught.value), "PyTorch's advice would let the code run"


def test_an_exported_program_is_refused_because_loading_it_runs_code(open_predictor, tmp_path):
    path = tmp_path / "net.pt2"
    path.write_bytes(b"PK")
    with pytest.raises(ArtifactError, match="TorchScript"):
        open_predictor("PyTorch", artifacts=Artifacts(graph=path))


class Pair(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return data, data[:, 0] * 2


class Named(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": data + 1, "features": data - 1}


class Halves(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data.to(torch.bfloat16)


class Words(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> list[str]:
        return ["no tensor"]


class Raising(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if data.shape[0] > 1:
            raise ValueError("too many")
        return data


class OnlySingle(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data.reshape(1, 64)


def test_outputs_are_numbered_and_do_not_share_the_inputs_memory(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Pair(), tmp_path / "pair.pt")
    outputs = open_predictor("PyTorch", artifacts=artifacts).predict({"data": images})
    assert list(outputs) == ["output0", "output1"]
    np.testing.assert_array_equal(outputs["output0"], images)
    np.testing.assert_array_equal(outputs["output1"], images[:, 0] * 2)
    assert not np.may_share_memory(outputs["output0"], images)


def test_a_mapping_gives_the_outputs_names(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Named(), tmp_path / "named.pt")
    outputs = open_predictor("PyTorch", artifacts=artifacts).predict({"data": images})
    assert list(outputs) == ["logits", "features"]


def test_an_output_of_bfloat16_which_numpy_lacks_is_float32(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Halves(), tmp_path / "halves.pt")
    output = open_predictor("PyTorch", artifacts=artifacts).predict({"data": images})["output0"]
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output, torch.from_numpy(images).bfloat16().float().numpy())


def test_an_output_that_is_no_tensor_is_a_prediction_error(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Words(), tmp_path / "words.pt")
    predictor = open_predictor("PyTorch", artifacts=artifacts)
    with pytest.raises(PredictionError, match="output0 is str, which is not a tensor"):
        predictor.predict({"data": images})


def test_a_failure_in_torchscript_is_told_in_one_line(open_predictor, tmp_path, images):
    artifacts = save_torchscript(OnlySingle(), tmp_path / "single.pt")
    predictor = open_predictor("PyTorch", artifacts=artifacts)
    with pytest.raises(PredictionError, match=r"batch of 7: .*shape '\[1, 64\]' is invalid") as caught:
        predictor.predict({"data": images[:7]})
    assert "\n" not in str(caught.value)
    assert predictor.predict({"data": images[:1]})["output0"].shape == (1, 64)


def test_an_exception_that_torchscript_raises_is_told_in_one_line(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Raising(), tmp_path / "raising.pt")
    predictor = open_predictor("PyTorch", artifacts=artifacts)
    with pytest.raises(PredictionError, match=r"PyTorch failed on a batch of 7: ValueError: too many$"):
        predictor.predict({"data": images[:7]})
    assert predictor.predict({"data": images[:1]})["output0"].shape == (1, 1, 8, 8)


@pytest.mark.parametrize("error", [SyntaxError("odd"), type("TheirError", (Exception,), {})("odd")])
def test_whatever_a_model_in_code_raises_is_told_in_one_line(open_predictor, images, monkeypatch, error):
    predictor = open_predictor("PyTorch")

    def fail(_):
        raise error

    monkeypatch.setattr(predictor, "_module", fail)
    with pytest.raises(PredictionError, match="PyTorch failed on a batch of 7: odd"):
        predictor.predict({"data": images[:7]})


def test_each_thread_that_predicts_uses_the_threads_of_the_options(open_predictor, images):
    predictor = open_predictor("PyTorch", threads=2)
    seen: list[int] = []

    def use() -> None:
        torch.set_num_threads(1)  # as another predictor did in this thread
        predictor.predict({"data": images})
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(timeout=60)
    use()
    assert seen == [2, 2]


def test_the_default_threads_are_used_after_mxnet_was_loaded(digits):
    beside = """
import sys
sys.modules.update(sklearn=None, scipy=None)  # MXNet does without them, and they take a second to import
import inferometer.agent.frameworks.mxnet.predictor
from pathlib import Path
import numpy as np
import torch
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.pytorch.predictor import PyTorchPredictor
from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.inference.predictor import PredictorOptions
from inferometer.manifests.schema import ModelManifest

manifest = ModelManifest.model_validate_json(sys.argv[1])
digits = BUILTIN_ARCHITECTURES.find("DigitsCNN", "PyTorch")
artifacts = Artifacts(weights=Path(sys.argv[2]), architecture=digits)
with PyTorchPredictor(manifest, artifacts, PredictorOptions()) as predictor:
    predictor.predict({"data": np.ones((1, 1, 16, 16), np.float32)})
    assert predictor.threads == torch.get_num_threads()
    print(predictor.threads)
"""
    _, artifacts = digits
    arguments = [DIGITS.model_dump_json(), str(artifacts.weights)]
    done = subprocess.run(
        [sys.executable, "-c", beside, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == f"{default_threads()}\n"


def test_tells_the_precision_that_is_set(open_predictor):
    predictor = open_predictor("PyTorch")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert predictor.details().settings["float32 matrix products"] == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert predictor.details().settings["float32 matrix products"] == before


def test_a_setting_that_pytorch_refuses_to_tell_is_said_to_be_set_by_operator(open_predictor, monkeypatch):
    def refuse():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    settings = open_predictor("PyTorch").details().settings
    assert settings["float32 matrix products"] == "set by operator"


CONFIG = """PyTorch built with:
  - Intel(R) MKL-DNN v3.4.2 (Git Hash 1137e04)
  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release, USE_MKL=OFF, USE_MKLDNN=ON, USE_OPENMP=1
"""


def test_a_build_with_cuda_tells_its_libraries_and_settings(open_predictor, monkeypatch):
    monkeypatch.setattr(torch.__config__, "show", lambda: CONFIG)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90_100)

    told = open_predictor("PyTorch").details()
    assert told.libraries == {"oneDNN": "3.4.2", "BLAS": "open", "CUDA runtime": "12.4", "cuDNN": "9.1.0"}
    assert told.build.split(", ")[1:] == ["oneDNN", "CUDA"]
    assert told.settings["TF32 in matrix products"] == "off"
    assert told.settings["TF32 in convolutions"] == "on"
    assert told.settings["cuDNN autotuning"] == "off"
    torch.backends.cudnn.benchmark = True
    try:
        assert open_predictor("PyTorch").details().settings["cuDNN autotuning"] == "on"
    finally:
        torch.backends.cudnn.benchmark = False
