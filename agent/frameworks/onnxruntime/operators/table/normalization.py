"""Normalizations in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case


def _normalized(kind: str, inputs: tuple[str, ...], case: Case, dtype: np.dtype[Any]) -> Graph:
    more: dict[str, Any] = {"num_groups": case["groups"]} if "groups" in case.parameters else {}
    if kind in ("LayerNormalization", "SimplifiedLayerNormalization"):
        more["axis"] = -1
    return Graph([node(kind, *inputs, epsilon=case["epsilon"], **more)])


def _trained(case: Case, dtype: np.dtype[Any]) -> Graph:
    return Graph(
        [
            onnx.helper.make_node(
                "BatchNormalization",
                ["data", "gamma", "beta", "mean", "variance"],
                ["output", "new_mean", "new_variance"],
                epsilon=case["epsilon"],
                momentum=1 - case["momentum"],  # ONNX's is the share of the old value
                training_mode=1,
            )
        ]
    )


def _local_response(case: Case, dtype: np.dtype[Any]) -> Graph:
    values = {name: case[name] for name in ("size", "alpha", "beta", "bias")}
    return Graph([node("LRN", "data", **values)])


def _form(kind: str, *inputs: str) -> Form:
    return Form(kind, partial(_normalized, kind, ("data", *inputs)))


GRAPHS: Mapping[str, Form] = {
    "batch_norm": _form("BatchNormalization", "gamma", "beta", "mean", "variance"),
    "batch_norm_training": Form("BatchNormalization", _trained),
    "layer_norm": _form("LayerNormalization", "gamma", "beta"),
    "instance_norm": _form("InstanceNormalization", "gamma", "beta"),
    "group_norm": _form("GroupNormalization", "gamma", "beta"),
    "rms_norm": _form("SimplifiedLayerNormalization", "gamma"),
    "l2_normalization": single("LpNormalization", "data", axis=1, p=2),
    "lrn": Form("LRN", _local_response),
}
MISSING: Mapping[str, str] = {}
