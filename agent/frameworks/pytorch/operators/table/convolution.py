"""Convolutions in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.convolution import groups_of, window_of

_ATEN = ("convolution", "convolution_backward", "mkldnn_convolution", "mkldnn_convolution_backward")


def _slid(function: Any, case: Case) -> Function:
    window = window_of(case)
    more = {"output_padding": case["output_pad"]} if "output_pad" in case.parameters else {}
    return partial(
        function,
        stride=window.stride,
        padding=window.pad,
        dilation=window.dilate,
        groups=groups_of(case),
        **more,
    )


def _form(name: str) -> Form:
    return Form(f"torch.nn.functional.{name}", partial(_slid, getattr(F, name)), (name, *_ATEN))


FUNCTIONS: Mapping[str, Form] = {
    "conv1d": _form("conv1d"),
    "conv2d": _form("conv2d"),
    "conv3d": _form("conv3d"),
    "depthwise_conv2d": _form("conv2d"),
    "conv1d_transpose": _form("conv_transpose1d"),
    "conv2d_transpose": _form("conv_transpose2d"),
    "conv3d_transpose": _form("conv_transpose3d"),
}
MISSING: Mapping[str, str] = {}
