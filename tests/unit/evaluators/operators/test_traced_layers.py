"""What the layers of a trace are in the table: sizes and parameters as each framework tells them."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.agent.operators.operator import Case, operators
from inferometer.evaluators.kinds.operators.traced import (
    NoRowError,
    read_mxnet,
    read_onnxruntime,
    read_pytorch,
)
from inferometer.evaluators.traces.layers import Layer

STRIDED = {"stride": (2, 2), "pad": (1, 1), "dilate": (1, 1), "kernel": (3, 3)}


def layer(type_: str, inputs: str, outputs: str = "", arguments: tuple[str, ...] = ()) -> Layer:
    shapes = (tuple(inputs.split()), tuple(outputs.split()))
    return Layer(0, "layer", type_, *shapes, "", arguments, np.array([1000], np.int64), None, None)


@pytest.mark.parametrize(
    ("read", "given"),
    [
        (
            read_pytorch,
            layer(
                "aten::conv2d", "2x8x32x32 6x4x3x3", arguments=("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "2")
            ),
        ),
        (
            read_mxnet,
            layer(
                "Convolution",
                "2x8x32x32 6x4x3x3",
                arguments=(
                    "Convolution(dilate=(1, 1), kernel=(3, 3), no_bias=True, num_filter=6, num_group=2, "
                    "pad=(1, 1), stride=(2, 2))",
                ),
            ),
        ),
        (read_onnxruntime, layer("Conv", "2x8x32x32 6x4x3x3", "2x6x16x16")),
    ],
)
def test_a_convolution_has_its_sizes_its_window_and_its_groups(read, given):
    case = read(given)

    assert case.operator == "conv2d"
    assert case.shapes == {"data": (2, 8, 32, 32)}
    assert case.parameters == {"channels": 6, "groups": 2, "bias": False, **STRIDED}
    assert own_case(case).shapes == {"data": (2, 8, 32, 32)}


def own_case(case) -> Case:
    """The case of the table, which is checked against its operator."""
    return operators()[case.operator].own_case(case.shapes, case.parameters)


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        (("224x224", "7x7", "112x112"), ((7, 7), (2, 2), (3, 3))),
        (("56x56", "1x1", "28x28"), ((1, 1), (2, 2), (0, 0))),
        (("56x56", "3x3", "56x56"), ((3, 3), (1, 1), (1, 1))),
        (("56x30", "3x1", "54x30"), ((3, 1), (1, 1), (0, 0))),
    ],
)
def test_onnx_runtime_tells_a_window_by_the_shapes_alone(sizes, window):
    size, kernel, output = sizes

    case = read_onnxruntime(layer("Conv", f"1x3x{size} 8x3x{kernel} 8", f"1x8x{output}"))

    assert tuple(case.parameters[name] for name in ("kernel", "stride", "pad")) == window
    assert case.parameters["bias"] is True


def test_a_fused_convolution_of_mxnet_has_the_bias_that_its_normalization_becomes():
    parts = (
        "Convolution(kernel=(1, 1), layout=NCHW, no_bias=True, num_filter=16, num_group=1)",
        "BatchNorm(axis=1, eps=1e-05, fix_gamma=False)",
        "Activation(act_type=relu)",
    )

    case = read_mxnet(layer("_sg_mkldnn_conv", "2x8x4x4 16x8x1x1 16 16 16 16", arguments=parts))

    assert (case.operator, case.parameters["bias"]) == ("conv2d", True)
    assert case.parameters["stride"] == (1, 1)
    assert case.parameters["pad"] == (0, 0)


def test_a_sum_is_one_that_broadcasts_where_the_shapes_differ():
    same = read_pytorch(layer("aten::add", "2x3 2x3", arguments=("", "", "1")))
    wider = read_pytorch(layer("aten::add", "2x3 3", arguments=("", "", "1")))

    assert (same.operator, wider.operator) == ("add", "broadcast_add")
    assert wider.shapes == {"lhs": (2, 3), "rhs": (3,)}


@pytest.mark.parametrize(
    ("read", "given", "reason"),
    [
        (read_pytorch, layer("aten::conv2d", "2x8x32x32 6x4x3x3"), "trace the model again"),
        (read_pytorch, layer("aten::detach", "2x8"), "computes nothing"),
        (read_pytorch, layer("aten::median", "2x8"), "no such operator"),
        (read_pytorch, layer("aten::add", "2x8", arguments=("", "2", "1")), "operand is a number"),
        (read_pytorch, layer("aten::dropout", "2x8", arguments=("", "0.5", "False")), "nothing in inference"),
        (read_pytorch, layer("aten::relu", ""), "does not show its shapes"),
        (read_mxnet, layer("Convolution", "2x8x32x32"), "trace the model again"),
        (read_mxnet, layer("Crop", "2x8", arguments=("Crop(offset=(1, 1))",)), "no such operator"),
        (read_onnxruntime, layer("MaxPool", "2x8x4x4", "2x8x2x2"), "does not show its window"),
        (read_onnxruntime, layer("Conv", "1x3x8x8 8x3x3x3", "1x8x9x9"), "no stride and padding fit"),
    ],
)
def test_what_is_no_operator_of_the_table_has_a_reason(read, given, reason):
    with pytest.raises(NoRowError, match=reason):
        read(given)
