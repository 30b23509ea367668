"""Fused operators; each can also run as its parts, one operator after the other.

A multiplication and an addition in a convolution, a product or the two products of attention count as two
floating-point operations; the other parts count as one per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    EPSILON,
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    operators,
    sized,
)
from inferometer.agent.operators.table.layers import ROWS, dense_flops, dense_tensors, gelu, log_softmax

_Array: TypeAlias = NDArray[Any]

_FAR = 12.0
"""The size of the dominant summand before a relu; other summands have standard deviations of 1 to 2.

Central differences are meaningless for a gradient if a relu's data crosses 0.
"""

_IMAGES = by_preset(
    sized(2, 8, 8, 8, channels=16), sized(8, 64, 56, 56), sized(32, 64, 56, 56), sized(8, 16, 2000, 10)
)
_WINDOW: Parameters = {"channels": 64, "kernel": (3, 3), "stride": (1, 1), "pad": (1, 1)}


def _kernel_tensors(case: Case) -> tuple[TensorSpec, ...]:
    _, inputs, *size = case.shapes["data"]
    kernel, channels = case["kernel"], int(case["channels"])
    if any(each + 2 * pad < kept for each, pad, kept in zip(size, case["pad"], kernel, strict=True)):
        raise ValueError("the kernel is larger than the data")
    scale = 1 / sqrt(inputs * prod(kernel))
    return (
        TensorSpec("data", case.shapes["data"]),
        TensorSpec("weight", (channels, inputs, *kernel), scale=scale),
    )


def _normalized_tensors(case: Case) -> tuple[TensorSpec, ...]:
    channels = (int(case["channels"]),)
    return (
        *_kernel_tensors(case),
        TensorSpec("bias", channels, Values.UNIT),
        TensorSpec("gamma", channels, Values.POSITIVE),
        TensorSpec("beta", channels, Values.SIGNS, scale=_FAR),
        TensorSpec("mean", channels, Values.UNIT, differentiable=False),
        TensorSpec("var", channels, Values.POSITIVE, differentiable=False),
    )


def _convolution_flops(case: Case, outputs: Sequence[Shape]) -> int:
    inputs = case.shapes["data"][1]
    return 2 * prod(outputs[0]) * inputs * int(prod(case["kernel"]))


def _output_of(name: str, arrays: Arrays, given: Parameters) -> _Array:
    """Returns the output of the operator that the table has for a part."""
    reference = operators()[name].reference
    assert reference is not None  # noqa: S101 - parts draw no random numbers
    return reference(arrays, given)[0]


def _normalized(arrays: Arrays, given: Parameters) -> _Array:
    return _output_of(
        "batch_norm", (_output_of("conv2d", arrays[:3], given), *arrays[3:]), {"epsilon": EPSILON}
    )


def _sum_tensors(case: Case) -> tuple[TensorSpec, ...]:
    """Returns inputs whose sum is at least 0.1 away from 0."""
    return (
        TensorSpec("lhs", case.shapes["lhs"], Values.UNIT),
        TensorSpec("rhs", case.shapes["rhs"], Values.SIGNS),
    )


def _residual_tensors(case: Case) -> tuple[TensorSpec, ...]:
    shape = case.shapes["data"]
    return (
        TensorSpec("data", shape),
        TensorSpec("residual", shape),
        TensorSpec("gamma", shape[-1:], Values.POSITIVE),
        TensorSpec("beta", shape[-1:]),
    )


def _attention_tensors(case: Case) -> tuple[TensorSpec, ...]:
    batch, heads, rows, size = case.shapes["query"]
    columns = case.shapes.get("key", case.shapes["query"])[2]
    kept = (batch, heads, columns, size)
    return TensorSpec("query", (batch, heads, rows, size)), TensorSpec("key", kept), TensorSpec("value", kept)


def _attention(arrays: Arrays, _: Parameters) -> Arrays:
    query, key, value = arrays
    scores = query @ key.swapaxes(-1, -2) / sqrt(query.shape[-1])
    return (np.exp(log_softmax(scores, -1)) @ value,)


_convolution = partial(
    Operator,
    category=Category.FUSED,
    presets=_IMAGES,
    parameters=_WINDOW,
    flops=_convolution_flops,
    backward_flops=2.0,
)
_dense = partial(
    Operator,
    category=Category.FUSED,
    presets=ROWS,
    parameters={"units": 256},
    flops=dense_flops,
    backward_flops=2.0,
)

OPERATORS = (
    _convolution(
        name="conv2d_relu",
        summary="max(conv2d(data) + bias, 0)",
        tensors=lambda case: (
            *_kernel_tensors(case),
            TensorSpec("bias", (int(case["channels"]),), Values.SIGNS, scale=_FAR),
        ),
        reference=lambda arrays, given: (np.maximum(_output_of("conv2d", arrays, given), 0),),
        parts=("conv2d", "relu"),
    ),
    _convolution(
        name="conv2d_batch_norm",
        summary="batch_norm(conv2d(data) + bias) with running statistics, as in an inference",
        tensors=_normalized_tensors,
        reference=lambda arrays, given: (_normalized(arrays, given),),
        parts=("conv2d", "batch_norm"),
    ),
    _convolution(
        name="conv2d_batch_norm_relu",
        summary="max(batch_norm(conv2d(data) + bias), 0) with running statistics, as in an inference",
        tensors=_normalized_tensors,
        reference=lambda arrays, given: (np.maximum(_normalized(arrays, given), 0),),
        parts=("conv2d", "batch_norm", "relu"),
    ),
    _dense(
        name="dense_relu",
        summary="max(data · weightᵀ + bias, 0)",
        tensors=lambda case: (
            *dense_tensors(case)[:2],
            TensorSpec("bias", (int(case["units"]),), Values.SIGNS, scale=_FAR),
        ),
        reference=lambda arrays, given: (np.maximum(_output_of("dense", arrays, given), 0),),
        parts=("dense", "relu"),
    ),
    _dense(
        name="dense_gelu",
        summary="gelu(data · weightᵀ + bias), exact",
        tensors=dense_tensors,
        reference=lambda arrays, given: (gelu(_output_of("dense", arrays, given)),),
        parts=("dense", "gelu"),
    ),
    Operator(
        name="add_relu",
        category=Category.FUSED,
        summary="max(lhs + rhs, 0)",
        given=("lhs", "rhs"),
        tensors=_sum_tensors,
        presets=by_preset(
            ({"lhs": (32, 32), "rhs": (32, 32)}, {}),
            ({"lhs": (1024, 1024), "rhs": (1024, 1024)}, {}),
            ({"lhs": (4096, 4096), "rhs": (4096, 4096)}, {}),
            ({"lhs": (10000, 10), "rhs": (10000, 10)}, {}),
        ),
        reference=lambda arrays, _: (np.maximum(arrays[0] + arrays[1], 0),),
        flops=lambda _, outputs: 2 * prod(outputs[0]),
        parts=("add", "relu"),
    ),
    Operator(
        name="layer_norm_residual",
        category=Category.FUSED,
        summary="layer_norm(data + residual) over the last axis",
        tensors=_residual_tensors,
        presets=by_preset(
            sized(2, 8, 32),
            sized(32, 128, 768),
            sized(64, 512, 768),
            sized(1, 100000, 8),
            sized(1, 10, 65536),
        ),
        reference=lambda arrays, _: (
            _output_of("layer_norm", (arrays[0] + arrays[1], *arrays[2:]), {"epsilon": EPSILON}),
        ),
        # the sum; then the mean, the difference, the variance (2), the quotient, the scale and the shift
        flops=lambda _, outputs: 8 * prod(outputs[0]),
        parts=("add", "layer_norm"),
    ),
    Operator(
        name="scaled_dot_product_attention",
        category=Category.FUSED,
        summary="softmax(query · keyᵀ / √size) · value of (batch, heads, positions, size)",
        given=("query", "key"),
        tensors=_attention_tensors,
        presets=by_preset(
            ({"query": (2, 3, 16, 8), "key": (2, 3, 16, 8)}, {}),
            ({"query": (8, 12, 128, 64), "key": (8, 12, 128, 64)}, {}),
            ({"query": (8, 12, 512, 64), "key": (8, 12, 512, 64)}, {}),
            ({"query": (1, 12, 1, 64), "key": (1, 12, 4096, 64)}, {}),
        ),
        reference=_attention,
        flops=lambda case, _: (
            4 * prod(case.shapes["query"]) * case.shapes.get("key", case.shapes["query"])[2]
        ),
        backward_flops=2.0,
        parts=("batch_dot", "multiply", "softmax", "batch_dot"),
    ),
)
