"""Pooling of windows, whole images and regions of interest, and image resizing; channels first.

An average includes the padding. Windows are whole: the remainder at an edge is dropped. Pooling counts as one
floating-point operation for each element below a window, four for a bilinear value (fvcore's convention), and
none for a nearest value or for regions whose values are only compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, floor, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Presets,
    Shape,
    TensorSpec,
    Values,
    by_preset,
    no_flops,
    sized,
)
from inferometer.agent.operators.table.convolution import Window, pair, pair_of, window_of

_GREATEST_SCALE = 30000.0  # within float16
_SAMPLED_RTOL = 1e-4  # frameworks compute the coordinates in float32, whose error grows with the image


def _image(rank: int, values: Values, case: Case) -> tuple[TensorSpec, ...]:
    data = case.shapes["data"]
    if len(data) != rank + 2:
        raise ValueError(f"data has {len(data)} axes; it must have samples, channels and {rank} spatial ones")
    if "kernel" in case.parameters:
        window = window_of(case)
        window.positions(data[2:])
        if any(2 * pad > kernel for pad, kernel in zip(window.pad, window.kernel, strict=True)):
            raise ValueError(f"the padding {window.pad} is more than half of the kernel {window.kernel}")
    if "output" in case.parameters:
        pair_of(case, "output")
    # so far apart that the small steps of a gradient's check change no order
    scale = min(prod(data) / 50, _GREATEST_SCALE) if values is Values.DISTINCT else 1.0
    return (TensorSpec("data", data, values, scale=scale),)


def _pooled(kind: str, rank: int, arrays: Arrays, parameters: Parameters) -> Arrays:
    window = Window.of(parameters, rank)
    positions = window.positions(arrays[0].shape[2:])
    parts = window.parts(window.padded(arrays[0], -np.inf if kind == "max" else 0.0), positions)
    result = next(parts).copy()
    if kind == "lp":
        result **= 2
    for part in parts:
        if kind == "max":
            np.maximum(result, part, out=result)
        else:
            result += part**2 if kind == "lp" else part
    if kind == "avg":
        result /= window.size
    return (np.sqrt(result) if kind == "lp" else result,)


_WHOLE: Mapping[str, Callable[..., Any]] = {"max": np.max, "avg": np.mean, "sum": np.sum}


def _pooled_whole(kind: str, arrays: Arrays, parameters: Parameters) -> Arrays:
    axes = tuple(range(2, arrays[0].ndim))
    return (_WHOLE[kind](arrays[0], axis=axes, keepdims=True),)


def _adaptive(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns the mean of each part, from the floor of its start to the ceiling of its end."""
    data = arrays[0]
    for axis, count in zip((2, 3), pair(parameters, "output"), strict=True):
        size = data.shape[axis]
        data = np.concatenate(
            [
                np.take(data, range(i * size // count, -(-(i + 1) * size // count)), axis).mean(
                    axis, keepdims=True
                )
                for i in range(count)
            ],
            axis,
        )
    return (data,)


def _nearest(arrays: Arrays, parameters: Parameters) -> Arrays:
    scale = int(parameters["scale"])
    return (arrays[0].repeat(scale, 2).repeat(scale, 3),)


def _bilinear(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns bilinear samples between pixel centres; the outermost values continue beyond their centres."""
    data = arrays[0]
    for axis, count in zip((2, 3), pair(parameters, "output"), strict=True):
        size = data.shape[axis]
        at = np.clip((np.arange(count) + 0.5) * size / count - 0.5, 0, size - 1)
        low = np.floor(at).astype(np.int64)
        part = (at - low).reshape([-1 if axis == each else 1 for each in range(4)])
        high = np.take(data, np.minimum(low + 1, size - 1), axis)
        data = np.take(data, low, axis) * (1 - part) + high * part
    return (data,)


def _regions(values: Values, case: Case) -> tuple[TensorSpec, ...]:
    data, rois = case.shapes["data"], case.shapes["rois"]
    if len(data) != 4 or len(rois) != 2 or rois[1] != 5:
        raise ValueError(
            f"data {data} must have 4 axes, and rois {rois} must be rows of an image and two corners"
        )
    pair_of(case, "output")
    reach = min(data[2:]) / case["spatial_scale"]
    boxes = TensorSpec("rois", rois, Values.BOXES, limit=data[0], scale=reach, differentiable=False)
    return (*_image(2, values, case), boxes)


def _roi_pooled(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns the maximum of each part of a region with rounded corners (Girshick, "Fast R-CNN", 2015).

    The parts are computed in float32, as in the original, because their bounds are rounded down and up.
    """
    data, rois = arrays
    rows, columns = pair(parameters, "output")
    scale = np.float32(float(parameters["spatial_scale"]))
    output = np.zeros((len(rois), data.shape[1], rows, columns))
    for roi, result in zip(rois, output, strict=True):
        left, top, right, bottom = (floor(np.float32(corner) * scale + np.float32(0.5)) for corner in roi[1:])
        image = data[int(roi[0])]
        spans = [_spans(top, bottom, rows, image.shape[1]), _spans(left, right, columns, image.shape[2])]
        for i, (y0, y1) in enumerate(spans[0]):
            for j, (x0, x1) in enumerate(spans[1]):
                if y1 > y0 and x1 > x0:
                    result[:, i, j] = image[:, y0:y1, x0:x1].max((1, 2))
    return (output,)


def _spans(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    part = np.float32(max(last - first + 1, 1)) / np.float32(count)
    return [
        (
            min(max(floor(np.float32(i) * part) + first, 0), size),
            min(max(ceil(np.float32(i + 1) * part) + first, 0), size),
        )
        for i in range(count)
    ]


def _roi_aligned(arrays: Arrays, parameters: Parameters) -> Arrays:
    """Returns the mean of bilinear samples in each part of a region (He et al., "Mask R-CNN", 2017).

    Regions are not shifted by half a pixel, and have a size of at least 1.
    """
    data, rois = arrays
    counts = pair(parameters, "output")
    scale, samples = float(parameters["spatial_scale"]), int(parameters["samples"])
    output = np.empty((len(rois), data.shape[1], *counts))
    for roi, result in zip(rois, output, strict=True):
        left, top, right, bottom = roi[1:] * scale
        image = data[int(roi[0])]
        values: Any = 0.0
        for row, of_row in _neighbours(top, bottom, counts[0] * samples, data.shape[2]):
            for column, of_column in _neighbours(left, right, counts[1] * samples, data.shape[3]):
                values = values + image[:, row[:, None], column] * (of_row[:, None] * of_column)
        result[...] = np.reshape(values, (-1, counts[0], samples, counts[1], samples)).mean((2, 4))
    return (output,)


def _neighbours(
    first: float, last: float, count: int, size: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yields the indices before and after each of ``count`` points on an axis, with their weights."""
    at = first + (np.arange(count) + 0.5) * max(last - first, 1.0) / count
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    yield low, (1 - (at - low)) * inside
    yield np.minimum(low + 1, size - 1), (at - low) * inside


def _input_flops(case: Case, outputs: Sequence[Shape]) -> int:
    return prod(case.shapes["data"])


def _bilinear_flops(case: Case, outputs: Sequence[Shape]) -> int:
    samples = int(case["samples"]) if "samples" in case.parameters else 1
    return 4 * prod(outputs[0]) * samples**2


_IMAGES: Mapping[int, Presets] = {
    1: by_preset(
        sized(2, 3, 16), sized(32, 3, 256), sized(32, 64, 4096), sized(32, 3, 10000), sized(1, 4096, 16)
    ),
    2: by_preset(
        sized(2, 3, 8, 9),
        sized(32, 3, 256, 256),
        sized(32, 64, 112, 112),
        sized(32, 3, 10000, 10),
        sized(1, 2048, 7, 7),
    ),
    3: by_preset(
        sized(1, 2, 4, 6, 5), sized(2, 3, 16, 112, 112), sized(4, 64, 8, 56, 56), sized(2, 3, 1000, 10, 10)
    ),
}
_KINDS = {"max": "greatest value", "avg": "mean", "sum": "sum", "lp": "root of the sum of squares"}


def _values(kind: str) -> Values:
    # the root has no gradient where all of a window is 0
    return {"max": Values.DISTINCT, "lp": Values.NONZERO}.get(kind, Values.NORMAL)


def _pooling(kind: str, rank: int) -> Operator:
    sizes = dict(_IMAGES[rank])
    (shapes, _), *_ = sizes[Preset.SMALL]
    pad: dict[str, Any] = {} if kind == "lp" else {"pad": (0,) * rank}  # PyTorch's takes none
    overlapping: dict[str, Any] = {"kernel": (3,) * rank, "stride": (2, *(1,) * (rank - 1))}
    if pad:
        overlapping["pad"] = (1, *(0,) * (rank - 1))
    sizes[Preset.SMALL] = ((shapes, {}), (shapes, overlapping))
    return Operator(
        name=f"{kind}_pool{rank}d",
        category=Category.POOLING,
        summary=f"{_KINDS[kind]} of each window",
        tensors=partial(_image, rank, _values(kind)),
        presets=sizes,
        parameters={"kernel": (2,) * rank, "stride": (2,) * rank, **pad},
        reference=partial(_pooled, kind, rank),
        flops=lambda case, outputs: prod(outputs[0]) * window_of(case).size,
    )


def _whole(kind: str, rank: int) -> Operator:
    return Operator(
        name=f"global_{kind}_pool{rank}d",
        category=Category.POOLING,
        summary=f"{_KINDS[kind]} of each channel",
        tensors=partial(_image, rank, _values(kind)),
        presets=_IMAGES[rank],
        reference=partial(_pooled_whole, kind),
        flops=_input_flops,
        # MXNet adds the values in float32 one after the other: 1.7e-5 with 100,000 values
        rtol=1e-4 if kind == "sum" else 1e-5,
    )


_resized = partial(Operator, category=Category.POOLING, tensors=partial(_image, 2, Values.NORMAL))


def _of_regions(name: str, summary: str, reference: Any, flops: Any, values: Values, **more: Any) -> Operator:
    return Operator(
        name=name,
        category=Category.POOLING,
        summary=summary,
        given=("data", "rois"),
        tensors=partial(_regions, values),
        presets=by_preset(
            ({"data": (2, 3, 12, 14), "rois": (4, 5)}, {"output": (3, 2)}),
            ({"data": (32, 3, 256, 256), "rois": (32, 5)}, {}),
            ({"data": (1, 256, 200, 272), "rois": (512, 5)}, {}),
            ({"data": (1, 2, 2000, 10), "rois": (1000, 5)}, {}),
        ),
        parameters={"output": (7, 7), "spatial_scale": 0.5, **more},
        reference=reference,
        flops=flops,
        rtol=_SAMPLED_RTOL if more else 1e-5,
    )


OPERATORS = (
    *(_pooling(kind, rank) for kind in ("max", "avg") for rank in (1, 2, 3)),
    *(_pooling(kind, rank) for kind in ("sum", "lp") for rank in (1, 2)),
    *(_whole(kind, rank) for kind in ("max", "avg", "sum") for rank in (1, 2)),
    _resized(
        name="adaptive_avg_pool2d",
        summary="mean of equal parts of an image",
        reference=_adaptive,
        flops=_input_flops,
        parameters={"output": (7, 7)},
        presets={**_IMAGES[2], Preset.SMALL: (sized(2, 3, 8, 9, output=(3, 5)),)},
    ),
    _resized(
        name="upsample_nearest",
        summary="each pixel repeated",
        reference=_nearest,
        flops=no_flops,
        parameters={"scale": 2},
        presets=by_preset(
            sized(2, 3, 8, 9, scale=3),
            sized(8, 3, 256, 256),
            sized(32, 3, 256, 256),
            sized(8, 3, 10000, 10),
            sized(1, 2048, 7, 7),
        ),
    ),
    _resized(
        name="resize_bilinear",
        summary="an image of another size, by the neighbours of each point",
        reference=_bilinear,
        flops=_bilinear_flops,
        parameters={"output": (384, 384)},
        presets=by_preset(
            sized(2, 3, 8, 9, output=(13, 6)),
            sized(8, 3, 256, 256),
            sized(32, 3, 256, 256),
            sized(32, 3, 1000, 10, output=(500, 20)),
            sized(1, 2048, 7, 7, output=(14, 14)),
        ),
        rtol=_SAMPLED_RTOL,
    ),
    _of_regions(
        "roi_pool", "greatest value of equal parts of regions", _roi_pooled, no_flops, Values.DISTINCT
    ),
    _of_regions(
        "roi_align",
        "mean of bilinear samples in equal parts of regions",
        _roi_aligned,
        _bilinear_flops,
        Values.NORMAL,
        samples=2,
    ),
)
