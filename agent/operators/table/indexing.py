"""Operators that read or write elements of a tensor, by index, by mask or by range.

No floating-point operations are counted. All outputs are copies, even if a framework could return a view.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Shape,
    Sizes,
    TensorSpec,
    Values,
    by_preset,
    same_shape,
    sized,
)

_Function = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
_operator = partial(Operator, category=Category.INDEXING)


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


def _with_copies(arrays: Arrays, _: Parameters) -> Arrays:
    data, indices, source = arrays
    found = data.copy()
    found[indices] = source
    return (found,)


def _scatter(arrays: Arrays, parameters: Parameters) -> Arrays:
    data, indices = arrays
    found = np.zeros((parameters["rows"], *data.shape[1:]), data.dtype)
    found[indices[0]] = data
    return (found,)


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


def _sequences(name: str, summary: str, function: _Function) -> Operator:
    """Returns an operator on sequences (steps, samples, features) and the lengths of the samples."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        steps, samples, *_ = shape = case.shapes["data"]
        lengths = TensorSpec("lengths", (samples,), Values.LENGTHS, limit=steps, differentiable=False)
        return (TensorSpec("data", shape), lengths)

    return _operator(
        name=f"sequence_{name}",
        summary=summary,
        tensors=tensors,
        presets=by_preset(
            sized(6, 4, 5), sized(128, 64, 256), sized(512, 128, 512), sized(2000, 1, 16), sized(2, 10000, 16)
        ),
        reference=lambda arrays, _: (function(*arrays),),
    )


