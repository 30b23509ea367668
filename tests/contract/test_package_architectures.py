"""``torchvision:NAME`` and ``timm:NAME``: optional packages, replaced by small ones here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch

from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES
from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.frameworks.onnxruntime.predictor import ONNXRuntimePredictor
from inferometer.agent.frameworks.pytorch.predictor import PyTorchPredictor
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.errors import ArtifactError, PredictionError
from inferometer.manifests.loader import parse_manifest

RANDOM = PredictorOptions(weights=Weights.RANDOM, seed=4)
BATCH = np.random.default_rng(1).normal(size=(3, 3, 8, 8)).astype(np.float32)
NET = '''
import torch

class Net(torch.nn.Module):
    """A classifier and what evaluation does not run, or with ``boxes`` a detector."""

    def __init__(self, classes=4, boxes=False):
        super().__init__()
        self.fc = torch.nn.Linear(192, classes)
        self.aux = torch.nn.Linear(2, 2)
        self.boxes = boxes

    def forward(self, data):
        scores = self.fc(data.flatten(1))
        return [{"boxes": scores}] if self.boxes else scores
'''
TORCHVISION = (
    NET
    + """
CALLS = []

class models:
    @staticmethod
    def list_models():
        return ["googlenet", "plain", "segmenter", "detector", "quantized_plain"]

    @staticmethod
    def get_model_builder(name):
        return BUILDERS[name]

    @staticmethod
    def get_model(name, **options):
        CALLS.append((name, options))
        return BUILDERS[name](**options)

def googlenet(*, weights=None, progress=True, **options):
    if options.pop("aux_logits") and weights is None:
        return Net()

def plain(*, weights=None, progress=True):
    return Net()

def segmenter(*, weights=None, weights_backbone="PUBLISHED", aux_loss=None):
    if weights_backbone is not None:
        raise OSError("would download the backbone")
    return Net()

def detector(*, weights=None, weights_backbone="PUBLISHED"):
    if weights_backbone is not None:
        raise OSError("would download the backbone")
    return Net(boxes=True)

BUILDERS = {f.__name__: f for f in (googlenet, plain, segmenter, detector)}
"""
)
TIMM = (
    NET
    + """
def list_models():
    return ["plain"]

def create_model(name, *, pretrained):
    if pretrained:
        raise OSError("would download")
    if name.endswith(".nope"):
        raise RuntimeError("Invalid pretrained tag (nope) for plain.")
    return Net(classes=7 if name.endswith(".in7") else 4)
