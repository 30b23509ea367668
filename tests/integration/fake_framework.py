"""A framework whose models do what a test requires, and the manifests of those models."""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from inferometer.agent.hardware.environment import FrameworkDetails, Precision, PredictorOptions
from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import DeviceError, DeviceLostError, PredictionError
from inferometer.manifests.schema import ModelManifest

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
    "Scripted": ("scripted", "raw"),
    "Locked": ("locked", "raw"),
    "Later": ("later", "raw"),
    "Timed": ("timed", "raw"),
    "Picky": ("picky", "raw"),
    "Short": ("short", "raw"),
}
SCRIPT = "script.json"
SERVED = "served.json"
_LOCK = threading.Lock()
"""What all locked models share."""


class FakePredictor(Predictor):
    """Does what the architecture in the manifest says, whatever the precision."""

    precisions = frozenset(Precision)

    @property
    def threads(self) -> int | None:
        return self.options.threads

    def details(self) -> FrameworkDetails:
        return FrameworkDetails({"BLAS": "NumPy's"}, "no features", {"inter-op threads": "1"})

    def load(self) -> None:
        self._served_ns: list[int] = []
        if self.options.device.is_gpu:
            raise DeviceError("Fake has no GPU")
        script = self.manifest.source.parent / SCRIPT
        self._script = json.loads(script.read_text()) if script.exists() else {}

    def predict(self, inputs: Tensors) -> Tensors:
        match self.manifest.model.architecture:
            case "mean":
                return {"scores": mean_scores(inputs["data"])}
            case "waiting":
                self._wait_for_go()
            case "picky":
                self._wait_for_go()
                if (inputs["data"] < 0).any():
                    raise PredictionError("the fake framework takes no negative numbers")
            case "sticking":
                if (inputs["data"] < 0).any():
                    self._wait_for_go()
            case "short":
                return {name: tensor[:-1] for name, tensor in inputs.items()}
            case "failing":
                raise PredictionError("the fake framework failed")
            case "crashing":
                raise ZeroDivisionError("a secret detail")
            case "scripted":
                self._follow_script()
            case "locked":
                with _LOCK:
                    time.sleep(self._script["service_s"])
            case "later":  # at the lock, than a locked one that is due at the same time
                time.sleep(0.2 * self._script["service_s"])
                with _LOCK:
                    time.sleep(0.8 * self._script["service_s"])
            case "timed":
                self._take_known_time()
        return inputs

    def _wait_for_go(self) -> None:
        """Waits until the test says so, and leaves files that say that it does: one in all, one a process."""
        folder = self.manifest.source.parent
        (folder / "begun").touch()
        (folder / f"begun.{os.getpid()}").touch()
        wait_for((folder / "go").exists)

    def _follow_script(self) -> None:
        """Takes ``service_s``, in prediction n instead ``stalls[n]``; fails in ``fails``, hangs in ``hangs``.

        Prediction ``mark`` leaves a file of that name.
        """
        began_ns, number = time.perf_counter_ns(), len(self._served_ns)
        self._served_ns.append(0)
        if number == self._script.get("mark"):
            (self.manifest.source.parent / "mark").touch()
        if number in self._script.get("hangs", ()):
            wait_for((self.manifest.source.parent / "go").exists)
        time.sleep(self._script.get("stalls", {}).get(str(number), self._script.get("service_s", 0)))
        self._served_ns[number] = time.perf_counter_ns() - began_ns
        if number in self._script.get("fails", ()):
            raise PredictionError("the script says that this fails")

    def _take_known_time(self) -> None:
        """Computes until a time that the script's kind of ``known_times`` gives has passed since the call.

        ``scale`` shortens the times, and ``spread`` draws by how much this process is slower or faster.
        """
        began_ns = time.perf_counter_ns()
        if not self._served_ns:
            self._times_ns = self._drawn_ns()
        end_ns = began_ns + next(self._times_ns)
        while time.perf_counter_ns() < end_ns:
            pass
        self._served_ns.append(time.perf_counter_ns() - began_ns)

    def _drawn_ns(self) -> Iterator[int]:
        from tests.known_times import KNOWN

        random = np.random.RandomState(os.getpid())
        factor = self._script["scale"] * (1 + self._script.get("spread", 0) * random.standard_normal())
        times_ms = KNOWN[self._script["kind"]].draw(random, self._script["count"])
        return iter(np.rint(factor * 1e6 * times_ms).astype(np.int64).tolist())

    def close(self) -> None:
        if self._served_ns:
            (self.manifest.source.parent / SERVED).write_text(json.dumps(self._served_ns))
        (self.manifest.source.parent / "closed").touch()


class ApartPredictor(FakePredictor):
    """Runs further instances of a model in processes of their own."""

    instances_by = "processes"


class GpuPredictor(FakePredictor):
    """Runs a model on one of two GPUs, and returns the index of its own for each input."""

    @classmethod
    def check(cls, manifest: ModelManifest, options: PredictorOptions, *, in_memory: bool = False) -> None:
        if options.device.is_gpu and options.device.index > 1:
            raise DeviceError(f"Fake cannot use {options.device}: the number of GPUs is 2")

    def load(self) -> None:
        self._served_ns = []

    def predict(self, inputs: Tensors) -> Tensors:
        size = len(inputs["data"])
        if self.manifest.model.architecture == "failing":
            raise DeviceLostError("the GPU has fallen off the bus")
        time.sleep(0.02)  # so that one instance cannot take all requests
        return {"gpu": np.full((size, 1), self.options.device.index, np.float32)}


class ApartGpuPredictor(GpuPredictor):
    """Runs further instances of a model in processes of their own, each on its GPU."""

    instances_by = "processes"


def mean_scores(batch: np.ndarray) -> np.ndarray:
    """Three classes whose scores come from the input's mean, so that each input has its own."""
    mean = batch.reshape(len(batch), -1).mean(axis=1, dtype=np.float32)
    return np.stack([mean, mean + 1, -mean], axis=1)


# Any distribution that is installed will do as the framework's.
FAKE = FrameworkEntry("Fake", "fake_framework:FakePredictor", ("numpy",), "pip install fake")


def fake_registry() -> Registry:
    return Registry((FAKE,))


def gpu_registry(kind: str = "GpuPredictor") -> Registry:
    return Registry((replace(FAKE, predictor=f"fake_framework:{kind}"),))


def apart_registry() -> Registry:
    return Registry((replace(FAKE, predictor="fake_framework:ApartPredictor"),))


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
