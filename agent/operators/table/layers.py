"""Activations, and layers other than convolution, pooling and normalization: dense, image sampling.

Each element of an element-wise activation counts as one floating-point operation, and each of a softmax as
five: the maximum, a subtraction, an exponential, the sum and a division. A dense layer requires the 2 · rows
· inputs · units operations of its product; each of the two products of its backward pass requires as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    one_flop_per_output,
    same_shape,
    sized,
)
from inferometer.agent.operators.table.convolution import Window

_Function: TypeAlias = Callable[[NDArray[Any], Parameters], NDArray[Any]]

_IMAGES = by_preset(
    sized(2, 3, 8, 8),
    sized(32, 3, 256, 256),
    sized(128, 3, 256, 256),
    sized(32, 3, 10000, 10),
    sized(10000, 1),
)
_KINKED = 1e-4
"""The tolerance for central differences that straddle the kinks at -3 and 3 in a few elements."""
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""The constants of Klambauer et al. (2017), "Self-Normalizing Neural Networks"."""


def _activation(
    name: str,
    summary: str,
    function: _Function,
    *,
    values: Values = Values.NORMAL,
    flops: int = 1,
    **attributes: Any,
) -> Operator:
    """Returns an element-wise activation; ``attributes`` are further ones of the operator."""
    return Operator(
        name=name,
        category=Category.ACTIVATION,
        summary=summary,
        tensors=same_shape("data", values=values),
        presets=_IMAGES,
        reference=lambda arrays, given: (function(arrays[0], given),),
        flops=one_flop_per_output
        if flops == 1
        else lambda _, outputs: flops * sum(prod(each) for each in outputs),
        **attributes,
    )


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    result: NDArray[Any] = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def log_softmax(x: NDArray[Any], axis: int) -> NDArray[Any]:
    """Returns the logarithm of the softmax along an axis."""
    x = x - x.max(axis, keepdims=True)
    result: NDArray[Any] = x - np.log(np.exp(x).sum(axis, keepdims=True))
    return result


def gelu(x: NDArray[Any]) -> NDArray[Any]:
    """Returns x Φ(x), where Φ is the normal distribution function (Hendrycks and Gimpel, 2016)."""
    scaled = (x / math.sqrt(2)).ravel().tolist()
    erf = np.fromiter(map(math.erf, scaled), np.float64, x.size).reshape(x.shape)
    result: NDArray[Any] = x * 0.5 * (1 + erf)
    return result


def _gelu_tanh(x: NDArray[Any], _: Parameters) -> NDArray[Any]:
    result: NDArray[Any] = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


def _exponential(x: NDArray[Any]) -> NDArray[Any]:
    """Returns exp(x) - 1 for negative x, and 0 elsewhere."""
    result: NDArray[Any] = np.expm1(np.minimum(x, 0))
    return result


_AXIS: Parameters = {"axis": -1}