"""
)
PACKAGES = ("torchvision", "timm")
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts packages of one module each onto the path, and takes them off again."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in PACKAGES}

    def forget() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
            del sys.modules[name]

    def install_one(name: str, text: str) -> None:
        forget()
        folder = Path(mkdtemp(dir=tmp_path))
        (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    yield install_one
    forget()
    sys.modules.update(before)


def predictor(
    architecture: str, weights: Path | None = None, kind: type[PyTorchPredictor] = PyTorchPredictor
) -> PyTorchPredictor:
    manifest = parse_manifest(
        {
            "name": "Net",
            "framework": {"name": "PyTorch"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": "raw"},
            "model": {"architecture": architecture},
        },
        Path("net.yml"),
    )
    found = BUILTIN_ARCHITECTURES.find(architecture, "PyTorch")
    artifacts = Artifacts(weights=weights).with_architecture(found)
    return kind(manifest, artifacts, PredictorOptions() if weights else RANDOM)


def refusal(architecture: str) -> str:
    with pytest.raises(ArtifactError) as caught:
        predictor(architecture).load()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f'architecture "{architecture}": ')
    return str(caught.value)


@pytest.mark.parametrize(
    ("package", "text", "name"),
    [
        ("torchvision", TORCHVISION, "googlenet"),
        ("torchvision", TORCHVISION, "Plain"),
        ("timm", TIMM, "plain"),
    ],
)
def test_published_weights_load_and_nothing_is_downloaded(
    install: Install, tmp_path: Path, package: str, text: str, name: str
) -> None:
    install(package, text)
    with predictor(f"{package}:{name}") as drawn:
        expected = drawn.predict({"data": BATCH})["output0"]
        net = drawn.artifacts.architecture.build(initialize=True)
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(0.5)
    torch.save(net.state_dict(), tmp_path / "published.pth")
    with predictor(f"{package}:{name}", tmp_path / "published.pth") as opened:
        output = opened.predict({"data": BATCH})["output0"]
    np.testing.assert_allclose(output[:, 0], 0.5 * BATCH.sum((1, 2, 3)) + 0.5, atol=1e-4)
    assert np.abs(output - expected).max() > 0.1


def test_the_packages_version_is_recorded(install: Install, tmp_path: Path) -> None:
    install("torchvision", TORCHVISION)
    information = Path(sys.path[0]) / "torchvision-9.8.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 9.8\n")
    manifest = predictor("torchvision:plain").manifest
    with open_session(manifest, SessionOptions(weights=Weights.RANDOM), Registry()) as session:
        frameworks = session.description.environment.frameworks
        assert frameworks["torchvision"] == "9.8"
        assert "PyTorch" in frameworks


def test_onnx_runtime_gets_them_by_export(install: Install) -> None:
    install("torchvision", TORCHVISION)
    outputs = []
    for kind in (PyTorchPredictor, ONNXRuntimePredictor):
        with predictor("torchvision:plain", kind=kind) as opened:
            outputs.append(opened.predict({"data": BATCH})["output0"])
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)


@pytest.mark.parametrize(
    ("initialize", "expected"),
    [
        (True, {"aux_logits": True, "init_weights": True}),
        (False, {"aux_logits": True, "init_weights": False}),
    ],
)
def test_weights_that_are_replaced_are_not_drawn(
    install: Install, initialize: bool, expected: dict[str, bool]
) -> None:
    install("torchvision", TORCHVISION)
    found = BUILTIN_ARCHITECTURES.find("torchvision:googlenet", "PyTorch")
    assert found is not None
    found.build(initialize=initialize)
    (call,) = sys.modules["torchvision"].CALLS
    assert call == ("googlenet", {"weights": None, **expected})


def test_a_segmentation_model_has_the_auxiliary_classifier_of_the_published_file(install: Install) -> None:
    install("torchvision", TORCHVISION)
    predictor("torchvision:segmenter").load()
    ((_, options),) = sys.modules["torchvision"].CALLS
    assert options == {"weights": None, "weights_backbone": None, "aux_loss": True}


def test_outputs_that_are_no_tensors_are_a_prediction_error(install: Install) -> None:
    install("torchvision", TORCHVISION)
    with (
        predictor("torchvision:detector") as opened,
        pytest.raises(PredictionError, match="output0 is dict, which is not a tensor"),
    ):
        opened.predict({"data": BATCH})


def test_timms_tag_decides_the_number_of_classes(install: Install) -> None:
    install("timm", TIMM)
    with predictor("timm:plain.in7") as opened:
        assert opened.predict({"data": BATCH})["output0"].shape == (3, 7)


@pytest.mark.parametrize(
    ("architecture", "part"),
    [
        ("torchvision:gogglenet", 'unknown torchvision model; did you mean "googlenet"'),
        ("torchvision:quantized_plain", "quantized models are not supported"),
        ("torchvision:", "unknown torchvision model; known: googlenet, plain"),
        ("timm:plane", 'unknown timm model; did you mean "plain"'),
        ("timm:plain.nope", "timm failed: Invalid pretrained tag (nope)"),
        ("timm:hf-hub:someone/net", "unknown timm model"),
        ("timm:local-dir:/tmp", "unknown timm model"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(install: Install, architecture: str, part: str) -> None:
    install("torchvision", TORCHVISION)
    install("timm", TIMM)
    assert part in refusal(architecture)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_package_that_is_absent_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refusal(f"{package}:x").endswith(
        f"{package} is not installed; install it with: pip install {package}"
    )


@pytest.mark.parametrize("package", ["torchvision", "timm"])
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ('RuntimeError("operator nms\\n does not exist")', "operator nms does not exist"),
        ('ImportError("no libtorch.so")', "no libtorch.so"),
        ("OSError", "OSError"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_with_the_reason_each_time(
    install: Install, package: str, failure: str, reason: str
) -> None:
    install(package, f"raise {failure}\n")
    first = refusal(f"{package}:x")
    assert f"cannot be imported: {reason}; install versions that are compatible" in first
    assert refusal(f"{package}:x") == first


def test_a_package_without_the_interface_is_an_artifact_error(install: Install) -> None:
    install("torchvision", "import types\nmodels = types.SimpleNamespace()\n")
    assert "torchvision failed: " in refusal("torchvision:plain")
    install("torchvision", "")
    assert "torchvision" in refusal("torchvision:plain")
