"""Recurrent layers in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from inferometer.agent.frameworks.mxnet.operators.functions import Block, Form, Function
from inferometer.agent.frameworks.mxnet.runtime import mxnet
from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.recurrent import WEIGHTS

_ATTRIBUTES = dict(
    zip(WEIGHTS, ("l0_i2h_weight", "l0_h2h_weight", "l0_i2h_bias", "l0_h2h_bias"), strict=True)
)


class _OutputOnly:
    """A layer that takes its states one by one, and returns the output without the last states."""

    def __call__(self, data: Any, *states: Any) -> Any:
        return super().__call__(data, list(states))[0]  # type: ignore[misc]


class _RNN(_OutputOnly, mxnet.gluon.rnn.RNN):  # type: ignore[misc]
    """``gluon.rnn.RNN``."""


class _LSTM(_OutputOnly, mxnet.gluon.rnn.LSTM):  # type: ignore[misc]
    """``gluon.rnn.LSTM``."""


class _GRU(_OutputOnly, mxnet.gluon.rnn.GRU):  # type: ignore[misc]
    """``gluon.rnn.GRU``."""


def _layer(mode: str, mx: Any, case: Case) -> Function:
    return lambda *tensors: mx.RNN(*tensors, state_size=case["hidden"], num_layers=1, mode=mode)


def _form(mode: str, api: str, block: Any, **more: str) -> Form:
    def make(case: Case) -> Any:
        return block(case["hidden"], input_size=case.shapes["data"][2], **more)

    return Form(
        "RNN",
        partial(_layer, mode),
        gluon=Block(f"gluon.rnn.{api}", make, _ATTRIBUTES),
        packed={"parameters": WEIGHTS},
    )


FUNCTIONS: Mapping[str, Form] = {
    "rnn_tanh": _form("rnn_tanh", "RNN", _RNN, activation="tanh"),
    "rnn_relu": _form("rnn_relu", "RNN", _RNN, activation="relu"),
    "lstm": _form("lstm", "LSTM", _LSTM),
    "gru": _form("gru", "GRU", _GRU),
}
MISSING: Mapping[str, str] = {}