_ACTIVATIONS = (
    _activation("relu", "max(data, 0)", lambda x, _: np.maximum(x, 0), values=Values.NONZERO),
    _activation(
        "leaky_relu",
        "data where positive, else slope · data",
        lambda x, given: np.where(x > 0, x, given["slope"] * x),
        values=Values.NONZERO,
        parameters={"slope": 0.01},
    ),
    Operator(
        name="prelu",
        category=Category.ACTIVATION,
        summary="data where positive, else alpha · data with one alpha that is learnt",
        tensors=lambda case: (
            TensorSpec("data", case.shapes["data"], Values.NONZERO),
            TensorSpec("alpha", (1,), Values.PROBABILITY),
        ),
        presets=_IMAGES,
        reference=lambda arrays, _: (np.where(arrays[0] > 0, arrays[0], arrays[1] * arrays[0]),),
        flops=one_flop_per_output,
    ),
    _activation(
        "elu",
        "data where positive, else alpha · (exp(data) - 1)",
        lambda x, given: np.maximum(x, 0) + given["alpha"] * _exponential(x),
        parameters={"alpha": 1.0},
    ),
    _activation(
        "selu",
        "1.0507 · elu(data) with alpha 1.6733",
        lambda x, _: SELU_SCALE * (np.maximum(x, 0) + SELU_ALPHA * _exponential(x)),
        values=Values.NONZERO,
    ),
    _activation(
        "celu",
        "max(data, 0) + min(alpha · (exp(data / alpha) - 1), 0)",
        lambda x, given: np.maximum(x, 0) + given["alpha"] * _exponential(x / given["alpha"]),
        parameters={"alpha": 1.0},
    ),
    _activation("sigmoid", "1 / (1 + exp(-data))", lambda x, _: sigmoid(x)),
    _activation("log_sigmoid", "-log(1 + exp(-data))", lambda x, _: -np.logaddexp(0, -x)),
    _activation(
        "hard_sigmoid", "data / 6 + 1/2, within 0…1", lambda x, _: np.clip(x / 6 + 0.5, 0, 1), rtol=_KINKED
    ),
    _activation("tanh", "the hyperbolic tangent", lambda x, _: np.tanh(x)),
    _activation("softsign", "data / (1 + |data|)", lambda x, _: x / (1 + np.abs(x)), values=Values.NONZERO),
    _activation("softplus", "log(1 + exp(data))", lambda x, _: np.logaddexp(0, x)),
    _activation("swish", "data · sigmoid(data), also called SiLU", lambda x, _: x * sigmoid(x)),
    _activation(
        "hard_swish", "data · hard_sigmoid(data)", lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1), rtol=_KINKED
    ),
    _activation("mish", "data · tanh(softplus(data))", lambda x, _: x * np.tanh(np.logaddexp(0, x))),
    _activation("gelu", "data · Φ(data), exact", lambda x, _: gelu(x)),
    _activation("gelu_tanh", "data · Φ(data), with Φ by a hyperbolic tangent", _gelu_tanh),
    _activation(
        "softmax",
        "exp(data) over its sum along an axis",
        lambda x, given: np.exp(log_softmax(x, given["axis"])),
        parameters=_AXIS,
        flops=5,
    ),
    replace(
        _activation(
            "softmax_activation",
            "the softmax of each row, by MXNet's older operator",
            lambda x, _: np.exp(log_softmax(x, -1)),
            flops=5,
        ),
        # with more axes, MXNet's gradient is not that of its output
        presets=by_preset(sized(16, 24), sized(1024, 1024), sized(4096, 4096), sized(10000, 10)),
    ),
    _activation(
        "log_softmax",
        "the logarithm of the softmax",
        lambda x, given: log_softmax(x, given["axis"]),
        parameters=_AXIS,
        flops=5,
        # a logarithm near 0 is a difference of numbers near 1
        atol=1e-5,
    ),
    _activation(
        "softmin",
        "the softmax of -data",
        lambda x, given: np.exp(log_softmax(-x, given["axis"])),
        parameters=_AXIS,
        flops=5,
    ),
)


# the large one is twice the normal one, which has 128 MiB
_VIEWED = by_preset(sized(4, 8, 8), sized(128, 512, 512), sized(256, 512, 512), sized(10000, 10, 1))
ROWS = by_preset(
    sized(16, 24, units=8),
    sized(512, 512),
    sized(2048, 1024, units=1024),
    sized(10000, 10),
    sized(1, 4096, units=1000),
)
"""The sizes of a dense layer."""


def dense_tensors(case: Case) -> tuple[TensorSpec, ...]:
    """Returns the inputs of a dense layer: data (rows, inputs), a weight (units, inputs) and a bias."""
    rows, inputs = case.shapes["data"]
    units = int(case["units"])
    return (
        TensorSpec("data", (rows, inputs)),
        TensorSpec("weight", (units, inputs), scale=1 / sqrt(inputs)),
        TensorSpec("bias", (units,)),
    )


def dense_flops(case: Case, outputs: Sequence[Shape]) -> int:
    """Returns the floating-point operations of a dense layer's product."""
    return 2 * prod(case.shapes["data"]) * int(case["units"])


def _embedding_tensors(case: Case) -> tuple[TensorSpec, ...]:
    count, size = int(case["input_dim"]), int(case["output_dim"])
    indices = TensorSpec("data", case.shapes["data"], Values.INDICES, limit=count, differentiable=False)
    return indices, TensorSpec("weight", (count, size))


