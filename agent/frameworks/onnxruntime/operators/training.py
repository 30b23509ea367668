"""Losses in ONNX, and why weight updates are not supported.

A loss is a sequence of ONNX operators; ONNX has a loss operator only for class labels. ONNX Runtime's
inference packages cannot run updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from inferometer.agent.frameworks.onnxruntime.operators.runner import Form, Graph, node, single
from inferometer.agent.operators.operator import Case, Category, operators

_Step: TypeAlias = tuple[str, ...]
"""An operator, followed by its inputs and its output."""


def _loss(
    *steps: _Step, scalars: Callable[[Case], Mapping[str, float]] = lambda _: {}, over: str = "ReduceMean"
) -> Form:
    """Returns the form of a loss whose steps end with the output ``each``, the losses of the elements.

    ``scalars`` returns the constants, which get the type of the inputs; ``over`` reduces a sample's losses.
    """

    def make(case: Case, dtype: np.dtype[Any]) -> Graph:
        nodes = [node(kind, *inputs, output=output) for kind, *inputs, output in steps]
        nodes.append(node(over, "each", "axes", keepdims=0))
        constants: dict[str, Any] = {name: np.array(value, dtype) for name, value in scalars(case).items()}
        constants["axes"] = range(1, len(case.shapes["pred"]))
        return Graph(nodes, constants=constants)

    return Form(" ".join(dict.fromkeys([*(kind for kind, *_ in steps), over])), make)


def _softmax_ce(case: Case, _: np.dtype[Any]) -> Graph:
    rest = range(1, len(case.shapes["pred"]) - 1)
    return Graph(
        [
            node("LogSoftmax", "pred", output="logs", axis=1),
            node("Mul", "logs", "label", output="products"),
            node("ReduceSum", "products", "classes", output="sums", keepdims=0),
            node("Neg", "sums", output="each"),
            node("ReduceMean", "each", "rest", keepdims=0, noop_with_empty_axes=1),
        ],
        constants={"classes": [1], "rest": rest},
    )


_DIFFERENCE = ("Sub", "pred", "label", "difference")
_SMOOTH: tuple[_Step, ...] = (
    _DIFFERENCE,
    ("Abs", "difference", "size"),
    ("Mul", "size", "size", "square"),
    ("Mul", "square", "curve", "parabola"),
    ("Mul", "size", "slope", "rising"),
    ("Sub", "rising", "offset", "line"),
    ("Less", "size", "bound", "below"),
    ("Where", "below", "parabola", "line", "each"),
)


_OTHER = "ONNX defines no such update, and no operator that replaces its input"
_PREVIEW = (
    "ONNX defines {} in ai.onnx.preview.training, of which ONNX Runtime's build for inference has no kernel"
)


FORMS: Mapping[str, Form] = {
    "l1_loss": _loss(_DIFFERENCE, ("Abs", "difference", "each")),
    "l2_loss": _loss(
        _DIFFERENCE,
        ("Mul", "difference", "difference", "square"),
        ("Mul", "square", "half", "each"),
        scalars=lambda _: {"half": 0.5},
    ),
    "sigmoid_bce": _loss(
        ("Softplus", "pred", "positive"),
        ("Mul", "pred", "label", "product"),
        ("Sub", "positive", "product", "each"),
    ),
    "softmax_ce": Form("LogSoftmax Mul ReduceSum Neg ReduceMean", _softmax_ce),
    "softmax_cross_entropy": single("SoftmaxCrossEntropyLoss", "data", "label", reduction="sum"),
    "smooth_l1": _loss(
        *_SMOOTH,
        scalars=lambda case: {
            "curve": 0.5 / case["beta"],
            "slope": 1.0,
            "offset": case["beta"] / 2,
            "bound": case["beta"],
        },
    ),
    "huber_loss": _loss(
        *_SMOOTH,
        scalars=lambda case: {
            "curve": 0.5,
            "slope": case["delta"],
            "offset": case["delta"] ** 2 / 2,
            "bound": case["delta"],
        },
    ),
    "hinge_loss": _loss(
        ("Mul", "pred", "label", "product"),
        ("Sub", "margin", "product", "difference"),
        ("Relu", "difference", "each"),
        scalars=lambda case: {"margin": case["margin"]},
    ),
    "kl_div": _loss(
        ("Log", "label", "logs"),
        ("Sub", "logs", "pred", "difference"),
        ("Mul", "label", "difference", "each"),
        over="ReduceSum",
    ),
}


MISSING: Mapping[str, str] = {
    "ctc_loss": "ONNX defines no connectionist temporal classification",
    **{name: _OTHER for name, each in operators().items() if each.category is Category.OPTIMIZER},
    "sgd_mom_update": _PREVIEW.format("Momentum"),
    "nag_mom_update": _PREVIEW.format("Momentum"),
    "adam_update": _PREVIEW.format("Adam"),
    "adagrad_update": _PREVIEW.format("Adagrad"),
}
