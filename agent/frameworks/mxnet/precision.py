"""Lower precision in MXNet, and cuDNN's autotuning, which a process settles once."""

from __future__ import annotations

import os
import threading
from typing import Any

from inferometer.agent.hardware.device import Device
from inferometer.agent.inference.predictor import Precision
from inferometer.manifests.errors import ConfigurationError

AUTOTUNE = "MXNET_CUDNN_AUTOTUNE_DEFAULT"
"""0 leaves the choice of algorithms to cuDNN's heuristics, 1 times them within a limit of the workspace."""


class CudnnAutotune:
    """``MXNET_CUDNN_AUTOTUNE_DEFAULT`` of the process.

    A convolution reads it when it first runs with a shape (``CuDNNConvolutionOp::Init``), and MXNet keeps the
    algorithm for all later models of the process. Therefore the first predictor that wants a value sets it
    for good. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fixed: bool | None = None

    def fix(self, *, wanted: bool) -> None:
        """Sets it before the model runs.

        Raises:
            ConfigurationError: An earlier call has set the other value.
        """
        with self._lock:
            if self._fixed is not None and self._fixed is not wanted:
                raise ConfigurationError(
                    f"cudnn_benchmark: found {str(wanted).lower()}; MXNet takes it once in a process, and "
                    f"here it is {str(self._fixed).lower()}; use another process"
                )
            self._fixed = wanted
            os.environ[AUTOTUNE] = "1" if wanted else "0"


def refuse(model: str, precision: Precision, device: Device, reason: str) -> ConfigurationError:
    """Returns the error for a model that MXNet cannot run in a precision."""
    lower = Precision.FLOAT16 if device.is_gpu else Precision.BFLOAT16
    others = "float32" if lower is precision else f"{lower.value} or float32"
    return ConfigurationError(
        f"{model}: MXNet cannot run it in {precision.value} on {device} ({reason}); use {others}"
    )


def converted(symbol: Any, weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns a symbol whose operators compute in bfloat16 where MXNet has that, with its parameters.

    MXNet's automatic mixed precision chooses the operators: on a CPU, convolutions and dense layers compute
    in bfloat16 through oneDNN, and others stay in float32. The input and the outputs stay in float32.
    """
    # imported here because few models are converted, and it imports more than is needed otherwise
    from mxnet.contrib import amp

    arguments = {name: weights[name] for name in symbol.list_arguments() if name in weights}
    states = {name: weights[name] for name in symbol.list_auxiliary_states()}
    # with the parameters cast once, instead of in each prediction
    symbol, arguments, states = amp.convert_model(
        symbol, arguments, states, target_dtype=Precision.BFLOAT16.value, cast_optional_params=True
    )
    return symbol, {**arguments, **states}