def _reversed(data: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    steps = np.arange(len(data))[:, None]
    found: NDArray[Any] = data[np.where(steps < lengths, lengths - 1 - steps, steps), np.arange(len(lengths))]
    return found


def _filled(case: Case) -> tuple[TensorSpec, ...]:
    rows, columns = case.shapes["data"]
    return (
        TensorSpec("data", (rows, columns)),
        TensorSpec("source", (rows,)),
        _indices("indices", (rows,), columns),
    )


def _with_filled(arrays: Arrays, _: Parameters) -> Arrays:
    data, source, indices = arrays
    found = data.copy()
    found[np.arange(len(data)), indices] = source
    return (found,)


def _in_shape(shape: Shape, extent: Shape) -> Sizes:
    return {"indices": shape}, {"shape": extent}


OPERATORS = (
    _operator(
        name="take",
        summary="rows of a tensor by index, along the first axis",
        given=("data", "indices"),
        tensors=_rows,
        presets=by_preset(
            _shapes(data=(40, 16), indices=(24,)),
            _shapes(data=(10000, 256), indices=(4096,)),
            _shapes(data=(100000, 256), indices=(32768,)),
            _shapes(data=(10000, 1), indices=(10000,)),
        ),
        reference=lambda arrays, _: (arrays[0][arrays[1]],),
    ),
    _operator(
        name="pick",
        summary="one element of each row by its index in the last axis, which stays",
        tensors=_one_each,
        presets=by_preset(sized(16, 24), sized(1024, 1024), sized(16384, 1024), sized(10000, 100)),
        reference=lambda arrays, _: (np.take_along_axis(arrays[0], arrays[1], -1),),
    ),
    _operator(
        name="gather",
        summary="several elements of each row by their indices in the last axis",
        given=("data", "indices"),
        tensors=_many_each,
        presets=by_preset(
            _shapes(data=(16, 24), indices=(16, 30)),
            _shapes(data=(1024, 1024), indices=(1024, 1024)),
            _shapes(data=(4096, 4096), indices=(4096, 1024)),
            _shapes(data=(10000, 100), indices=(10000, 1)),
        ),
        reference=lambda arrays, _: (np.take_along_axis(arrays[0], arrays[1], -1),),
    ),
    _operator(
        name="gather_nd",
        summary="elements, or parts of the last axes, by the coordinates in the columns of the indices",
        given=("data", "indices"),
        tensors=_points,
        presets=by_preset(
            _shapes(data=(12, 10, 4), indices=(2, 20)),
            _shapes(data=(1024, 1024), indices=(2, 65536)),
            _shapes(data=(4096, 4096), indices=(2, 262144)),
            _shapes(data=(10000, 10), indices=(1, 10000)),
        ),
        reference=lambda arrays, _: (arrays[0][tuple(arrays[1])],),
    ),
    _operator(
        name="scatter_nd",
        summary="zeros with given rows at the distinct coordinates in the columns of the indices",
        tensors=_scattered,
        presets=by_preset(
            sized(12, 8, rows=20),
            sized(4096, 256, rows=8192),
            sized(32768, 256, rows=65536),
            sized(10000, 1, rows=20000),
        ),
        reference=_scatter,
        parameters={"rows": 8192},
    ),
    _operator(
        name="index_copy",
        summary="a copy of a tensor with other rows at distinct indices",
        given=("data", "source"),
        tensors=_copied_rows,
        presets=by_preset(
            _shapes(data=(20, 8), source=(12, 8)),
            _shapes(data=(8192, 256), source=(4096, 256)),
            _shapes(data=(65536, 256), source=(32768, 256)),
            _shapes(data=(10000, 1), source=(5000, 1)),
        ),
        reference=_with_copies,
    ),
    _operator(
        name="fill_element",
        summary="a copy of a matrix in which one element of each row, given by its column, is replaced",
        tensors=_filled,
        presets=by_preset(sized(16, 24), sized(1024, 1024), sized(8192, 2048), sized(10000, 100)),
        reference=_with_filled,
        has_gradient=False,
    ),
    _sequences(
        "last",
        "the last step of each sample",
        lambda data, lengths: data[lengths - 1, np.arange(len(lengths))],
    ),
    _sequences(
        "mask",
        "data with zeros after the last step of each sample",
        lambda data, lengths: (data.T * (np.arange(len(data)) < lengths[:, None])).T,
    ),
    _sequences("reverse", "the steps of each sample in reverse order", _reversed),
    _operator(
        name="one_hot",
        summary="vectors of int64 with a 1 at the index and 0 elsewhere",
        given=("indices",),
        tensors=lambda case: (_indices("indices", case.shapes["indices"], case["depth"]),),
        presets=by_preset(
            ({"indices": (12,)}, {"depth": 10}),
            ({"indices": (1024,)}, {"depth": 1000}),
            ({"indices": (16384,)}, {"depth": 1000}),
            ({"indices": (10000,)}, {"depth": 2}),
        ),
        reference=lambda arrays, chosen: (np.eye(chosen["depth"], dtype=np.int64)[arrays[0]],),
        parameters={"depth": 1000},
        has_gradient=False,
    ),
    _operator(
        name="where",
        summary="elements of one tensor or of another, by a mask",
        tensors=_chosen,
        presets=by_preset(
            sized(16, 24), sized(1024, 1024), sized(4096, 4096), sized(10000, 1), sized(10000, 100)
        ),
        reference=lambda arrays, _: (np.where(arrays[0], arrays[1], arrays[2]),),
    ),
    _operator(
        name="boolean_mask",
        summary="rows of a tensor by a mask",
        tensors=_masked_rows,
        presets=by_preset(sized(16, 24), sized(8192, 256), sized(65536, 256), sized(10000, 1)),
        reference=lambda arrays, _: (arrays[0][arrays[1]],),
    ),
    _operator(
        name="slice",
        summary="range in every axis",
        tensors=_box,
        presets=by_preset(
            sized(16, 24, begin=(2, 3), end=(10, 20)),
            sized(1024, 1024, begin=(256, 256), end=(768, 768)),
            sized(4096, 4096, begin=(1024, 1024), end=(3072, 3072)),
            sized(10000, 1, begin=(2500, 0), end=(7500, 1)),
            sized(10000, 100, begin=(2500, 25), end=(7500, 75)),
        ),
        reference=lambda arrays, chosen: (
            arrays[0][
                tuple(slice(low, high) for low, high in zip(chosen["begin"], chosen["end"], strict=True))
            ],
        ),
        parameters={"begin": (256, 256), "end": (768, 768)},
    ),
    _operator(
        name="slice_axis",
        summary="range in one axis",
        tensors=_stretch,
        presets=by_preset(
            sized(16, 24, begin=3, end=20),
            sized(1024, 1024),
            sized(4096, 4096, begin=1024, end=3072),
            sized(10000, 1, axis=0, begin=2500, end=7500),
            sized(10000, 100, begin=25, end=75),
        ),
        reference=lambda arrays, chosen: (
            np.take(arrays[0], range(chosen["begin"], chosen["end"]), chosen["axis"]),
        ),
        parameters={"axis": 1, "begin": 256, "end": 768},
    ),
    _operator(
        name="slice_like",
        summary="the first part of a tensor, as large as another tensor",
        given=("data", "like"),
        tensors=_part,
        presets=by_preset(
            _shapes(data=(16, 24), like=(10, 20)),
            _shapes(data=(1024, 1024), like=(512, 512)),
            _shapes(data=(4096, 4096), like=(2048, 2048)),
            _shapes(data=(10000, 1), like=(5000, 1)),
        ),
        reference=lambda arrays, _: (arrays[0][tuple(slice(size) for size in arrays[1].shape)],),
    ),
    _operator(
        name="ravel_index",
        summary="positions in a flattened tensor of the coordinates in the columns of the indices",
        given=("indices",),
        tensors=_coordinates,
        presets=by_preset(
            _in_shape((2, 20), (12, 10)),
            _in_shape((2, 65536), (1024, 1024)),
            _in_shape((2, 1048576), (1024, 1024)),
            _in_shape((4, 10000), (32, 3, 224, 224)),
        ),
        reference=lambda arrays, chosen: (np.ravel_multi_index(tuple(arrays[0]), chosen["shape"]),),
        parameters={"shape": (1024, 1024)},
        has_gradient=False,
    ),
    _operator(
        name="unravel_index",
        summary="coordinates, as columns, of positions in a flattened tensor",
        given=("indices",),
        tensors=lambda case: (_indices("indices", case.shapes["indices"], prod(case["shape"])),),
        presets=by_preset(
            _in_shape((20,), (12, 10)),
            _in_shape((65536,), (1024, 1024)),
            _in_shape((1048576,), (1024, 1024)),
            _in_shape((10000,), (32, 3, 224, 224)),
        ),
        reference=lambda arrays, chosen: (np.stack(np.unravel_index(arrays[0], chosen["shape"])),),
        parameters={"shape": (1024, 1024)},
        has_gradient=False,
    ),
    _operator(
        name="diag",
        summary="diagonal of a matrix, copied",
        tensors=same_shape("data"),
        presets=by_preset(sized(16, 24), sized(1024, 1024), sized(4096, 4096), sized(10000, 1)),
        reference=lambda arrays, _: (np.diag(arrays[0]),),
    ),
    _operator(
        name="tril",
        summary="a tensor whose matrices have zeros above the diagonal",
        tensors=same_shape("data"),
        presets=by_preset(sized(3, 16, 12), sized(1024, 1024), sized(4096, 4096), sized(10000, 10, 10)),
        reference=lambda arrays, _: (np.tril(arrays[0]),),
    ),
)
