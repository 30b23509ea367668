"""A predictor that a process of its own can import."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from inferometer.agent.inference.predictor import Predictor
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.manifests.errors import ArtifactError, PredictionError

MIB = 1024 * 1024


class ApartPredictor(Predictor):
    """Returns the id of its process and its input; some numbers make it do something else.

    It holds as many MiB as its seed says; with the seed 13 or 14 it cannot be loaded.
    """

    instances_by = "processes"
    ballast = b""

    @property
    def threads(self) -> int | None:
        return self.options.threads

    def load(self) -> None:
        if self.options.seed == 13:
            raise ArtifactError("the file is gone")
        if self.options.seed == 14:
            os._exit(3)
        self.fixed_outputs = {"loss": 7}
        self.ballast = b"x" * (self.options.seed * MIB)

    def predict(self, inputs: Tensors) -> Tensors:
        data = inputs["data"]
        match int(data.flat[0]):
            case 2:
                data = np.repeat(data, 100_000, axis=1)
            case 3:
                raise PredictionError("the framework failed")
            case 4:
                raise ZeroDivisionError("a fault")
            case 5:
                os.kill(os.getpid(), signal.SIGKILL)
            case 6:
                return {"text": np.array([["two", "words"]], object), "empty": np.empty((1, 0), np.int8)}
            case 7:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
            case 10:
                return {"beyond": np.array([each.ctypes.data % 64 for each in inputs.values()])}
            case 11:
                time.sleep(3600)
        return {"pid": np.array([os.getpid()]), "data": data}

    def close(self) -> None:
        pass
