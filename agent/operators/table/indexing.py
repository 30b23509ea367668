"""Operators that read or write elements of a tensor, by index, by mask or by range.

No floating-point operations are counted. All outputs are copies, even if a framework could return a view.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from inferometer.agent.operators.operator import (
    NOTHING,
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Presets,
    Shape,
    Sizes,
    TensorSpec,
    Values,
    by_preset,
    same_shape,
    sized,
)

Tensors = Callable[[Case], tuple[TensorSpec, ...]]


def _operator(
    name: str,
    summary: str,
    given: tuple[str, ...],
    tensors: Tensors,
    presets: Presets,
    reference: Callable[[Arrays, Parameters], Any],
    parameters: Parameters = NOTHING,
    *,
    has_gradient: bool = True,
) -> Operator:
    return Operator(
        name=name,
        category=Category.INDEXING,
        summary=summary,
        given=given,
        tensors=tensors,
        presets=presets,
        parameters=parameters,
        reference=lambda arrays, chosen: (reference(arrays, chosen),),
        has_gradient=has_gradient,
    )


def _shapes(**shapes: Shape) -> Sizes:
    return shapes, {}


def _indices(name: str, shape: Shape, limit: int, *, distinct: bool = False) -> TensorSpec:
    values = Values.DISTINCT_INDICES if distinct else Values.INDICES
    if distinct and prod(shape) > limit:
        raise ValueError(f"there are no {prod(shape)} distinct indices below {limit}")
    return TensorSpec(name, shape, values, limit=limit, differentiable=False)


def _rows(case: Case) -> tuple[TensorSpec, ...]:
    data, indices = case.shapes["data"], case.shapes["indices"]
    return (TensorSpec("data", data), _indices("indices", indices, data[0]))


def _one_each(case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    return (TensorSpec("data", data), _indices("indices", (*data[:-1], 1), data[-1]))


def _many_each(case: Case) -> tuple[TensorSpec, ...]:
    data, indices = case.shapes["data"], case.shapes["indices"]
    if indices[:-1] != data[:-1]:
        raise ValueError(f"the indices {indices} and the data {data} differ outside the last axis")
    return (TensorSpec("data", data), _indices("indices", indices, data[-1]))


def _points(case: Case) -> tuple[TensorSpec, ...]:
    data, indices = case.shapes["data"], case.shapes["indices"]
    if len(indices) != 2 or indices[0] > len(data):
        raise ValueError(f"the indices {indices} do not address {data}")
    return (TensorSpec("data", data), _indices("indices", indices, min(data[: indices[0]])))


def _scattered(case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    return (TensorSpec("data", data), _indices("indices", (1, data[0]), case["rows"], distinct=True))


def _copied_rows(case: Case) -> tuple[TensorSpec, ...]:
    data, source = case.shapes["data"], case.shapes["source"]
    if source[1:] != data[1:]:
        raise ValueError(f"rows of {source} do not fit {data}")
    return (
        TensorSpec("data", data),
        _indices("indices", (source[0],), data[0], distinct=True),
        TensorSpec("source", source),
    )


def _with_copies(arrays: Arrays, _: Parameters) -> Any:
    data, indices, source = arrays
    found = data.copy()
    found[indices] = source
    return found


def _scatter(arrays: Arrays, parameters: Parameters) -> Any:
    data, indices = arrays
    found = np.zeros((parameters["rows"], *data.shape[1:]), data.dtype)
    found[indices[0]] = data
    return found


def _masked_rows(case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    return (TensorSpec("data", data), TensorSpec("mask", data[:1], Values.MASK, differentiable=False))


def _chosen(case: Case) -> tuple[TensorSpec, ...]:
    shape = case.shapes["data"]
    mask = TensorSpec("mask", shape, Values.MASK, differentiable=False)
    return (mask, TensorSpec("data", shape), TensorSpec("other", shape))


def _box(case: Case) -> tuple[TensorSpec, ...]:
    shape, begin, end = case.shapes["data"], case["begin"], case["end"]
    if len(begin) != len(shape) or len(end) != len(shape):
        raise ValueError(f"begin and end need a number for each axis of {shape}")
    if any(not 0 <= low < high <= size for low, high, size in zip(begin, end, shape, strict=True)):
        raise ValueError(f"{begin}…{end} is not within {shape}")
    return (TensorSpec("data", shape),)


def _stretch(case: Case) -> tuple[TensorSpec, ...]:
    shape = case.shapes["data"]
    if not 0 <= case["begin"] < case["end"] <= shape[case["axis"]]:
        raise ValueError(f"{case['begin']}…{case['end']} is not within axis {case['axis']} of {shape}")
    return (TensorSpec("data", shape),)


def _part(case: Case) -> tuple[TensorSpec, ...]:
    data, like = case.shapes["data"], case.shapes["like"]
    if len(data) != len(like) or any(a < b for a, b in zip(data, like, strict=True)):
        raise ValueError(f"{like} is not within {data}")
    return (TensorSpec("data", data), TensorSpec("like", like, differentiable=False))


def _coordinates(case: Case) -> tuple[TensorSpec, ...]:
    if case.shapes["indices"][0] != len(case["shape"]):
        raise ValueError(f"the first axis of the indices does not address {case['shape']}")
    return (_indices("indices", case.shapes["indices"], min(case["shape"])),)


def _in_shape(shape: Shape, extent: Shape) -> Sizes:
    return {"indices": shape}, {"shape": extent}


OPERATORS = (
    _operator(
        "take",
        "rows of a tensor by index, along the first axis",
        ("data", "indices"),
        _rows,
        by_preset(
            _shapes(data=(40, 16), indices=(24,)),
            _shapes(data=(10000, 256), indices=(4096,)),
            _shapes(data=(100000, 256), indices=(32768,)),
            _shapes(data=(10000, 1), indices=(10000,)),
        ),
        lambda arrays, _: arrays[0][arrays[1]],
    ),
    _operator(
        "pick",
        "one element of each row by its index in the last axis, which stays",
        ("data",),
        _one_each,
        by_preset(sized(16, 24), sized(1024, 1024), sized(16384, 1024), sized(10000, 100)),
        lambda arrays, _: np.take_along_axis(arrays[0], arrays[1], -1),
    ),
    _operator(
        "gather",
        "several elements of each row by their indices in the last axis",
        ("data", "indices"),
        _many_each,
        by_preset(
            _shapes(data=(16, 24), indices=(16, 30)),
            _shapes(data=(1024, 1024), indices=(1024, 1024)),
            _shapes(data=(4096, 4096), indices=(4096, 1024)),
            _shapes(data=(10000, 100), indices=(10000, 1)),
        ),
        lambda arrays, _: np.take_along_axis(arrays[0], arrays[1], -1),
    ),
    _operator(
        "gather_nd",
        "elements, or parts of the last axes, by the coordinates in the columns of the indices",
        ("data", "indices"),
        _points,
        by_preset(
            _shapes(data=(12, 10, 4), indices=(2, 20)),
            _shapes(data=(1024, 1024), indices=(2, 65536)),
            _shapes(data=(4096, 4096), indices=(2, 262144)),
            _shapes(data=(10000, 10), indices=(1, 10000)),
        ),
        lambda arrays, _: arrays[0][tuple(arrays[1])],
    ),
    _operator(
        "scatter_nd",
        "zeros with given rows at the distinct coordinates in the columns of the indices",
        ("data",),
        _scattered,
        by_preset(
            sized(12, 8, rows=20),
            sized(4096, 256, rows=8192),
            sized(32768, 256, rows=65536),
            sized(10000, 1, rows=20000),
        ),
        _scatter,
        {"rows": 8192},
    ),
    _operator(
        "index_copy",
        "a copy of a tensor with other rows at distinct indices",
        ("data", "source"),
        _copied_rows,
        by_preset(
            _shapes(data=(20, 8), source=(12, 8)),
            _shapes(data=(8192, 256), source=(4096, 256)),
            _shapes(data=(65536, 256), source=(32768, 256)),
            _shapes(data=(10000, 1), source=(5000, 1)),
        ),
        _with_copies,
    ),
    _operator(
        "one_hot",
        "vectors of int64 with a 1 at the index and 0 elsewhere",
        ("indices",),
        lambda case: (_indices("indices", case.shapes["indices"], case["depth"]),),
        by_preset(
            ({"indices": (12,)}, {"depth": 10}),
            ({"indices": (1024,)}, {"depth": 1000}),
            ({"indices": (16384,)}, {"depth": 1000}),
            ({"indices": (10000,)}, {"depth": 2}),
        ),
        lambda arrays, chosen: np.eye(chosen["depth"], dtype=np.int64)[arrays[0]],
        {"depth": 1000},
        has_gradient=False,
    ),
    _operator(
        "where",
        "elements of one tensor or of another, by a mask",
        ("data",),
        _chosen,
        by_preset(sized(16, 24), sized(1024, 1024), sized(4096, 4096), sized(10000, 1), sized(10000, 100)),
        lambda arrays, _: np.where(*arrays),
    ),
    _operator(
        "boolean_mask",
        "rows of a tensor by a mask",
        ("data",),
        _masked_rows,
        by_preset(sized(16, 24), sized(8192, 256), sized(65536, 256), sized(10000, 1)),
        lambda arrays, _: arrays[0][arrays[1]],
    ),
    _operator(
        "slice",
        "range in every axis",
        ("data",),
        _box,
        by_preset(
            sized(16, 24, begin=(2, 3), end=(10, 20)),
            sized(1024, 1024, begin=(256, 256), end=(768, 768)),
            sized(4096, 4096, begin=(1024, 1024), end=(3072, 3072)),
            sized(10000, 1, begin=(2500, 0), end=(7500, 1)),
            sized(10000, 100, begin=(2500, 25), end=(7500, 75)),
        ),
        lambda arrays, chosen: arrays[0][
            tuple(slice(low, high) for low, high in zip(chosen["begin"], chosen["end"], strict=True))
        ],
        {"begin": (256, 256), "end": (768, 768)},
    ),
    _operator(
        "slice_axis",
        "range in one axis",
        ("data",),
        _stretch,
        by_preset(
            sized(16, 24, begin=3, end=20),
            sized(1024, 1024),
            sized(4096, 4096, begin=1024, end=3072),
            sized(10000, 1, axis=0, begin=2500, end=7500),
            sized(10000, 100, begin=25, end=75),
        ),
        lambda arrays, chosen: np.take(arrays[0], range(chosen["begin"], chosen["end"]), chosen["axis"]),
        {"axis": 1, "begin": 256, "end": 768},
    ),
    _operator(
        "slice_like",
        "the first part of a tensor, as large as another tensor",
        ("data", "like"),
        _part,
        by_preset(
            _shapes(data=(16, 24), like=(10, 20)),
            _shapes(data=(1024, 1024), like=(512, 512)),
            _shapes(data=(4096, 4096), like=(2048, 2048)),
            _shapes(data=(10000, 1), like=(5000, 1)),
        ),
        lambda arrays, _: arrays[0][tuple(slice(size) for size in arrays[1].shape)],
    ),
    _operator(
        "ravel_index",
        "positions in a flattened tensor of the coordinates in the columns of the indices",
        ("indices",),
        _coordinates,
        by_preset(
            _in_shape((2, 20), (12, 10)),
            _in_shape((2, 65536), (1024, 1024)),
            _in_shape((2, 1048576), (1024, 1024)),
            _in_shape((4, 10000), (32, 3, 224, 224)),
        ),
        lambda arrays, chosen: np.ravel_multi_index(tuple(arrays[0]), chosen["shape"]),
        {"shape": (1024, 1024)},
        has_gradient=False,
    ),
    _operator(
        "unravel_index",
        "coordinates, as columns, of positions in a flattened tensor",
        ("indices",),
        lambda case: (_indices("indices", case.shapes["indices"], prod(case["shape"])),),
        by_preset(
            _in_shape((20,), (12, 10)),
            _in_shape((65536,), (1024, 1024)),
            _in_shape((1048576,), (1024, 1024)),
            _in_shape((10000,), (32, 3, 224, 224)),
        ),
        lambda arrays, chosen: np.stack(np.unravel_index(arrays[0], chosen["shape"])),
        {"shape": (1024, 1024)},
        has_gradient=False,
    ),
    _operator(
        "diag",
        "diagonal of a matrix, copied",
        ("data",),
        same_shape("data"),
        by_preset(sized(16, 24), sized(1024, 1024), sized(4096, 4096), sized(10000, 1)),
        lambda arrays, _: np.diag(arrays[0]),
    ),
    _operator(
        "tril",
        "a tensor whose matrices have zeros above the diagonal",
        ("data",),
        same_shape("data"),
        by_preset(sized(3, 16, 12), sized(1024, 1024), sized(4096, 4096), sized(10000, 10, 10)),
        lambda arrays, _: np.tril(arrays[0]),
    ),
)
