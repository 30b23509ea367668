"""Normalizations in MXNet.

In training, ``BatchNorm`` adds the squares of a channel in float32, one after the other: with two million
elements a channel its variance is off by 1e-3 to 3e-3, more with fewer threads, with and without oneDNN.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case

_PARAMETERS = {"gamma": "gamma", "beta": "beta", "mean": "running_mean", "variance": "running_var"}


def _momentum(case: Case) -> float:
    # MXNet's is the share of the old value
    return 1 - float(case.parameters.get("momentum", 0.1))  # type: ignore[arg-type]


def _batch(given: bool, mx: Any, case: Case) -> Function:
    return lambda *tensors: mx.BatchNorm(
        *tensors,
        eps=case["epsilon"],
        momentum=_momentum(case),
        fix_gamma=False,
        use_global_stats=given,
    )


def _block(given: bool) -> Block:
    def make(case: Case) -> Any:
        return mxnet.gluon.nn.BatchNorm(
            epsilon=case["epsilon"],
            momentum=_momentum(case),
            use_global_stats=given,
            in_channels=case.shapes["data"][1],
        )

    return Block("gluon.nn.BatchNorm", make, _PARAMETERS)


def _normalized(name: str, mx: Any, case: Case) -> Function:
    return lambda data, gamma, beta: getattr(mx, name)(data, gamma, beta, eps=case["epsilon"])


def _local_response(mx: Any, case: Case) -> Function:
    return lambda data: mx.LRN(
        data, nsize=case["size"], alpha=case["alpha"], beta=case["beta"], knorm=case["bias"]
    )


FUNCTIONS: Mapping[str, Form] = {
    "batch_norm": Form("BatchNorm", partial(_batch, True), gluon=_block(True)),
    "batch_norm_training": Form("BatchNorm", partial(_batch, False), gluon=_block(False), training=True),
    "layer_norm": Form("LayerNorm", partial(_normalized, "LayerNorm")),
    "instance_norm": Form("InstanceNorm", partial(_normalized, "InstanceNorm")),
    "l2_normalization": Form(
        "L2Normalization", lambda mx, _: lambda data: mx.L2Normalization(data, mode="channel")
    ),
    "lrn": Form("LRN", _local_response),
}
MISSING: Mapping[str, str] = {
    "group_norm": "MXNet's GroupNorm has one scale and shift for each group, not for each channel",
    "rms_norm": "MXNet has no normalization by the root mean square",
}
