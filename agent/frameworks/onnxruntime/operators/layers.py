"""Network layers in ONNX: activations, dense layers, convolutions, poolings and others.

It also has resizing, image sampling, normalizations, recurrent layers, whose output loses its axis of
directions, and fused operators: parts that ONNX Runtime's optimiser fuses, or its own fused operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.operators.runner import (
    CONTRIBUTED,
    Form,
    Graph,
    node,
    single,
    with_numbers,
)
from inferometer.agent.operators.operator import EPSILON, Case
from inferometer.agent.operators.table.convolution import Window, groups_of, output_pad_of, pair_of, window_of


def _dropout(case: Case, dtype: np.dtype[Any]) -> Graph:
    constants = {"ratio": np.array(case["p"], dtype), "training": np.array(True)}
    return Graph([node("Dropout", "data", "ratio", "training")], constants=constants)


def _col2im(case: Case, _: np.dtype[Any]) -> Graph:
    window = Window.of(case.parameters, 2)
    constants = {"image": case["output_size"], "block": window.kernel}
    fold = node("Col2Im", "data", "image", "block", strides=window.stride, pads=window.pads)
    return Graph([fold], constants=constants)


def _convolved(kind: str, case: Case, dtype: np.dtype[Any]) -> Graph:
    window = window_of(case)
    more: dict[str, Any] = {"output_padding": output_pad_of(case)} if "output_pad" in case.parameters else {}
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


def _pooled(kind: str, more: Mapping[str, Any], case: Case, output: str = "output") -> Any:
    window = window_of(case)
    return node(
        kind,
        "data",
        output=output,
        kernel_shape=window.kernel,
        strides=window.stride,
        pads=window.pads,
        **more,
    )


def _pooling(kind: str, **more: Any) -> Form:
    return Form(kind, lambda case, _: Graph([_pooled(kind, more, case)]))


def _summed(case: Case, dtype: np.dtype[Any]) -> Graph:
    size = np.array(window_of(case).size, dtype)
    return Graph(
        [_pooled("AveragePool", {"count_include_pad": 1}, case, "mean"), node("Mul", "mean", "size")],
        constants={"size": size},
    )


def _nearest(case: Case, dtype: np.dtype[Any]) -> Graph:
    scales = np.array([1, 1, case["scale"], case["scale"]], np.float32)
    nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return Graph(
        [node("Resize", "data", "", "scales", mode="nearest", **nearest)], constants={"scales": scales}
    )


def _bilinear(case: Case, dtype: np.dtype[Any]) -> Graph:
    sizes = [*case.shapes["data"][:2], *pair_of(case, "output")]
    return Graph([node("Resize", "data", "", "", "sizes", mode="linear")], constants={"sizes": sizes})


def _affine_grid(data: str, batch: int, size: Sequence[int]) -> Graph:
    """Returns the graph of a grid, (batch, rows, columns, 2), from rows of six numbers."""
    nodes = [
        node("Reshape", data, "matrices", output="theta"),
        node("AffineGrid", "theta", "size", output="grid", align_corners=1),
    ]
    return Graph(nodes, constants={"matrices": [batch, 2, 3], "size": [batch, 1, *size]})


def _grid(case: Case, dtype: np.dtype[Any]) -> Graph:
    grid = _affine_grid("data", case.shapes["data"][0], case["target_shape"])
    return replace(grid, nodes=[*grid.nodes, node("Transpose", "grid", perm=[0, 3, 1, 2])])


def _transformed(case: Case, dtype: np.dtype[Any]) -> Graph:
    batch, _, *size = case.shapes["data"]
    grid = _affine_grid("loc", batch, size)
    return replace(grid, nodes=[*grid.nodes, node("GridSample", "data", "grid", align_corners=1)])


def _roi_pooled(case: Case, dtype: np.dtype[Any]) -> Graph:
    shape, scale = pair_of(case, "output"), case["spatial_scale"]
    return Graph([node("MaxRoiPool", "data", "rois", pooled_shape=shape, spatial_scale=scale)])


def _roi_aligned(case: Case, dtype: np.dtype[Any]) -> Graph:
    height, width = pair_of(case, "output")
    return Graph(
        [
            node(
                "RoiAlign",
                "data",
                "boxes",
                "images",
                output_height=height,
                output_width=width,
                spatial_scale=case["spatial_scale"],
                sampling_ratio=case["samples"],
                coordinate_transformation_mode="output_half_pixel",
            )
        ]
    )


def _split_regions(arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    rois = arrays["rois"]
    return {
        "data": arrays["data"],
        "boxes": np.ascontiguousarray(rois[:, 1:]),
        "images": rois[:, 0].astype(np.int64),
    }


def _normalized(kind: str, inputs: tuple[str, ...], case: Case, dtype: np.dtype[Any]) -> Graph:
    more: dict[str, Any] = {"num_groups": case["groups"]} if "groups" in case.parameters else {}
    if kind in ("LayerNormalization", "SimplifiedLayerNormalization"):
        more["axis"] = -1
    return Graph([node(kind, *inputs, epsilon=case["epsilon"], **more)])


def _normalized_by_group(case: Case, dtype: np.dtype[Any]) -> Graph:
    """Returns the operator of opset 20; that of opset 21 has a scale and a shift for each channel."""
    graph = _normalized("GroupNormalization", ("data", "gamma", "beta"), case, dtype)
    return replace(graph, opset=20)


def _batch_norm_trained(case: Case, dtype: np.dtype[Any]) -> Graph:
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


def _normalization(kind: str, *inputs: str) -> Form:
    return Form(kind, partial(_normalized, kind, ("data", *inputs)))


def _recurrent(
    kind: str, states: Sequence[str], more: Mapping[str, Any], case: Case, dtype: np.dtype[Any]
) -> Graph:
    inputs = ("data", "weight_ih", "weight_hh", "bias", "", *states)  # without the lengths of sequences
    layer = node(kind, *inputs, output="directions", hidden_size=case["hidden"], **more)
    return Graph([layer, node("Squeeze", "directions", "axes")], constants={"axes": [1]})


def _arranged_gates(order: Sequence[int], arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Reorders the gates for ONNX, joins the biases, and adds the axis of directions."""

    def gates(name: str) -> NDArray[Any]:
        blocks = np.split(arrays[name], len(order))
        rows: NDArray[Any] = np.concatenate([blocks[gate] for gate in order])
        return rows[np.newaxis]

    return {
        **arrays,
        "weight_ih": gates("weight_ih"),
        "weight_hh": gates("weight_hh"),
        "bias": np.concatenate([gates("bias_ih"), gates("bias_hh")], axis=1),
    }


