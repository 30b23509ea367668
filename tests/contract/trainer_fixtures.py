"""The models of the trainers' suite, as files with architectures in every framework, and their trainers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.hardware.environment import PredictorOptions, Weights
from inferometer.agent.inference.registry import Registry
from inferometer.agent.training.trainer import (
    OptimizerOptions,
    Trainer,
    TrainerOptions,
    TrainingBatch,
    open_trainer,
)
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest

_PYTORCH: Mapping[str, str] = {
    "linear": """
class Linear(nn.Module):
    implements = "linear"
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)
    def forward(self, data):
        return self.fc(data)
""",
    "plain": """
class Plain(nn.Module):
    implements = "plain"
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.fc = nn.Linear(64, 10)
    def forward(self, data):
        return self.fc(nn.functional.max_pool2d(torch.relu(self.conv(data)), 2).flatten(1))
""",
    "dropping": """
class Dropping(nn.Module):
    implements = "dropping"
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    def forward(self, data):
        return self.layers(data)
""",
    "normalised": """
class Normalised(nn.Module):
    implements = "normalised"
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    def forward(self, data):
        return self.layers(data)
""",
    "speech": """
class Speech(nn.Module):
    implements = "speech"
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5))
    def forward(self, data):
        return self.layers(data)
""",
    "auxiliary": """
class Auxiliary(nn.Module):
    implements = "auxiliary"
    ignored_weights = ("old.",)
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 16)
        self.aside = nn.Linear(16, 3)
        self.fc = nn.Linear(16, 3)
    def forward(self, data):
        hidden = torch.relu(self.hidden(data))
        if not self.training:
            return self.fc(hidden)
        return {"scores": self.fc(hidden), "aside": self.aside(hidden)}
""",
}
_MXNET: Mapping[str, str] = {
    "linear": """
class Linear(nn.HybridSequential):
    implements = "linear"
    def __init__(self):
        super().__init__()
        self.add(nn.Dense(3, in_units=5))
""",
    "plain": """
class Plain(nn.HybridSequential):
    implements = "plain"
    def __init__(self):
        super().__init__()
        self.add(nn.Conv2D(4, 3, padding=1, in_channels=1, activation="relu"))
        self.add(nn.MaxPool2D(2))
        self.add(nn.Dense(10, in_units=64))
""",
    "dropping": """
class Dropping(nn.HybridSequential):
    implements = "dropping"
    def __init__(self):
        super().__init__()
        self.add(nn.Dense(64, in_units=5, activation="relu"), nn.Dropout(0.5), nn.Dense(3, in_units=64))
""",
    "normalised": """
class Normalised(nn.HybridSequential):
    implements = "normalised"
    def __init__(self):
        super().__init__()
        self.add(nn.Dense(16, in_units=5), nn.BatchNorm(in_channels=16), nn.Activation("relu"))
        self.add(nn.Dense(3, in_units=16))
""",
    "speech": """
class Speech(nn.HybridSequential):
    implements = "speech"
    def __init__(self):
        super().__init__()
        self.add(nn.Dense(32, in_units=6, flatten=False, activation="tanh"))
        self.add(nn.Dense(5, in_units=32, flatten=False))
