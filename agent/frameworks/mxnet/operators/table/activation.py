"""Activation functions in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form
from inferometer.agent.frameworks.mxnet.runtime import mxnet


def _activation(kind: str, *covers: str) -> Form:
    return Form(
        "Activation",
        lambda mx, _: partial(mx.Activation, act_type=kind),
        ("Activation", *covers),
        Block("gluon.nn.Activation", lambda _: mxnet.gluon.nn.Activation(kind)),
    )


def _leaky(kind: str, gluon: Block, slope: str = "") -> Form:
    """The form of ``LeakyReLU`` of a kind; ``slope`` is the table's name of its slope."""

    def make(mx: Any, case: Any) -> Any:
        given = {"slope": case[slope]} if slope else {}
        return partial(mx.LeakyReLU, act_type=kind, **given)

    return Form("LeakyReLU", make, gluon=gluon)


def _along_axis(name: str) -> Form:
    return Form(name, lambda mx, case: partial(getattr(mx, name), axis=case["axis"]))


def _swish(mx: Any, _: Any) -> Any:
    return lambda data: data * mx.sigmoid(data)


FUNCTIONS: Mapping[str, Form] = {
    "relu": _activation("relu", "relu"),
    "leaky_relu": _leaky(
        "leaky",
        Block("gluon.nn.LeakyReLU", lambda case: mxnet.gluon.nn.LeakyReLU(case["slope"])),
        "slope",
    ),
    "prelu": Form(
        "LeakyReLU",
        lambda mx, _: lambda data, alpha: mx.LeakyReLU(data, alpha, act_type="prelu"),
        gluon=Block("gluon.nn.PReLU", lambda _: mxnet.gluon.nn.PReLU(), {"alpha": "alpha"}),
    ),
    "elu": _leaky("elu", Block("gluon.nn.ELU", lambda case: mxnet.gluon.nn.ELU(case["alpha"])), "alpha"),
    "selu": _leaky("selu", Block("gluon.nn.SELU", lambda _: mxnet.gluon.nn.SELU())),
    "sigmoid": _activation("sigmoid", "sigmoid"),
    # MXNet's own slope is 0.2
    "hard_sigmoid": Form("hard_sigmoid", lambda mx, _: partial(mx.hard_sigmoid, alpha=1 / 6, beta=0.5)),
    "tanh": _activation("tanh", "tanh"),
    "softsign": _activation("softsign", "softsign"),
    "softplus": _activation("softrelu"),
    "swish": Form(
        "sigmoid elemwise_mul",
        _swish,
        ("sigmoid", "elemwise_mul"),
        Block("gluon.nn.Swish", lambda _: mxnet.gluon.nn.Swish()),
    ),
    "gelu": _leaky("gelu", Block("gluon.nn.GELU", lambda _: mxnet.gluon.nn.GELU())),
    "softmax": _along_axis("softmax"),
    "log_softmax": _along_axis("log_softmax"),
    "softmin": _along_axis("softmin"),
}
MISSING: Mapping[str, str] = {
    "celu": "MXNet 1.9.1 has no operator for it; the elu of its LeakyReLU scales the result only",
    "log_sigmoid": "MXNet 1.9.1 has no operator for it; MXNet 2 adds it to Activation",
    "mish": "MXNet 1.9.1 has no operator for it; MXNet 2 adds it to Activation",
    "hard_swish": "MXNet 1.9.1 has no operator for it",
    "gelu_tanh": "the gelu of MXNet's LeakyReLU is the exact one",
}
