"""What is PyTorch's own: architectures in code, safe reading of weights, threads per calling thread."""

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

from agent.artifacts import Artifacts
from agent.models.pytorch.digits_cnn import DigitsCNN
from agent.models.pytorch.inception3 import Inception3
from manifests.errors import ArtifactError, PredictionError

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
    state = Inception3().state_dict()
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


class Words(torch.nn.Module):
    def forward(self, data: torch.Tensor) -> list[str]:
        return ["no tensor"]


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


def test_an_output_that_is_no_tensor_is_a_prediction_error(open_predictor, tmp_path, images):
    artifacts = save_torchscript(Words(), tmp_path / "words.pt")
    predictor = open_predictor("PyTorch", artifacts=artifacts)
    with pytest.raises(PredictionError, match="output0 is str, which is no tensor"):
        predictor.predict({"data": images})


def test_a_failure_in_torchscript_is_told_in_one_line(open_predictor, tmp_path, images):
    artifacts = save_torchscript(OnlySingle(), tmp_path / "single.pt")
    predictor = open_predictor("PyTorch", artifacts=artifacts)
    with pytest.raises(PredictionError, match=r"batch of 7: .*shape '\[1, 64\]' is invalid") as caught:
        predictor.predict({"data": images[:7]})
    assert "\n" not in str(caught.value)
    assert predictor.predict({"data": images[:1]})["output0"].shape == (1, 64)


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


def test_the_default_threads_are_pytorchs_own_after_mxnet_was_loaded(digits):
    alone = "import torch; print(torch.get_num_threads())"
    beside = """
import agent.frameworks.mxnet
import sys
from pathlib import Path
import numpy as np
import torch
from agent.artifacts import Artifacts
from agent.frameworks.pytorch import PyTorchPredictor
from agent.models.sources import BUILTIN_ARCHITECTURES
from agent.predictor import PredictorOptions
from manifests.schema import ModelManifest

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
    answers = [
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for program in (alone, beside)
    ]
    assert answers[0] == answers[1]
