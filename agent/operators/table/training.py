"""Losses, and layers that end a network with a loss.

A loss is the mean or the sum over all axes but the first: one value for each sample of the batch. Only one
floating-point operation is counted for each element of the predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
    TensorSpec,
    Values,
    by_preset,
    sized,
)
from inferometer.agent.operators.table.layers import log_softmax, sigmoid

_Function: TypeAlias = Callable[[NDArray[Any], NDArray[Any], Parameters], NDArray[Any]]

_SHAPES = ((4, 10, 1), (32, 1000, 1), (512, 1000, 1), (10000, 10, 1), (1, 100000, 1))
_PREDICTIONS = by_preset(*(({"pred": shape}, {}) for shape in _SHAPES))


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
    """Returns a loss of predictions and labels of the same shape, from its element-wise function."""

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
        presets=_PREDICTIONS,
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
    """Returns the loss from the log forward variables of Graves et al. (2006), equations 6 and 7."""
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


def _class_losses(data: NDArray[Any], label: NDArray[Any]) -> NDArray[Any]:
    losses: NDArray[Any] = -log_softmax(data, 1)[np.arange(len(label)), label]
    return losses


def _hinges(data: NDArray[Any], label: NDArray[Any]) -> NDArray[Any]:
    signs = np.where(np.arange(data.shape[1]) == label[:, None], 1, -1)
    hinges: NDArray[Any] = np.maximum(1 - signs * data, 0) ** 2
    return hinges


# MXNet has labels in the type of data, of which float16 counts to 2048
_ROWS = by_preset(sized(8, 10), sized(1024, 1024), sized(8192, 2048), sized(2000, 10), sized(1, 2000))


def _end(
    name: str,
    summary: str,
    loss: Callable[..., Any],
    label: Values | None = None,
    output: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> Operator:
    """Returns a layer that ends a network: the ``output`` of data, with the gradient of the ``loss``.

    Labels have the shape of data, or are classes of its rows. The loss is summed over the rows.
    """

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        rows, columns = shape = case.shapes["data"]
        drawn = (rows,) if label is Values.INDICES else shape
        labels = [TensorSpec("label", drawn, label, columns, differentiable=False)] if label else []
        return (TensorSpec("data", shape), *labels)

    return Operator(
        name=name,
        category=Category.LOSS,
        summary=summary,
        tensors=tensors,
        presets=_ROWS,
        reference=lambda arrays, _: (output(arrays[0]),),
        loss=lambda arrays, _: float(np.sum(loss(*arrays))),
        rtol=5e-5,
    )


_ENDS = (
    replace(
        _end(
            "softmax_cross_entropy", "the cross-entropy of a softmax, summed", _class_losses, Values.INDICES
        ),
        reference=lambda arrays, _: (np.sum(_class_losses(*arrays)),),
        loss=None,
    ),
    _end(
        "softmax_output",
        "softmax; its gradient is that of the cross-entropy with label",
        _class_losses,
        Values.INDICES,
        lambda data: np.exp(log_softmax(data, 1)),
    ),
    _end("svm_output", "data; its gradient is that of the squared hinge loss", _hinges, Values.INDICES),
    _end(
        "linear_regression_output",
        "data; its gradient is that of (data - label)² / 2",
        lambda data, label: ((data - label) ** 2 / 2).mean(1),
        Values.NORMAL,
    ),
    _end(
        "logistic_regression_output",
        "sigmoid; its gradient is that of the binary cross-entropy",
        lambda data, label: (np.logaddexp(0, data) - data * label).mean(1),
        Values.BOOLEAN,
        sigmoid,
    ),
    _end(
        "mae_regression_output",
        "data; its gradient is that of |data - label|",
        lambda data, label: np.abs(data - label).mean(1),
        Values.NORMAL,
    ),
    _end("make_loss", "data; its gradient is 1", lambda data: data),
    _end("stop_gradient", "data; its gradient is 0", lambda data: 0.0),
)

OPERATORS = (
    *_ENDS,
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
        presets=by_preset(
            ({"pred": (12, 3, 6)}, {"label_length": 4}),
            ({"pred": (200, 32, 32)}, {}),
            ({"pred": (800, 64, 32)}, {"label_length": 50}),
            ({"pred": (2000, 1, 10)}, {"label_length": 100}),
        ),
        parameters={"label_length": 20},
        reference=_ctc,
        # sums of logarithms over many steps
        rtol=1e-4,
    ),
)
