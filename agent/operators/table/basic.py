"""The layers other than convolution, pooling and normalization, and the sampling of images.

The floating-point operations of a dense layer are those of its product, 2 · rows · inputs · units; each
of the two products of its backward pass has as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Preset,
    Shape,
    Sizes,
    TensorSpec,
    Values,
    same_shape,
)

_Given: TypeAlias = Mapping[str, Any]

_VIEWED: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"data": (4, 8, 8)}, {}),),
    Preset.NORMAL: (({"data": (128, 512, 512)}, {}),),
    # twice the normal one, which has 128 MiB
    Preset.LARGE: (({"data": (256, 512, 512)}, {}),),
    Preset.SKEWED: (({"data": (10000, 10, 1)}, {}),),
}


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
    """Returns the floating-point operations of the product of a dense layer."""
    return 2 * prod(case.shapes["data"]) * int(case["units"])


def _embedding_tensors(case: Case) -> tuple[TensorSpec, ...]:
    count, size = int(case["input_dim"]), int(case["output_dim"])
    indices = TensorSpec("data", case.shapes["data"], Values.INDICES, limit=count, differentiable=False)
    return indices, TensorSpec("weight", (count, size))


def _check_dropout(outputs: Arrays, case: Case) -> None:
    """Checks the output of dropout: the data is ±1, so that each value is 0 or ±1 / (1 - p)."""
    values, p = np.abs(outputs[0].astype(np.float64)).ravel(), float(case["p"])
    share = float(np.mean(values == 0))
    # a binomial share is within six standard deviations in all but 2 of 10⁹ cases
    spread = 6 * sqrt(p * (1 - p) / values.size)
    if abs(share - p) > spread:
        raise ValueError(f"the share of zeros is {share:.4f}, and p is {p}")
    kept = values[values != 0]
    if not np.allclose(kept, 1 / (1 - p), rtol=1e-2):
        raise ValueError(f"what is kept is not multiplied by {1 / (1 - p):g}")


def _windows(case: Case, size: Sequence[int]) -> tuple[int, int]:
    """Returns the positions of the kernel in an image of a size, down and across."""
    high, wide = (
        (each + 2 * pad - kernel) // stride + 1
        for each, kernel, stride, pad in zip(size, case["kernel"], case["stride"], case["pad"], strict=True)
    )
    return high, wide


def _columns_of(data: NDArray[Any], given: _Given) -> NDArray[Any]:
    (kh, kw), (sh, sw), (ph, pw) = given["kernel"], given["stride"], given["pad"]
    padded = np.pad(data, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    windows: Any = np.lib.stride_tricks.sliding_window_view
    found = windows(padded, (kh, kw), (2, 3))[:, :, ::sh, ::sw]
    columns: NDArray[Any] = found.transpose(0, 1, 4, 5, 2, 3).reshape(
        data.shape[0], data.shape[1] * kh * kw, -1
    )
    return columns


def _image_of(columns: NDArray[Any], given: _Given) -> NDArray[Any]:
    (kh, kw), (sh, sw), (ph, pw) = given["kernel"], given["stride"], given["pad"]
    height, width = given["output_size"]
    high, wide = (height + 2 * ph - kh) // sh + 1, (width + 2 * pw - kw) // sw + 1
    parts = columns.reshape(columns.shape[0], -1, kh, kw, high, wide)
    padded = np.zeros((*parts.shape[:2], height + 2 * ph, width + 2 * pw))
    for row in range(kh):
        for column in range(kw):
            padded[:, :, row : row + high * sh : sh, column : column + wide * sw : sw] += parts[
                :, :, row, column
            ]
    return padded[:, :, ph : ph + height, pw : pw + width]


def _im2col_tensors(case: Case) -> tuple[TensorSpec, ...]:
    if min(_windows(case, case.shapes["data"][2:])) < 1:
        raise ValueError("the kernel is larger than the image")
    return (TensorSpec("data", case.shapes["data"]),)


def _col2im_tensors(case: Case) -> tuple[TensorSpec, ...]:
    batch, columns, count = case.shapes["data"]
    expected = prod(_windows(case, case["output_size"]))
    if columns % prod(case["kernel"]) or count != expected:
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


_KERNEL: Parameters = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1)}

OPERATORS = (
    Operator(
        name="dense",
        category=Category.BASIC,
        summary="data · weightᵀ + bias",
        given=("data",),
        tensors=dense_tensors,
        presets={
            Preset.SMALL: (({"data": (16, 24)}, {"units": 8}),),
            Preset.NORMAL: (({"data": (512, 512)}, {}),),
            Preset.LARGE: (({"data": (2048, 1024)}, {"units": 1024}),),
            Preset.SKEWED: (({"data": (10000, 10)}, {}), ({"data": (1, 4096)}, {"units": 1000})),
        },
        parameters={"units": 256},
        reference=lambda arrays, _: (arrays[0] @ arrays[1].T + arrays[2],),
        flops=dense_flops,
        backward_flops=2.0,
    ),
    Operator(
        name="flatten",
        category=Category.BASIC,
        summary="all axes but the first as one; PyTorch returns a view and moves nothing",
        given=("data",),
        tensors=same_shape("data"),
        presets=_VIEWED,
        reference=lambda arrays, _: (arrays[0].reshape(len(arrays[0]), -1),),
    ),
    Operator(
        name="lambda",
        category=Category.BASIC,
        summary="a block of one function, which makes a batch of its data: a first axis of 1",
        given=("data",),
        tensors=same_shape("data"),
        presets=_VIEWED,
        reference=lambda arrays, _: (arrays[0][None],),
    ),
    Operator(
        name="dropout",
        category=Category.BASIC,
        summary="data with a share p of zeros, and the rest over 1 - p, as in training",
        given=("data",),
        tensors=same_shape("data", values=Values.SIGNS),
        presets={
            Preset.SMALL: (({"data": (2, 3, 16, 16)}, {}),),
            Preset.NORMAL: (({"data": (32, 3, 256, 256)}, {}),),
            Preset.LARGE: (({"data": (128, 3, 256, 256)}, {}),),
            Preset.SKEWED: (({"data": (32, 3, 10000, 10)}, {}), ({"data": (10000, 1)}, {})),
        },
        parameters={"p": 0.5},
        reference=None,
        check=_check_dropout,
    ),
    Operator(
        name="embedding",
        category=Category.BASIC,
        summary="the rows of a weight of (input_dim, output_dim) that the data names",
        given=("data",),
        tensors=_embedding_tensors,
        presets={
            Preset.SMALL: (({"data": (4, 8)}, {"input_dim": 50, "output_dim": 16}),),
            Preset.NORMAL: (({"data": (32, 128)}, {}),),
            Preset.LARGE: (({"data": (128, 256)}, {"input_dim": 30000}),),
            Preset.SKEWED: (({"data": (10000, 1)}, {"input_dim": 100000, "output_dim": 8}),),
        },
        parameters={"input_dim": 10000, "output_dim": 256},
        reference=lambda arrays, _: (arrays[1][arrays[0]],),
    ),
    Operator(
        name="im2col",
        category=Category.BASIC,
        summary="the patches below a moving kernel as columns",
        given=("data",),
        tensors=_im2col_tensors,
        presets={
            Preset.SMALL: (({"data": (2, 3, 8, 8)}, {}),),
            Preset.NORMAL: (({"data": (8, 3, 256, 256)}, {}),),
            Preset.LARGE: (({"data": (32, 3, 256, 256)}, {}),),
            Preset.SKEWED: (({"data": (8, 3, 10000, 10)}, {}),),
        },
        parameters=_KERNEL,
        reference=lambda arrays, given: (_columns_of(arrays[0], given),),
    ),
    Operator(
        name="col2im",
        category=Category.BASIC,
        summary="the sum of columns at their places in an image: the gradient of im2col",
        given=("data",),
        tensors=_col2im_tensors,
        presets={
            Preset.SMALL: (({"data": (2, 27, 64)}, {"output_size": (8, 8)}),),
            Preset.NORMAL: (({"data": (8, 27, 65536)}, {}),),
            Preset.LARGE: (({"data": (32, 27, 65536)}, {}),),
            Preset.SKEWED: (({"data": (8, 27, 100000)}, {"output_size": (10000, 10)}),),
        },
        parameters={**_KERNEL, "output_size": (256, 256)},
        reference=lambda arrays, given: (_image_of(arrays[0], given),),
        flops=lambda case, _: prod(case.shapes["data"]),
    ),
    Operator(
        name="grid_sample",
        category=Category.BASIC,
        summary="data at the (x, y) of a grid (batch, rows, columns, 2), bilinear; -1 and 1 are the corners",
        given=("data", "grid"),
        tensors=_sampler_tensors,
        presets={
            Preset.SMALL: (({"data": (2, 3, 8, 8), "grid": (2, 8, 8, 2)}, {}),),
            Preset.NORMAL: (({"data": (8, 3, 256, 256), "grid": (8, 256, 256, 2)}, {}),),
            Preset.LARGE: (({"data": (32, 3, 256, 256), "grid": (32, 256, 256, 2)}, {}),),
            Preset.SKEWED: (({"data": (8, 3, 10000, 10), "grid": (8, 10000, 10, 2)}, {}),),
        },
        reference=_sampled,
        # the rounding of a coordinate counts as many times as the image has pixels across
        rtol=1e-3,
    ),
)