def _recurrent_form(kind: str, order: Sequence[int], *states: str, **more: Any) -> Form:
    return Form(f"{kind} Squeeze", partial(_recurrent, kind, states, more), partial(_arranged_gates, order))


_STATISTICS = ("gamma", "beta", "mean", "var")


def _convolution(case: Case, output: str) -> onnx.NodeProto:
    pads = [*case["pad"], *case["pad"]]
    attributes = {"kernel_shape": case["kernel"], "strides": case["stride"], "pads": pads}
    return node("Conv", "data", "weight", "bias", output=output, **attributes)


def _normalized_convolution(case: Case, _: np.dtype[Any], *, relu: bool = False) -> Graph:
    nodes = [
        _convolution(case, "made"),
        node(
            "BatchNormalization",
            "made",
            *_STATISTICS,
            output="normalized" if relu else "output",
            epsilon=EPSILON,
        ),
    ]
    # the optimiser folds the normalisation into a weight and bias that do not change, and only into such; the
    # convolution itself depends on the data and stays
    fixed = ("weight", "bias", *_STATISTICS)
    return Graph([*nodes, *([node("Relu", "normalized")] if relu else [])], fixed=fixed)


def _chain(*nodes: onnx.NodeProto) -> Any:
    return lambda *_: Graph(nodes)


