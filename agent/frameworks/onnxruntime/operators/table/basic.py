"""Layers, and the sampling of images, in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case


def _unsqueeze(_: Case, __: np.dtype[Any]) -> Graph:
    return Graph([node("Unsqueeze", "data", "axes")], constants={"axes": np.array([0])})


def _dropout(case: Case, dtype: np.dtype[Any]) -> Graph:
    constants = {"ratio": np.array(case["p"], dtype), "training": np.array(True)}
    return Graph([node("Dropout", "data", "ratio", "training")], constants=constants)


def _col2im(case: Case, _: np.dtype[Any]) -> Graph:
    pads = [*case["pad"], *case["pad"]]
    constants = {"image": np.array(case["output_size"]), "block": np.array(case["kernel"])}
    return Graph(
        [node("Col2Im", "data", "image", "block", strides=case["stride"], pads=pads)], constants=constants
    )


GRAPHS: Mapping[str, Form] = {
    "dense": single("Gemm", "data", "weight", "bias", transB=1),
    "flatten": single("Flatten", "data", axis=1),
    "lambda": Form("Unsqueeze", _unsqueeze),
    "dropout": Form("Dropout", _dropout),
    "embedding": single("Gather", "weight", "data", axis=0),
    "col2im": Form("Col2Im", _col2im),
    "grid_sample": single("GridSample", "data", "grid", align_corners=1),
}
MISSING: Mapping[str, str] = {
    "im2col": "ONNX has only the opposite, Col2Im",
}
