"""A framework whose models do what a test needs, and the manifests of those models."""

import threading
import time
from pathlib import Path

import numpy as np

from agent.predictor import Predictor, Tensors
from agent.registry import FrameworkEntry, Registry
from manifests.errors import DeviceError, PredictionError

DEADLINE_S = 30
SIDE = 4
MANIFEST = """
name: {name}
framework: {{name: Fake, version: "*"}}
inputs: [{{type: image, parameters: {{dimensions: [1, {side}, {side}], color_mode: GRAY}}}}]
output: {{type: {output}}}
model: {{architecture: {architecture}}}
"""
MODELS = {
    "Echo": ("echo", "raw"),
    "Mean": ("mean", "classification"),
    "Waiting": ("waiting", "raw"),
    "Failing": ("failing", "raw"),
    "Crashing": ("crashing", "raw"),
    "Large": ("echo", "raw"),
}


class FakePredictor(Predictor):
    """Does what the architecture in the manifest says."""

    threads = None

    def load(self) -> None:
        if self.options.device.is_gpu:
            raise DeviceError("Fake has no GPU")

    def predict(self, inputs: Tensors) -> Tensors:
        match self.manifest.model.architecture:
            case "mean":
                return {"scores": mean_scores(inputs["data"])}
            case "waiting":
                folder = self.manifest.source.parent
                (folder / "begun").touch()
                wait_for((folder / "go").exists)
            case "failing":
                raise PredictionError("the fake framework failed")
            case "crashing":
                raise ZeroDivisionError("a secret detail")
        return inputs

    def close(self) -> None:
        (self.manifest.source.parent / "closed").touch()


def mean_scores(batch: np.ndarray) -> np.ndarray:
    """Three classes whose scores come from the input's mean, so that each input has its own."""
    mean = batch.reshape(len(batch), -1).mean(axis=1, dtype=np.float32)
    return np.stack([mean, mean + 1, -mean], axis=1)


def fake_registry() -> Registry:
    # Any distribution that is installed will do as the framework's.
    return Registry((FrameworkEntry("Fake", "fake_framework:FakePredictor", ("numpy",), "pip install fake"),))


def write_manifests(folder: Path) -> Path:
    for name, (architecture, output) in MODELS.items():
        side = 512 if name == "Large" else SIDE
        text = MANIFEST.format(name=name, architecture=architecture, output=output, side=side)
        (folder / f"{name}.yml").write_text(text, encoding="utf-8")
    return folder


def wait_for(condition) -> None:
    """Waits until ``condition`` holds; fails after a deadline."""
    deadline_s = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{condition} does not hold after {DEADLINE_S} s")
        pause.wait(0.005)