def _gemm(output: str) -> onnx.NodeProto:
    return node("Gemm", "data", "weight", "bias", output=output, transB=1)


def _attention(case: Case, dtype: np.dtype[Any]) -> Graph:
    nodes: Sequence[onnx.NodeProto] = [
        node("Transpose", "key", output="turned", perm=[0, 1, 3, 2]),
        node("MatMul", "query", "turned", output="products"),
        node("Mul", "products", "scale", output="scores"),
        node("Softmax", "scores", output="weights", axis=-1),
        node("MatMul", "weights", "value"),
    ]
    return Graph(nodes, constants={"scale": np.array(1 / sqrt(case.shapes["query"][-1]), dtype)})


_ATTENTION = Graph([node("Attention", "query", "key", "value")], opset=23)

_FUSED: Mapping[str, Form] = {
    "conv2d_relu": Form(
        "Conv Relu", lambda case, _: Graph([_convolution(case, "made"), node("Relu", "made")])
    ),
    "conv2d_batch_norm": Form("Conv BatchNormalization", _normalized_convolution),
    "conv2d_batch_norm_relu": Form(
        "Conv BatchNormalization Relu", partial(_normalized_convolution, relu=True)
    ),
    "dense_relu": Form("Gemm Relu", _chain(_gemm("made"), node("Relu", "made"))),
    # The optimiser leaves Gemm and Gelu, and makes a Gemm of MatMul and Add before it looks for a BiasGelu.
    "dense_gelu": Form(
        "Gemm Gelu",
        _chain(_gemm("made"), node("Gelu", "made")),
        joined=Form(
            "FusedMatMul BiasGelu",
            _chain(
                node("FusedMatMul", "data", "weight", output="product", transB=1, domain=CONTRIBUTED),
                node("BiasGelu", "product", "bias", domain=CONTRIBUTED),
            ),
        ),
    ),
    "add_relu": Form("Add Relu", _chain(node("Add", "lhs", "rhs", output="sum"), node("Relu", "sum"))),
    "layer_norm_residual": Form(
        "Add LayerNormalization",
        _chain(
            node("Add", "data", "residual", output="sum"),
            node("LayerNormalization", "sum", "gamma", "beta", axis=-1, epsilon=EPSILON),
        ),
    ),
    "scaled_dot_product_attention": Form(
        "Transpose MatMul Mul Softmax MatMul", _attention, joined=Form("Attention", lambda *_: _ATTENTION)
    ),
}

