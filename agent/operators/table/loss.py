"""Losses, each the mean, or the sum, over all axes but the first: one value for each sample of the batch.

Floating-point operations are not stated beyond one for each element of the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    NOTHING,
    Arrays,
    Case,
    Category,
    Operator,
    Parameters,
    Preset,
    Sizes,
    TensorSpec,
    Values,
)
from inferometer.agent.operators.table.activation import log_softmax

_Given: TypeAlias = Mapping[str, Any]
_Function: TypeAlias = Callable[[NDArray[Any], NDArray[Any], _Given], NDArray[Any]]

_PRESETS: Mapping[Preset, tuple[Sizes, ...]] = {
    Preset.SMALL: (({"pred": (4, 10, 1)}, {}),),
    Preset.NORMAL: (({"pred": (32, 1000, 1)}, {}),),
    Preset.LARGE: (({"pred": (512, 1000, 1)}, {}),),
    Preset.SKEWED: (({"pred": (10000, 10, 1)}, {}), ({"pred": (1, 100000, 1)}, {})),
}


def _loss(
    name: str,
    summary: str,
    function: _Function,
    *,
    pred: Values = Values.NORMAL,
    label: Values = Values.NORMAL,
    parameters: Parameters = NOTHING,
    total: bool = False,
) -> Operator:
    """Returns a loss of predictions and labels of one shape, by the function of each element."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        shape = case.shapes["pred"]
        return TensorSpec("pred", shape, pred), TensorSpec("label", shape, label, differentiable=False)

    def reference(arrays: Arrays, given: Parameters) -> Arrays:
        each = function(arrays[0], arrays[1], given)
        each = each.reshape(len(each), -1)
        return (each.sum(1) if total else each.mean(1),)

    return Operator(
        name=name,
        category=Category.LOSS,
        summary=summary,
        given=("pred",),
        tensors=tensors,
        presets=_PRESETS,
        parameters=parameters,
        reference=reference,
        flops=lambda case, _: prod(case.shapes["pred"]),
    )


def _smooth(difference: NDArray[Any], beta: float) -> NDArray[Any]:
    size = np.abs(difference)
    return np.where(size < beta, size**2 / (2 * beta), size - beta / 2)


def _ctc_tensors(case: Case) -> tuple[TensorSpec, ...]:
    steps, batch, alphabet = case.shapes["pred"]
    length = int(case["label_length"])
    if 2 * length + 1 > steps:
        raise ValueError("label_length must be less than half of the steps")
    return (
        TensorSpec("pred", (steps, batch, alphabet)),
        TensorSpec("label", (batch, length), Values.INDICES, limit=alphabet - 1, differentiable=False),
    )


def _ctc(arrays: Arrays, _: Parameters) -> Arrays:
    """Returns the forward variables of Graves et al. (2006), equations 6 and 7, as logarithms."""
    logs, label = log_softmax(arrays[0], 2), arrays[1]
    batch, blank = len(label), logs.shape[2] - 1
    extended = np.full((batch, 2 * label.shape[1] + 1), blank)
    extended[:, 1::2] = label
    rows = np.arange(batch)[:, None]
    skips = np.zeros(extended.shape, bool)
    skips[:, 2:] = (extended[:, 2:] != blank) & (extended[:, 2:] != extended[:, :-2])
    alpha = np.full(extended.shape, -np.inf)
    alpha[:, :2] = logs[0][rows, extended[:, :2]]
    for step in logs[1:]:
        before = np.pad(alpha, ((0, 0), (2, 0)), constant_values=-np.inf)
        moved = np.logaddexp(alpha, before[:, 1:-1])
        alpha = np.logaddexp(moved, np.where(skips, before[:, :-2], -np.inf)) + step[rows, extended]
    return (-np.logaddexp(alpha[:, -1], alpha[:, -2]),)


OPERATORS = (
    # the two with a kink have predictions that keep away from it
    _loss(
        "l1_loss",
        "|pred - label|",
        lambda pred, label, _: np.abs(pred - label),
        pred=Values.UNIT,
        label=Values.SIGNS,
    ),
    _loss("l2_loss", "(pred - label)² / 2", lambda pred, label, _: (pred - label) ** 2 / 2),
    _loss(
        "sigmoid_bce",
        "the binary cross-entropy of the sigmoid of pred",
        lambda pred, label, _: np.logaddexp(0, pred) - pred * label,
        label=Values.BOOLEAN,
    ),
    _loss(
        "softmax_ce",
        "the cross-entropy of the softmax of pred along axis 1, with a probability of each class as label",
        lambda pred, label, _: -(log_softmax(pred, 1) * label).sum(1),
        label=Values.PROBABILITY,
    ),
    _loss(
        "smooth_l1",
        "a parabola of |pred - label| below beta, and a line of slope 1 above",
        lambda pred, label, given: _smooth(pred - label, given["beta"]),
        parameters={"beta": 1.0},
    ),
    _loss(
        "huber_loss",
        "a parabola of |pred - label| below delta, and a line of slope delta above",
        lambda pred, label, given: given["delta"] * _smooth(pred - label, given["delta"]),
        parameters={"delta": 1.0},
    ),
    _loss(
        "hinge_loss",
        "max(margin - pred · label, 0) with labels -1 and 1",
        lambda pred, label, given: np.maximum(given["margin"] - pred * label, 0),
        pred=Values.ABOVE_ONE,
        label=Values.SIGNS,
        parameters={"margin": 1.0},
    ),
    _loss(
        "kl_div",
        "the sum of label · (log(label) - pred), where pred are logarithms of probabilities",
        lambda pred, label, _: label * (np.log(label) - pred),
        label=Values.PROBABILITY,
        total=True,
    ),
    Operator(
        name="ctc_loss",
        category=Category.LOSS,
        summary="temporal classification (CTC) of pred (steps, batch, alphabet), the last letter blank",
        given=("pred",),
        tensors=_ctc_tensors,
        presets={
            Preset.SMALL: (({"pred": (12, 3, 6)}, {"label_length": 4}),),
            Preset.NORMAL: (({"pred": (200, 32, 32)}, {}),),
            Preset.LARGE: (({"pred": (800, 64, 32)}, {"label_length": 50}),),
            Preset.SKEWED: (({"pred": (2000, 1, 10)}, {"label_length": 100}),),
        },
        parameters={"label_length": 20},
        reference=_ctc,
        # sums of logarithms over many steps
        rtol=1e-4,
    ),
)
