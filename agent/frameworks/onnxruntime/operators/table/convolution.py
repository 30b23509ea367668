"""Convolutions in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.convolution import groups_of, window_of


def _slid(kind: str, case: Case, dtype: np.dtype[Any]) -> Graph:
    window = window_of(case)
    more: dict[str, Any] = {}
    if "output_pad" in case.parameters:
        added = case["output_pad"]
        more["output_padding"] = added if isinstance(added, tuple) else (added,) * len(window.kernel)
    return Graph(
        [
            node(
                kind,
                "data",
                "weight",
                *(["bias"] if case["bias"] else []),
                kernel_shape=window.kernel,
                strides=window.stride,
                pads=window.pads,
                dilations=window.dilate,
                group=groups_of(case),
                **more,
            )
        ]
    )


_CONVOLUTION = Form("Conv", partial(_slid, "Conv"))
_TRANSPOSED = Form("ConvTranspose", partial(_slid, "ConvTranspose"))

GRAPHS: Mapping[str, Form] = {
    "conv1d": _CONVOLUTION,
    "conv2d": _CONVOLUTION,
    "conv3d": _CONVOLUTION,
    "depthwise_conv2d": _CONVOLUTION,
    "conv1d_transpose": _TRANSPOSED,
    "conv2d_transpose": _TRANSPOSED,
    "conv3d_transpose": _TRANSPOSED,
}
MISSING: Mapping[str, str] = {}
