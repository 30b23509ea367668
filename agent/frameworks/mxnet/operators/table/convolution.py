"""Convolutions in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.convolution import channels_of, groups_of, window_of


def _convolution(mx: Any, case: Case) -> Function:
    return lambda *tensors: mx.Convolution(*tensors, **_arguments(case))


def _deconvolution(mx: Any, case: Case) -> Function:
    return lambda *tensors: mx.Deconvolution(*tensors, **_arguments(case), adj=_added(case))


def _arguments(case: Case) -> dict[str, Any]:
    window = window_of(case)
    return {
        "kernel": window.kernel,
        "stride": window.stride,
        "pad": window.pad,
        "dilate": window.dilate,
        "num_filter": channels_of(case),
        "num_group": groups_of(case),
        "no_bias": not case["bias"],
    }


def _added(case: Case) -> tuple[int, ...]:
    more = case["output_pad"]
    return more if isinstance(more, tuple) else (more,) * len(window_of(case).kernel)


def _block(name: str) -> Block:
    def make(case: Case) -> Any:
        window = window_of(case)
        more = {"output_padding": _added(case)} if "output_pad" in case.parameters else {}
        return getattr(mxnet.gluon.nn, name)(
            channels_of(case),
            window.kernel,
            window.stride,
            window.pad,
            dilation=window.dilate,
            groups=groups_of(case),
            use_bias=case["bias"],
            in_channels=case.shapes["data"][1],  # which a transposed one of several groups cannot infer
            **more,
        )

    return Block(f"gluon.nn.{name}", make, {"weight": "weight", "bias": "bias"})


FUNCTIONS: Mapping[str, Form] = {
    "conv1d": Form("Convolution", _convolution, gluon=_block("Conv1D")),
    "conv2d": Form("Convolution", _convolution, gluon=_block("Conv2D")),
    "conv3d": Form("Convolution", _convolution, gluon=_block("Conv3D")),
    "depthwise_conv2d": Form("Convolution", _convolution, gluon=_block("Conv2D")),
    "conv1d_transpose": Form("Deconvolution", _deconvolution, gluon=_block("Conv1DTranspose")),
    "conv2d_transpose": Form("Deconvolution", _deconvolution, gluon=_block("Conv2DTranspose")),
    "conv3d_transpose": Form("Deconvolution", _deconvolution, gluon=_block("Conv3DTranspose")),
}
MISSING: Mapping[str, str] = {}
