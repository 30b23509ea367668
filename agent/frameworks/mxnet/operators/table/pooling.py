"""Poolings and resizing in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.pooling import pair_of, window_of


def _slid(kind: str, mx: Any, case: Case) -> Function:
    window = window_of(case)
    more = {"p_value": 2} if kind == "lp" else {}
    return lambda data: mx.Pooling(
        data, kernel=window.kernel, stride=window.stride, pad=window.pad, pool_type=kind, **more
    )


def _pooling(kind: str, block: str = "") -> Form:
    def make(case: Case) -> Any:
        window = window_of(case)
        return getattr(mxnet.gluon.nn, block)(window.kernel, window.stride, window.pad)

    gluon = Block(f"gluon.nn.{block}", make) if block else None
    return Form("Pooling", partial(_slid, kind), gluon=gluon)


def _whole(kind: str, rank: int, block: str = "") -> Form:
    gluon = Block(f"gluon.nn.{block}", lambda _: getattr(mxnet.gluon.nn, block)()) if block else None
    return Form(
        "Pooling",
        lambda mx, _: lambda data: mx.Pooling(data, kernel=(1,) * rank, pool_type=kind, global_pool=True),
        gluon=gluon,
    )


def _adaptive(mx: Any, case: Case) -> Function:
    return lambda data: mx.contrib.AdaptiveAvgPooling2D(data, output_size=pair_of(case, "output"))


def _nearest(mx: Any, case: Case) -> Function:
    return lambda data: mx.UpSampling(data, scale=case["scale"], sample_type="nearest")


def _bilinear(mx: Any, case: Case) -> Function:
    height, width = pair_of(case, "output")
    return lambda data: mx.contrib.BilinearResize2D(data, height=height, width=width, align_corners=False)


def _roi_pooled(mx: Any, case: Case) -> Function:
    return lambda data, rois: mx.ROIPooling(
        data, rois, pooled_size=pair_of(case, "output"), spatial_scale=case["spatial_scale"]
    )


def _roi_aligned(mx: Any, case: Case) -> Function:
    return lambda data, rois: mx.contrib.ROIAlign(
        data,
        rois,
        pooled_size=pair_of(case, "output"),
        spatial_scale=case["spatial_scale"],
        sample_ratio=case["samples"],
    )


FUNCTIONS: Mapping[str, Form] = {
    "max_pool1d": _pooling("max", "MaxPool1D"),
    "max_pool2d": _pooling("max", "MaxPool2D"),
    "max_pool3d": _pooling("max", "MaxPool3D"),
    "avg_pool1d": _pooling("avg", "AvgPool1D"),
    "avg_pool2d": _pooling("avg", "AvgPool2D"),
    "avg_pool3d": _pooling("avg", "AvgPool3D"),
    "sum_pool1d": _pooling("sum"),
    "sum_pool2d": _pooling("sum"),
    "lp_pool1d": _pooling("lp"),
    "lp_pool2d": _pooling("lp"),
    "global_max_pool1d": _whole("max", 1, "GlobalMaxPool1D"),
    "global_max_pool2d": _whole("max", 2, "GlobalMaxPool2D"),
    "global_avg_pool1d": _whole("avg", 1, "GlobalAvgPool1D"),
    "global_avg_pool2d": _whole("avg", 2, "GlobalAvgPool2D"),
    "global_sum_pool1d": _whole("sum", 1),
    "global_sum_pool2d": _whole("sum", 2),
    "adaptive_avg_pool2d": Form(
        "contrib.AdaptiveAvgPooling2D", _adaptive, ("_contrib_AdaptiveAvgPooling2D",)
    ),
    "upsample_nearest": Form("UpSampling", _nearest),
    "resize_bilinear": Form("contrib.BilinearResize2D", _bilinear, ("_contrib_BilinearResize2D",)),
    "roi_pool": Form("ROIPooling", _roi_pooled),
    "roi_align": Form("contrib.ROIAlign", _roi_aligned, ("_contrib_ROIAlign",)),
}
MISSING: Mapping[str, str] = {}
