"""Poolings and resizing in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.pooling import pair_of, window_of


def _slid(function: Any, more: Mapping[str, Any], case: Case) -> Function:
    window = window_of(case)
    return partial(function, kernel_size=window.kernel, stride=window.stride, padding=window.pad, **more)


def _pooling(name: str, **more: Any) -> Form:
    return Form(
        f"torch.nn.functional.{name}", partial(_slid, getattr(F, name), more), (name, f"{name}_with_indices")
    )


def _whole(name: str, *covers: str) -> Form:
    return Form(
        f"torch.nn.functional.{name}", lambda _: partial(getattr(F, name), output_size=1), (name, *covers)
    )


def _summed(axes: tuple[int, ...]) -> Form:
    return Form("torch.sum", lambda _: lambda data: torch.sum(data, axes, keepdim=True), ("sum",))


def _roots(function: Any, case: Case) -> Function:
    window = window_of(case)
    one = len(window.kernel) == 1
    kernel: Any = window.kernel[0] if one else window.kernel
    return partial(
        function, norm_type=2, kernel_size=kernel, stride=window.stride[0] if one else window.stride
    )


def _summed_row(case: Case) -> Function:
    window = window_of(case)
    arguments = (1, *window.kernel), (1, *window.stride), (0, *window.pad)
    return lambda data: F.avg_pool2d(data.unsqueeze(2), *arguments, divisor_override=1).squeeze(2)


_AVERAGE = "torch.nn.functional.avg_pool2d"
_RESIZE = "torch.nn.functional.interpolate"
_NO_REGIONS = "PyTorch has no regions of interest; they are in torchvision"

FUNCTIONS: Mapping[str, Form] = {
    "max_pool1d": _pooling("max_pool1d"),
    "max_pool2d": _pooling("max_pool2d"),
    "max_pool3d": _pooling("max_pool3d"),
    "avg_pool1d": _pooling("avg_pool1d"),
    "avg_pool2d": _pooling("avg_pool2d"),
    "avg_pool3d": _pooling("avg_pool3d"),
    "sum_pool1d": Form(_AVERAGE, _summed_row, ("avg_pool2d",)),
    "sum_pool2d": Form(_AVERAGE, partial(_slid, F.avg_pool2d, {"divisor_override": 1}), ("avg_pool2d",)),
    "lp_pool1d": Form("torch.nn.functional.lp_pool1d", partial(_roots, F.lp_pool1d), ("avg_pool1d",)),
    "lp_pool2d": Form("torch.nn.functional.lp_pool2d", partial(_roots, F.lp_pool2d), ("avg_pool2d",)),
    "global_max_pool1d": _whole("adaptive_max_pool1d"),
    "global_max_pool2d": _whole("adaptive_max_pool2d"),
    "global_avg_pool1d": _whole("adaptive_avg_pool1d"),
    "global_avg_pool2d": _whole("adaptive_avg_pool2d"),
    "global_sum_pool1d": _summed((2,)),
    "global_sum_pool2d": _summed((2, 3)),
    "adaptive_avg_pool2d": Form(
        "torch.nn.functional.adaptive_avg_pool2d",
        lambda case: partial(F.adaptive_avg_pool2d, output_size=pair_of(case, "output")),
        ("adaptive_avg_pool2d",),
    ),
    "upsample_nearest": Form(
        _RESIZE,
        lambda case: partial(F.interpolate, scale_factor=case["scale"], mode="nearest"),
        ("upsample_nearest2d",),
    ),
    "resize_bilinear": Form(
        _RESIZE,
        lambda case: partial(
            F.interpolate, size=pair_of(case, "output"), mode="bilinear", align_corners=False
        ),
        ("upsample_bilinear2d",),
    ),
}
MISSING: Mapping[str, str] = {"roi_pool": _NO_REGIONS, "roi_align": _NO_REGIONS}
