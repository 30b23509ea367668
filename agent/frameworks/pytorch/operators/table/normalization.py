"""Normalizations in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function
from inferometer.agent.operators.operator import Case

_BATCH = ("batch_norm", "native_batch_norm", "native_batch_norm_backward")


def _given(case: Case) -> Function:
    return lambda data, gamma, beta, mean, variance: F.batch_norm(
        data, mean, variance, gamma, beta, training=False, eps=case["epsilon"]
    )


def _trained(case: Case) -> Function:
    return lambda data, gamma, beta, mean, variance: F.batch_norm(
        data,
        mean,
        variance,
        gamma,
        beta,
        training=True,
        momentum=case["momentum"],
        eps=case["epsilon"],
    )


def _layer(case: Case) -> Function:
    shape = case.shapes["data"][-1:]
    return lambda data, gamma, beta: F.layer_norm(data, shape, gamma, beta, case["epsilon"])


def _instance(case: Case) -> Function:
    return lambda data, gamma, beta: F.instance_norm(data, weight=gamma, bias=beta, eps=case["epsilon"])


def _group(case: Case) -> Function:
    return lambda data, gamma, beta: F.group_norm(data, case["groups"], gamma, beta, case["epsilon"])


def _root_mean_square(case: Case) -> Function:
    shape = case.shapes["data"][-1:]
    return lambda data, gamma: F.rms_norm(data, shape, gamma, case["epsilon"])


def _local_response(case: Case) -> Function:
    arguments: tuple[Any, ...] = (case["size"], case["alpha"], case["beta"], case["bias"])
    return lambda data: F.local_response_norm(data, *arguments)


FUNCTIONS: Mapping[str, Form] = {
    "batch_norm": Form("torch.nn.functional.batch_norm", _given, _BATCH),
    "batch_norm_training": Form("torch.nn.functional.batch_norm", _trained, _BATCH),
    "layer_norm": Form(
        "torch.nn.functional.layer_norm",
        _layer,
        ("layer_norm", "native_layer_norm", "native_layer_norm_backward"),
    ),
    "instance_norm": Form("torch.nn.functional.instance_norm", _instance),
    "group_norm": Form(
        "torch.nn.functional.group_norm",
        _group,
        ("group_norm", "native_group_norm", "native_group_norm_backward"),
    ),
    "rms_norm": Form("torch.nn.functional.rms_norm", _root_mean_square),
    "l2_normalization": Form("torch.nn.functional.normalize", lambda _: F.normalize),
    "lrn": Form("torch.nn.functional.local_response_norm", _local_response),
}
MISSING: Mapping[str, str] = {}
