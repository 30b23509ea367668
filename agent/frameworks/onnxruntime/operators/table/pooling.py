"""Poolings and resizing in ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.pooling import pair_of, window_of


def _slid(kind: str, more: Mapping[str, Any], case: Case, output: str = "output") -> Any:
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
    return Form(kind, lambda case, _: Graph([_slid(kind, more, case)]))


def _summed(case: Case, dtype: np.dtype[Any]) -> Graph:
    size = np.array(window_of(case).size, dtype)
    return Graph(
        [_slid("AveragePool", {"count_include_pad": 1}, case, "mean"), node("Mul", "mean", "size")],
        constants={"size": size},
    )


def _summed_whole(axes: tuple[int, ...], case: Case, dtype: np.dtype[Any]) -> Graph:
    return Graph([node("ReduceSum", "data", "axes", keepdims=1)], constants={"axes": np.array(axes)})


def _resize(**more: Any) -> Any:
    return node("Resize", "data", "", *more.pop("sizes"), **more)


def _nearest(case: Case, dtype: np.dtype[Any]) -> Graph:
    scales = np.array([1, 1, case["scale"], case["scale"]], np.float32)
    nearest = _resize(
        sizes=["scales"],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return Graph([nearest], constants={"scales": scales})


def _bilinear(case: Case, dtype: np.dtype[Any]) -> Graph:
    sizes = np.array([*case.shapes["data"][:2], *pair_of(case, "output")])
    return Graph([_resize(sizes=["", "sizes"], mode="linear")], constants={"sizes": sizes})


def _roi_pooled(case: Case, dtype: np.dtype[Any]) -> Graph:
    return Graph(
        [
            node(
                "MaxRoiPool",
                "data",
                "rois",
                pooled_shape=pair_of(case, "output"),
                spatial_scale=case["spatial_scale"],
            )
        ]
    )


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


def _split(arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    rois = arrays["rois"]
    return {
        "data": arrays["data"],
        "boxes": np.ascontiguousarray(rois[:, 1:]),
        "images": rois[:, 0].astype(np.int64),
    }


_AVERAGE = _pooling("AveragePool", count_include_pad=1)
_SUM = Form("AveragePool Mul", _summed)  # ONNX has no pooling by sums

GRAPHS: Mapping[str, Form] = {
    "max_pool1d": _pooling("MaxPool"),
    "max_pool2d": _pooling("MaxPool"),
    "max_pool3d": _pooling("MaxPool"),
    "avg_pool1d": _AVERAGE,
    "avg_pool2d": _AVERAGE,
    "avg_pool3d": _AVERAGE,
    "sum_pool1d": _SUM,
    "sum_pool2d": _SUM,
    "lp_pool1d": _pooling("LpPool", p=2),
    "lp_pool2d": _pooling("LpPool", p=2),
    "global_max_pool1d": single("GlobalMaxPool", "data"),
    "global_max_pool2d": single("GlobalMaxPool", "data"),
    "global_avg_pool1d": single("GlobalAveragePool", "data"),
    "global_avg_pool2d": single("GlobalAveragePool", "data"),
    "global_sum_pool1d": Form("ReduceSum", partial(_summed_whole, (2,))),
    "global_sum_pool2d": Form("ReduceSum", partial(_summed_whole, (2, 3))),
    "upsample_nearest": Form("Resize", _nearest),
    "resize_bilinear": Form("Resize", _bilinear),
    "roi_pool": Form("MaxRoiPool", _roi_pooled),
    "roi_align": Form("RoiAlign", _roi_aligned, _split),
}
MISSING: Mapping[str, str] = {
    "adaptive_avg_pool2d": "ONNX pools by windows of one size, and these have several",
}