""",
}
FRAMEWORKS = ("PyTorch", "MXNet")
"""Those whose trainers the suite tests."""
FILES: Mapping[str, Mapping[str, str]] = {
    "PyTorch": {name: f"import torch\nfrom torch import nn\n{text}" for name, text in _PYTORCH.items()},
    "MXNet": {name: f"from mxnet.gluon import nn\n{text}" for name, text in _MXNET.items()},
}
"""The files by framework and architecture; the layers are the same. Only PyTorch has ``auxiliary``, whose
second output no loss depends on."""
DIMENSIONS: Mapping[str, tuple[int, ...]] = {
    "linear": (5,),
    "plain": (1, 8, 8),
    "dropping": (5,),
    "normalised": (5,),
    "speech": (12, 6),
    "auxiliary": (5,),
}
OUTPUTS: Mapping[str, tuple[int, ...]] = {
    "linear": (3,),
    "plain": (10,),
    "dropping": (3,),
    "normalised": (3,),
    "speech": (12, 5),
    "auxiliary": (3,),
}


def write_architectures(folder: Path) -> Path:
    """Writes the files of all frameworks into a directory, as a user does; returns it."""
    for framework, files in FILES.items():
        (folder / framework.lower()).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / framework.lower() / f"{name}.py").write_text(text)
    return folder


def manifest_of(
    framework: str, name: str, *, dimensions: tuple[int, ...] | None = None, weights: Path | None = None
) -> ModelManifest:
    """The manifest of an architecture; its dimensions are those of the suite's own unless they are given."""
    files = {"architecture": name}
    if weights is not None:
        files["weights_path"] = str(weights)
    return parse_manifest(
        {
            "name": "Trained",
            "framework": {"name": framework},
            "inputs": [
                {"type": "tensor", "parameters": {"dimensions": list(dimensions or DIMENSIONS[name])}}
            ],
            "output": {"type": "raw"},
            "model": files,
            "training": {"loss": "ctc" if name == "speech" else "cross_entropy"},
        },
        (weights or Path("trained")).with_suffix(".yml"),
    )


def batch_of(name: str, samples: int, seed: int = 3) -> TrainingBatch:
    """A batch whose targets have nothing to do with its inputs; a model can learn it by heart."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(0, 1, (samples, *DIMENSIONS[name])).astype(np.float32)
    if name == "speech":
        return TrainingBatch(inputs, rng.integers(1, 5, (samples, 4)))
    return TrainingBatch(inputs, rng.integers(0, OUTPUTS[name][-1], samples))


def options_of(*, optimizer: OptimizerOptions | None = None, **more: Any) -> TrainerOptions:
    """Options with random weights; ``predictor``'s are given by their names."""
    names = {"threads", "weights", "seed", "precision", "cudnn_benchmark"} & set(more)
    predictor = {"weights": Weights.RANDOM, "seed": 5, "threads": 1} | {
        each: more.pop(each) for each in names
    }
    return TrainerOptions(PredictorOptions(**predictor), optimizer=optimizer or OptimizerOptions(), **more)


@contextmanager
def trainer_of(
    framework: str, name: str, directory: Path, *, manifest: ModelManifest | None = None, **options: Any
) -> Iterator[Trainer]:
    """A loaded trainer of an architecture in a directory, closed at the end."""
    trainer, _ = open_trainer(
        manifest or manifest_of(framework, name),
        options_of(**options),
        Registry(),
        architectures=Architectures([directory]),
    )
    with closing(trainer):
        yield trainer


def parameters_of(trainer: Trainer) -> dict[str, NDArray[np.float32]]:
    """Copies of the trained parameters, by name in the order of the layers."""
    training: Any = trainer._training  # type: ignore[attr-defined]
    if trainer.manifest.framework.name == "MXNet":
        arrays = [copies[0].asnumpy() for copies in training.network.weights()]
        return dict(zip(training.network.trained, arrays, strict=True))
    return {name: each.detach().cpu().numpy().copy() for name, each in training.parameters.items()}


def set_parameters(trainer: Trainer, parameters: Mapping[str, NDArray[np.float32]]) -> None:
    """Sets trained parameters, on all devices; the optimizer's state is kept."""
    training: Any = trainer._training  # type: ignore[attr-defined]
    if trainer.manifest.framework.name == "MXNet":
        known = dict(zip(training.network.trained, training.network.weights(), strict=True))
        for name, values in parameters.items():
            for copy in known[name]:
                copy[:] = values
        return
    from torch import tensor

    for name, values in parameters.items():
        training.parameters[name].data.copy_(tensor(values))


def cross_entropy(scores: NDArray[Any], targets: NDArray[np.int64]) -> float:
    """The mean cross entropy of softmax, in float64."""
    scores = scores.astype(np.float64)
    logs = scores - scores.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return float(-logs[np.arange(len(targets)), targets].mean())