def _check_dropout(outputs: Arrays, _: Arrays, case: Case) -> None:
    """Checks the output of dropout: the data is ±1, so each value is 0 or ±1 / (1 - p)."""
    values, p = np.abs(outputs[0].astype(np.float64)).ravel(), float(case["p"])
    share = float(np.mean(values == 0))
    # a binomial share is within six standard deviations in all but 2 of 10⁹ cases
    spread = 6 * sqrt(p * (1 - p) / values.size)
    if abs(share - p) > spread:
        raise ValueError(f"the share of zeros is {share:.4f}, and p is {p}")
    kept = values[values != 0]
    if not np.allclose(kept, 1 / (1 - p), rtol=1e-2):
        raise ValueError(f"the kept values are not multiplied by {1 / (1 - p):g}")


def _columns_of(data: NDArray[Any], given: Parameters) -> NDArray[Any]:
    window = Window.of(given, 2)
    parts = window.parts(window.padded(data), window.positions(data.shape[2:]))
    columns: NDArray[Any] = np.stack(list(parts), 2).reshape(len(data), data.shape[1] * window.size, -1)
    return columns


def _image_of(columns: NDArray[Any], given: Parameters) -> NDArray[Any]:
    window, (height, width) = Window.of(given, 2), given["output_size"]
    positions = window.positions((height, width))
    parts = columns.reshape(len(columns), -1, window.size, *positions)
    down, across = window.pad
    padded = np.zeros((*parts.shape[:2], height + 2 * down, width + 2 * across))
    for index, part in enumerate(window.parts(padded, positions)):
        part += parts[:, :, index]
    image: NDArray[Any] = padded[:, :, down : down + height, across : across + width]
    return image


def _im2col_tensors(case: Case) -> tuple[TensorSpec, ...]:
    Window.of(case.parameters, 2).positions(case.shapes["data"][2:])
    return (TensorSpec("data", case.shapes["data"]),)


def _col2im_tensors(case: Case) -> tuple[TensorSpec, ...]:
    batch, columns, count = case.shapes["data"]
    window = Window.of(case.parameters, 2)
    expected = prod(window.positions(case["output_size"]))
    if columns % window.size or count != expected:
        raise ValueError(f"an image of this size has {expected} columns, each a multiple of the kernel")
    return (TensorSpec("data", (batch, columns, count)),)


