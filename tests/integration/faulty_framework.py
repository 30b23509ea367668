"""A framework whose models fail in every way that a test requires, in addition to ``fake_framework``."""

import itertools
from pathlib import Path

import numpy as np
from fake_framework import FAKE, SIDE, wait_for

from inferometer.agent.inference.predictor import Predictor, prediction_failure
from inferometer.agent.inference.registry import FrameworkEntry, Registry
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import PredictionError

LOST = "CUDA error: an illegal memory access was encountered"
SECRET_DETAIL = "a detail of /srv/agent/secret_place.py"
FAULTS = {
    "OutOfMemory": "memory",
    "OutOfGpuMemory": "gpu_memory",
    "LostDevice": "lost",
    "NotANumber": "nan",
    "TooFewRows": "rows",
    "NoArray": "list",
    "Nothing": "nothing",
    "Broken": "broken",
    "Flaky": "flaky",
    "Hanging": "hanging",
}
_MANIFEST = """
name: {name}
framework: {{name: Faulty, version: "*"}}
inputs: [{{type: image, parameters: {{dimensions: [1, {side}, {side}], color_mode: GRAY}}}}]
output: {{type: raw}}
model: {{architecture: {fault}}}
"""


class FaultyPredictor(Predictor):
    """Goes wrong as the architecture in the manifest says; a flaky one in turn, and every second time not."""

    threads = None

    def load(self) -> None:
        faults = ["memory", "gpu_memory", "nan", "rows", "list", "nothing", "broken", "failing"]
        self._faults = itertools.cycle(fault for each in faults for fault in (each, ""))

    def predict(self, inputs: Tensors) -> Tensors:
        fault = self.manifest.model.architecture
        return self._go_wrong(next(self._faults) if fault == "flaky" else fault, inputs)

    def _go_wrong(self, fault: str, inputs: Tensors) -> Tensors:
        batch = inputs["data"]
        match fault:
            case "memory":
                raise MemoryError
            case "gpu_memory":
                error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                raise prediction_failure(f"{self}: {error}", error) from error
            case "lost":
                raise prediction_failure(f"{self}: {LOST}", RuntimeError(LOST))
            case "nan":
                return {"data": np.full_like(batch, np.nan)}
            case "rows":
                return {"data": batch[:0]}
            case "list":
                return {"data": batch.tolist()}
            case "nothing":
                return None
            case "broken":
                raise ZeroDivisionError(SECRET_DETAIL)
            case "failing":
                raise PredictionError("the faulty framework failed")
            case "hanging":
                folder = self.manifest.source.parent
                (folder / "begun").touch()
                wait_for((folder / "go").exists)
        return inputs

    def close(self) -> None:
        pass


def faulty_registry() -> Registry:
    faulty = FrameworkEntry("Faulty", "faulty_framework:FaultyPredictor", ("numpy",), "pip install faulty")
    return Registry((FAKE, faulty))


def write_faulty_manifests(folder: Path) -> Path:
    for name, fault in FAULTS.items():
        text = _MANIFEST.format(name=name, fault=fault, side=SIDE)
        (folder / f"{name}.yml").write_text(text, encoding="utf-8")
    return folder
