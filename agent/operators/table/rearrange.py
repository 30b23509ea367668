"""Operators that move, repeat, join or split elements and compute nothing.

No floating-point operations are counted for them. All outputs are copies in the order of their axes: a
framework that could return a view of the input does the same work as one that copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    NOTHING,
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    ParameterValue,
    Preset,
    Presets,
    Shape,
    TensorSpec,
    by_preset,
    same_shape,
    sized,
)

Tensors = Callable[[Case], tuple[TensorSpec, ...]]
Requirement = Callable[[Shape, Case], bool]
_TALL = ((10000, 1), (10000, 100))


_MATRICES = by_preset(
    sized(16, 24), sized(1024, 1024), sized(4096, 4096), *(sized(*shape) for shape in _TALL)
)
_HALVES: Presets = {**_MATRICES, Preset.LARGE: (sized(2048, 2048),)}


def _data(fits: Requirement | None = None) -> Tensors:
    """Returns the ``tensors`` of an operator with one input; sizes that fail ``fits`` are rejected."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["data"]
        if fits is not None and not fits(shape, case):
            raise ValueError(f"{dict(case.parameters)} cannot be applied to {shape}")
        return (TensorSpec("data", shape),)

    return tensors


def _has_axis(shape: Shape, case: Case) -> bool:
    return case["axis"] in range(-len(shape), len(shape))


def _one(
    name: str,
    summary: str,
    reference: Callable[[NDArray[Any], Parameters], Any],
    parameters: Parameters = NOTHING,
    presets: Presets = _MATRICES,
    fits: Requirement | None = None,
    *,
    category: Category = Category.REARRANGE,
    has_gradient: bool = True,
) -> Operator:
    """Returns an operator with one input; the reference returns an array, or a list for several outputs."""

    def computed(arrays: Arrays, chosen: Parameters) -> Arrays:
        found = reference(arrays[0], chosen)
        return found if isinstance(found, list) else (found,)

    return Operator(
        name=name,
        category=category,
        summary=summary,
        tensors=_data(fits),
        presets=presets,
        parameters=parameters,
        reference=computed,
        has_gradient=has_gradient,
    )