FORMS: Mapping[str, Form] = {
    "relu": single("Relu", "data"),
    "leaky_relu": single("LeakyRelu", "data", of={"alpha": "slope"}),
    "prelu": single("PRelu", "data", "alpha"),
    "elu": single("Elu", "data", of={"alpha": "alpha"}),
    "selu": single("Selu", "data"),
    "celu": single("Celu", "data", of={"alpha": "alpha"}),
    "sigmoid": single("Sigmoid", "data"),
    # ONNX has no logarithm of the sigmoid; the logarithm of Sigmoid would lose the small values
    "log_sigmoid": Form(
        "Neg Softplus",
        lambda *_: Graph(
            [
                node("Neg", "data", output="negative"),
                node("Softplus", "negative", output="positive"),
                node("Neg", "positive"),
            ]
        ),
    ),
    "hard_sigmoid": single("HardSigmoid", "data", alpha=1 / 6, beta=0.5),
    "tanh": single("Tanh", "data"),
    "softsign": single("Softsign", "data"),
    "softplus": single("Softplus", "data"),
    # ONNX's own Swish has no kernel; this one of ONNX Runtime is data · sigmoid(alpha · data)
    "swish": single("QuickGelu", "data", alpha=1.0, domain=CONTRIBUTED),
    "hard_swish": single("HardSwish", "data"),
    "mish": single("Mish", "data"),
    "gelu": single("Gelu", "data"),
    "gelu_tanh": single("Gelu", "data", approximate="tanh"),
    "softmax": single("Softmax", "data", of={"axis": "axis"}),
    "log_softmax": single("LogSoftmax", "data", of={"axis": "axis"}),
    # ONNX has no single operator
    "softmin": Form(
        "Neg Softmax",
        lambda case, _: Graph(
            [node("Neg", "data", output="negative"), node("Softmax", "negative", axis=case["axis"])]
        ),
    ),
    "dense": single("Gemm", "data", "weight", "bias", transB=1),
    "flatten": single("Flatten", "data", axis=1),
    "lambda": with_numbers("Unsqueeze", lambda _: {"axes": [0]}),
    "dropout": Form("Dropout", _dropout),
    "embedding": single("Gather", "weight", "data", axis=0),
    "col2im": Form("Col2Im", _col2im),
    "grid_sample": single("GridSample", "data", "grid", align_corners=1),
    "grid_generator": Form("Reshape AffineGrid Transpose", _grid),
    "spatial_transformer": Form("Reshape AffineGrid GridSample", _transformed),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "depthwise_conv2d"), Form("Conv", partial(_convolved, "Conv"))
    ),
    **dict.fromkeys(
        ("conv1d_transpose", "conv2d_transpose", "conv3d_transpose"),
        Form("ConvTranspose", partial(_convolved, "ConvTranspose")),
    ),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), _pooling("MaxPool")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pooling("AveragePool", count_include_pad=1)),
    # ONNX has no pooling by sums
    **dict.fromkeys(("sum_pool1d", "sum_pool2d"), Form("AveragePool Mul", _summed)),
    **dict.fromkeys(("lp_pool1d", "lp_pool2d"), _pooling("LpPool", p=2)),
    **dict.fromkeys(("global_max_pool1d", "global_max_pool2d"), single("GlobalMaxPool", "data")),
    **dict.fromkeys(("global_avg_pool1d", "global_avg_pool2d"), single("GlobalAveragePool", "data")),
    "global_sum_pool1d": with_numbers("ReduceSum", lambda _: {"axes": [2]}, keepdims=1),
    "global_sum_pool2d": with_numbers("ReduceSum", lambda _: {"axes": [2, 3]}, keepdims=1),
    "upsample_nearest": Form("Resize", _nearest),
    "resize_bilinear": Form("Resize", _bilinear),
    "roi_pool": Form("MaxRoiPool", _roi_pooled),
    "roi_align": Form("RoiAlign", _roi_aligned, _split_regions),
    "batch_norm": _normalization("BatchNormalization", "gamma", "beta", "mean", "variance"),
    "batch_norm_training": Form("BatchNormalization", _batch_norm_trained),
    "layer_norm": _normalization("LayerNormalization", "gamma", "beta"),
    "instance_norm": _normalization("InstanceNormalization", "gamma", "beta"),
    "group_norm": _normalization("GroupNormalization", "gamma", "beta"),
    "group_norm_per_group": Form("GroupNormalization", _normalized_by_group),
    "rms_norm": _normalization("SimplifiedLayerNormalization", "gamma"),
    "l2_normalization": single("LpNormalization", "data", axis=1, p=2),
    "lrn": single("LRN", "data", of={name: name for name in ("size", "alpha", "beta", "bias")}),
    "rnn_tanh": _recurrent_form("RNN", (0,), "state"),
    "rnn_relu": _recurrent_form("RNN", (0,), "state", activations=["Relu"]),
    # input, output, forget, cell
    "lstm": _recurrent_form("LSTM", (0, 3, 1, 2), "state", "cell"),
    # update, reset, new
    "gru": _recurrent_form("GRU", (1, 0, 2), "state", linear_before_reset=1),
    **_FUSED,
}


MISSING: Mapping[str, str] = {
    "softmax_activation": "ONNX has it only as softmax",
    "im2col": "ONNX has only the opposite, Col2Im",
    "adaptive_avg_pool2d": "ONNX pools by windows of one size, and these have several",
}
