"""Layers, and the sampling of images, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional

from inferometer.agent.frameworks.pytorch.operators.functions import Form
from inferometer.agent.operators.operator import Case


def _window(case: Case) -> dict[str, Any]:
    return {"kernel_size": case["kernel"], "stride": case["stride"], "padding": case["pad"]}


FUNCTIONS: Mapping[str, Form] = {
    "dense": Form("torch.nn.functional.linear", lambda _: functional.linear, ("linear", "addmm")),
    "flatten": Form("torch.flatten", lambda _: partial(torch.flatten, start_dim=1)),
    "lambda": Form("torch.unsqueeze", lambda _: partial(torch.unsqueeze, dim=0)),
    "dropout": Form(
        "torch.nn.functional.dropout",
        lambda case: partial(functional.dropout, p=case["p"], training=True),
        ("dropout", "native_dropout"),
    ),
    "embedding": Form("torch.nn.functional.embedding", lambda _: functional.embedding),
    "im2col": Form(
        "torch.nn.functional.unfold", lambda case: partial(functional.unfold, **_window(case)), ("im2col",)
    ),
    "col2im": Form(
        "torch.nn.functional.fold",
        lambda case: partial(functional.fold, output_size=case["output_size"], **_window(case)),
        ("col2im",),
    ),
    "grid_sample": Form(
        "torch.nn.functional.grid_sample",
        lambda _: partial(functional.grid_sample, align_corners=True),
        ("grid_sampler", "grid_sampler_2d"),
    ),
}
MISSING: Mapping[str, str] = {}