def _sampler_tensors(case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    return (
        TensorSpec("data", data),
        # without a gradient: central differences straddle the borders of pixels, where it has a step
        TensorSpec(
            "grid",
            (data[0], *case.shapes.get("grid", (0, *data[2:], 2))[1:]),
            Values.UNIT,
            differentiable=False,
        ),
    )


def _sampled(arrays: Arrays, _: Parameters) -> Arrays:
    data, grid = arrays
    high, wide = data.shape[2:]
    x, y = (grid[..., 0] + 1) / 2 * (wide - 1), (grid[..., 1] + 1) / 2 * (high - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    batch = np.arange(len(data))[:, None, None]
    result = np.zeros((*grid.shape[:3], data.shape[1]))
    for row, down in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, across in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = (row >= 0) & (row < high) & (column >= 0) & (column < wide)
            values = data[batch, :, np.clip(row, 0, high - 1), np.clip(column, 0, wide - 1)]
            result += values * (down * across * inside)[..., None]
    return (result.transpose(0, 3, 1, 2),)


def _affine_grid(data: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """Returns the transformed (x, y) of the points of a grid, (batch, rows, columns, 2)."""
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    points = np.stack([x, y, np.ones_like(x)], -1)
    grid: NDArray[Any] = np.einsum("bij,rcj->brci", data.reshape(-1, 2, 3), points)
    return grid


_KERNEL: Parameters = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1)}

_layer = partial(Operator, category=Category.BASIC)

OPERATORS = (
    *_ACTIVATIONS,
    _layer(
        name="dense",
        summary="data · weightᵀ + bias",
        tensors=dense_tensors,
        presets=ROWS,
        parameters={"units": 256},
        reference=lambda arrays, _: (arrays[0] @ arrays[1].T + arrays[2],),
        flops=dense_flops,
        backward_flops=2.0,
    ),
    _layer(
        name="flatten",
        summary="all axes but the first as one; PyTorch returns a view and moves nothing",
        tensors=same_shape("data"),
        presets=_VIEWED,
        reference=lambda arrays, _: (arrays[0].reshape(len(arrays[0]), -1),),
    ),
    _layer(
        name="lambda",
        summary="a block of one function, which makes a batch of its data: a first axis of 1",
        tensors=same_shape("data"),
        presets=_VIEWED,
        reference=lambda arrays, _: (arrays[0][None],),
    ),
    _layer(
        name="dropout",
        summary="data with a share p of zeros, and the rest over 1 - p, as in training",
        tensors=same_shape("data", values=Values.SIGNS),
        presets=by_preset(
            sized(2, 3, 16, 16),
            sized(32, 3, 256, 256),
            sized(128, 3, 256, 256),
            sized(32, 3, 10000, 10),
            sized(10000, 1),
        ),
        parameters={"p": 0.5},
        reference=None,
        check=_check_dropout,
    ),
    _layer(
        name="embedding",
        summary="the rows of a weight of (input_dim, output_dim) that the data names",
        tensors=_embedding_tensors,
        presets=by_preset(
            sized(4, 8, input_dim=50, output_dim=16),
            sized(32, 128),
            sized(128, 256, input_dim=30000),
            sized(10000, 1, input_dim=100000, output_dim=8),
        ),
        parameters={"input_dim": 10000, "output_dim": 256},
        reference=lambda arrays, _: (arrays[1][arrays[0]],),
    ),
    _layer(
        name="im2col",
        summary="the patches below a moving kernel as columns",
        tensors=_im2col_tensors,
        presets=by_preset(
            sized(2, 3, 8, 8), sized(8, 3, 256, 256), sized(32, 3, 256, 256), sized(8, 3, 10000, 10)
        ),
        parameters=_KERNEL,
        reference=lambda arrays, given: (_columns_of(arrays[0], given),),
    ),
    _layer(
        name="col2im",
        summary="the sum of columns at their places in an image: the gradient of im2col",
        tensors=_col2im_tensors,
        presets=by_preset(
            sized(2, 27, 64, output_size=(8, 8)),
            sized(8, 27, 65536),
            sized(32, 27, 65536),
            sized(8, 27, 100000, output_size=(10000, 10)),
        ),
        parameters={**_KERNEL, "output_size": (256, 256)},
        reference=lambda arrays, given: (_image_of(arrays[0], given),),
        flops=lambda case, _: prod(case.shapes["data"]),
    ),
    _layer(
        name="grid_sample",
        summary="data at the (x, y) of a grid (batch, rows, columns, 2), bilinear; -1 and 1 are the corners",
        given=("data", "grid"),
        tensors=_sampler_tensors,
        presets=by_preset(
            ({"data": (2, 3, 8, 8), "grid": (2, 8, 8, 2)}, {}),
            ({"data": (8, 3, 256, 256), "grid": (8, 256, 256, 2)}, {}),
            ({"data": (32, 3, 256, 256), "grid": (32, 256, 256, 2)}, {}),
            ({"data": (8, 3, 10000, 10), "grid": (8, 10000, 10, 2)}, {}),
        ),
        reference=_sampled,
        # the rounding of a coordinate counts as many times as the image has pixels across
        rtol=1e-3,
    ),
    _layer(
        name="grid_generator",
        summary="the points (x, y) of a grid after affine transformations, each of 6 numbers",
        tensors=same_shape("data"),
        presets=by_preset(
            sized(2, 6, target_shape=(5, 7)),
            sized(32, 6),
            sized(256, 6),
            sized(10000, 6, target_shape=(4, 4)),
        ),
        parameters={"target_shape": (256, 256)},
        reference=lambda arrays, given: (
            _affine_grid(arrays[0], *given["target_shape"]).transpose(0, 3, 1, 2),
        ),
        flops=lambda _, outputs: 6 * prod(outputs[0]) // 2,
    ),
    _layer(
        name="spatial_transformer",
        summary="images after affine transformations, each of 6 numbers, bilinear (Jaderberg et al., 2015)",
        # without a gradient with respect to places, as grid_sample
        tensors=lambda case: (
            TensorSpec("data", case.shapes["data"]),
            TensorSpec("loc", (case.shapes["data"][0], 6), Values.UNIT, differentiable=False),
        ),
        presets=by_preset(
            sized(2, 3, 8, 8), sized(32, 3, 256, 256), sized(128, 3, 256, 256), sized(8, 3, 1000, 10)
        ),
        reference=lambda arrays, given: _sampled(
            [arrays[0], _affine_grid(arrays[1], *arrays[0].shape[2:])], given
        ),
        rtol=1e-3,
    ),
)
