"""Layers, and the sampling of images, in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case


def _window(case: Case) -> dict[str, Any]:
    return {name: case[name] for name in ("kernel", "stride", "pad")}


def _dense(mx: Any, case: Case) -> Any:
    return lambda data, weight, bias: mx.FullyConnected(
        data, weight, bias, num_hidden=case["units"], flatten=False
    )


def _embedding(mx: Any, case: Case) -> Any:
    return lambda data, weight: mx.Embedding(
        data, weight, input_dim=case["input_dim"], output_dim=case["output_dim"]
    )


def _sampler(mx: Any, _: Case) -> Any:
    # its grid has the two coordinates before the rows and columns
    return lambda data, grid: mx.BilinearSampler(data, mx.transpose(grid, (0, 3, 1, 2)))


def _dropout_block(case: Case) -> Any:
    class TrainingDropout(mxnet.gluon.nn.Dropout):  # type: ignore[misc]
        """The block as in training, in passes without a gradient too."""

        def forward(self, data: Any) -> Any:
            with mxnet.autograd.train_mode():
                return super().forward(data)

    return TrainingDropout(case["p"])


FUNCTIONS: Mapping[str, Form] = {
    "dense": Form(
        "FullyConnected",
        _dense,
        gluon=Block(
            "gluon.nn.Dense",
            lambda case: mxnet.gluon.nn.Dense(case["units"], in_units=case.shapes["data"][1]),
            {"weight": "weight", "bias": "bias"},
        ),
    ),
    "flatten": Form(
        "Flatten",
        lambda mx, _: mx.Flatten,
        ("Flatten", "flatten"),
        Block("gluon.nn.Flatten", lambda _: mxnet.gluon.nn.Flatten()),
    ),
    "lambda": Form(
        "expand_dims",
        lambda mx, _: partial(mx.expand_dims, axis=0),
        gluon=Block(
            "gluon.nn.Lambda", lambda _: mxnet.gluon.nn.Lambda(partial(mxnet.nd.expand_dims, axis=0))
        ),
    ),
    "dropout": Form(
        "Dropout",
        lambda mx, case: partial(mx.Dropout, p=case["p"], mode="always"),
        gluon=Block("gluon.nn.Dropout", _dropout_block),
    ),
    "embedding": Form(
        "Embedding",
        _embedding,
        gluon=Block(
            "gluon.nn.Embedding",
            lambda case: mxnet.gluon.nn.Embedding(case["input_dim"], case["output_dim"]),
            {"weight": "weight"},
        ),
    ),
    "im2col": Form("im2col", lambda mx, case: partial(mx.im2col, **_window(case))),
    "col2im": Form(
        "col2im",
        lambda mx, case: partial(mx.col2im, output_size=case["output_size"], **_window(case)),
    ),
    "grid_sample": Form("transpose BilinearSampler", _sampler, ("BilinearSampler",)),
}
MISSING: Mapping[str, str] = {}