def _with_like(
    name: str, summary: str, reference: Callable[..., Any], sizes: Sequence[tuple[Shape, Shape]]
) -> Operator:
    """Returns an operator that gives the data the shape of another input, whose values it ignores."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        data, like = case.shapes["data"], case.shapes["like"]
        if name == "reshape_like" and prod(data) != prod(like):
            raise ValueError(f"{data} and {like} have different numbers of elements")
        if name == "broadcast_like" and np.broadcast_shapes(data, like) != like:
            raise ValueError(f"{data} cannot be broadcast to {like}")
        return (TensorSpec("data", data), TensorSpec("like", like, differentiable=False))

    presets = [({"data": data, "like": like}, dict[str, ParameterValue]()) for data, like in sizes]
    return Operator(
        name=name,
        category=Category.REARRANGE,
        summary=summary,
        given=("data", "like"),
        tensors=tensors,
        presets=by_preset(*presets),
        reference=lambda arrays, _: (reference(arrays[0], arrays[1].shape),),
    )


def _same_size(shape: Shape, case: Case) -> bool:
    target: Shape = case["shape"]
    known = prod(size for size in target if size != -1)
    if -1 not in target:
        return prod(shape) == known
    return target.count(-1) == 1 and known > 0 and prod(shape) % known == 0


def _widths(parameters: Any) -> list[tuple[int, int]]:
    flat = parameters["pad_width"]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _paddable(shape: Shape, case: Case) -> bool:
    widths = _widths(case)
    modes = {"constant": True, "edge": True}
    modes["reflect"] = all(max(pair) < size for pair, size in zip(widths[2:], shape[2:], strict=True))
    return (
        len(shape) == 4
        and len(widths) == 4
        and not any(map(any, widths[:2]))
        and modes.get(case["mode"], False)
    )


def _broadcastable(shape: Shape, case: Case) -> bool:
    return len(case["shape"]) == len(shape) and all(
        a in (1, b) for a, b in zip(shape, case["shape"], strict=True)
    )


def _depth_to_space(data: NDArray[Any], block: int) -> NDArray[Any]:
    n, c, h, w = data.shape
    apart = data.reshape(n, block, block, c // block**2, h, w)
    return apart.transpose(0, 3, 4, 1, 5, 2).reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(data: NDArray[Any], block: int) -> NDArray[Any]:
    n, c, h, w = data.shape
    apart = data.reshape(n, c, h // block, block, w // block, block)
    return apart.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * block**2, h // block, w // block)


_OF_MATRICES = (
    _one(
        "transpose",
        "permutation of the axes, copied",
        lambda data, chosen: np.transpose(data, chosen["axes"]),
        {"axes": (1, 0)},
        by_preset(
            [sized(16, 24), sized(2, 3, 4, 5, axes=(0, 2, 3, 1))],
            [sized(1024, 1024), sized(32, 3, 256, 256, axes=(0, 2, 3, 1))],
            sized(4096, 4096),
            *(sized(*shape) for shape in _TALL),
        ),
        lambda shape, case: sorted(case["axes"]) == list(range(len(shape))),
    ),
    _one(
        "swapaxes",
        "exchange of two axes, copied",
        lambda data, chosen: np.swapaxes(data, chosen["dim1"], chosen["dim2"]),
        {"dim1": 0, "dim2": 1},
        fits=lambda shape, case: all(0 <= case[name] < len(shape) for name in ("dim1", "dim2")),
    ),
    _one(
        "reshape",
        "other shape of the same elements, copied",
        lambda data, chosen: np.reshape(data, chosen["shape"]),
        {"shape": (-1, 256)},
        by_preset(
            sized(16, 24, shape=(8, 48)),
            sized(1024, 1024, shape=(4096, 256)),
            sized(4096, 4096, shape=(2048, 8192)),
            sized(10000, 1, shape=(10, 1000)),
            sized(10000, 100, shape=(100, 10000)),
        ),
        _same_size,
    ),
    _one(
        "expand_dims",
        "a new axis of size 1, copied",
        lambda data, chosen: np.expand_dims(data, chosen["axis"]),
        {"axis": 0},
        fits=lambda shape, case: -len(shape) <= case["axis"] <= len(shape),
    ),
    _one(
        "squeeze",
        "without an axis of size 1, copied",
        lambda data, chosen: np.squeeze(data, chosen["axis"]),
        {"axis": 0},
        by_preset(sized(1, 16, 24), sized(1, 1024, 1024), sized(1, 4096, 4096), sized(10000, 1, axis=1)),
        lambda shape, case: _has_axis(shape, case) and shape[case["axis"]] == 1,
    ),
    _one(
        "flip",
        "reversal of the order along an axis",
        lambda data, chosen: np.flip(data, chosen["axis"]),
        {"axis": 1},
        fits=_has_axis,
    ),
    _one(
        "tile",
        "repetition of the whole along each axis",
        lambda data, chosen: np.tile(data, chosen["reps"]),
        {"reps": (2, 2)},
        _HALVES,
        lambda shape, case: len(case["reps"]) == len(shape) and min(case["reps"]) > 0,
    ),
    _one(
        "repeat",
        "repetition of each element along an axis",
        lambda data, chosen: np.repeat(data, chosen["repeats"], chosen["axis"]),
        {"repeats": 2, "axis": 1},
        _HALVES,
        lambda shape, case: _has_axis(shape, case) and case["repeats"] > 0,
    ),
    _one(
        "shape_array",
        "the shape as a tensor of int64",
        lambda data, _: np.array(data.shape, np.int64),
        has_gradient=False,
    ),
    _one(
        "size_array",
        "the number of elements as a tensor of int64",
        lambda data, _: np.array(data.size, np.int64),
        has_gradient=False,
    ),
)

_OF_OTHERS = (
    _one(
        "pad",
        "elements around the last two axes of images: a constant, the edge, or its reflection",
        lambda data, chosen: (
            np.pad(data, _widths(chosen), constant_values=chosen["value"])
            if chosen["mode"] == "constant"
            else np.pad(data, _widths(chosen), chosen["mode"])
        ),
        {"pad_width": (0, 0, 0, 0, 1, 1, 1, 1), "mode": "constant", "value": 0.0},
        by_preset(
            [
                sized(2, 3, 5, 6, value=0.5),
                sized(2, 3, 5, 6, mode="edge", pad_width=(0, 0, 0, 0, 2, 1, 0, 3)),
                sized(2, 3, 5, 6, mode="reflect", pad_width=(0, 0, 0, 0, 2, 1, 0, 3)),
            ],
            sized(32, 3, 256, 256),
            sized(128, 3, 256, 256),
            sized(32, 3, 10000, 10),
        ),
        _paddable,
    ),
    _one(
        "broadcast_to",
        "repetition along the axes of size 1 up to a shape",
        lambda data, chosen: np.broadcast_to(data, chosen["shape"]),
        {"shape": (1024, 1024)},
        by_preset(
            sized(1, 24, shape=(16, 24)),
            sized(1, 1024, shape=(1024, 1024)),
            sized(1, 4096, shape=(4096, 4096)),
            sized(10000, 1, shape=(10000, 100)),
            sized(1, 100, shape=(10000, 100)),
        ),
        _broadcastable,
    ),
    _one(
        "broadcast_axis",
        "repetition along one axis of size 1",
        lambda data, chosen: np.repeat(data, chosen["size"], chosen["axis"]),
        {"axis": 1, "size": 1024},
        by_preset(
            sized(16, 1, 4, size=6), sized(1024, 1), sized(4096, 1, size=4096), sized(10000, 1, size=10)
        ),
        lambda shape, case: _has_axis(shape, case) and shape[case["axis"]] == 1 and case["size"] > 0,
    ),
    _with_like(
        "broadcast_like",
        "repetition along the axes of size 1 up to the shape of another tensor",
        np.broadcast_to,
        [
            ((1, 24), (16, 24)),
            ((1, 1024), (1024, 1024)),
            ((1, 4096), (4096, 4096)),
            ((10000, 1), (10000, 100)),
        ],
    ),
    _with_like(
        "reshape_like",
        "the same elements in the shape of another tensor, copied",
        np.reshape,
        [
            ((16, 24), (8, 48)),
            ((1024, 1024), (4096, 256)),
            ((4096, 4096), (2048, 8192)),
            ((10000, 1), (10, 1000)),
        ],
    ),
    _one(
        "depth_to_space",
        "blocks of the last two axes from the second axis, the block's axes first in it",
        lambda data, chosen: _depth_to_space(data, chosen["block_size"]),
        {"block_size": 2},
        by_preset(sized(2, 8, 3, 4), sized(32, 16, 64, 64), sized(32, 64, 64, 64), sized(32, 4, 5000, 5)),
        lambda shape, case: len(shape) == 4 and shape[1] % case["block_size"] ** 2 == 0,
    ),
    _one(
        "space_to_depth",
        "blocks of the last two axes to the second axis, the block's axes first in it",
        lambda data, chosen: _space_to_depth(data, chosen["block_size"]),
        {"block_size": 2},
        by_preset(
            sized(2, 3, 4, 6), sized(32, 4, 128, 128), sized(32, 16, 128, 128), sized(32, 1, 10000, 10)
        ),
        lambda shape, case: len(shape) == 4 and not any(size % case["block_size"] for size in shape[2:]),
    ),
)


def _joined(name: str, summary: str, reference: Callable[..., Any], axis: int) -> Operator:
    """Returns an operator that joins three tensors."""
    names = ("data0", "data1", "data2")
    alike = name == "stack"

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shapes = [case.shapes[each] for each in names]
        along = case["axis"]
        if not 0 <= along < len(shapes[0]) + alike:
            raise ValueError(f"there is no axis {along}")
        rest = shapes if alike else [(*shape[:along], *shape[along + 1 :]) for shape in shapes]
        if rest.count(rest[0]) != len(rest) or len({len(shape) for shape in shapes}) != 1:
            raise ValueError(f"{shapes} cannot be joined along axis {along}")
        return same_shape(*names)(case)

    shapes = ((6, 8), (1024, 1024), (2048, 4096), *_TALL)
    return Operator(
        name=name,
        category=Category.JOIN_SPLIT,
        summary=summary,
        given=names,
        tensors=tensors,
        presets=by_preset(*((dict.fromkeys(names, shape), {}) for shape in shapes)),
        parameters={"axis": axis},
        reference=lambda arrays, chosen: (reference(arrays, axis=chosen["axis"]),),
    )


def _cut(shape: Shape, case: Case) -> bool:
    bounds = (0, *case["indices"], shape[case["axis"]])
    return all(low < high for low, high in pairwise(bounds))


OPERATORS = (
    *_OF_MATRICES,
    *_OF_OTHERS,
    _joined("concat", "three tensors one after the other along an axis", np.concatenate, 1),
    _joined("stack", "three tensors along a new axis", np.stack, 0),
    _one(
        "split",
        "equal parts along an axis, each copied",
        lambda data, chosen: np.split(data, chosen["num_outputs"], chosen["axis"]),
        {"num_outputs": 2, "axis": 1},
        {**_MATRICES, Preset.SKEWED: (sized(10000, 1, axis=0), sized(10000, 100, num_outputs=10))},
        lambda shape, case: _has_axis(shape, case) and shape[case["axis"]] % case["num_outputs"] == 0,
        category=Category.JOIN_SPLIT,
    ),
    _one(
        "split_v2",
        "parts between given indices along an axis, each copied",
        lambda data, chosen: np.split(data, chosen["indices"], chosen["axis"]),
        {"indices": (256, 640), "axis": 1},
        by_preset(
            sized(16, 24, indices=(5, 17)),
            sized(1024, 1024),
            sized(4096, 4096, indices=(1024, 2560)),
            sized(10000, 1, indices=(2500, 6000), axis=0),
            sized(10000, 100, indices=(25, 60)),
        ),
        lambda shape, case: _has_axis(shape, case) and _cut(shape, case),
        category=Category.JOIN_SPLIT,
    ),
)
