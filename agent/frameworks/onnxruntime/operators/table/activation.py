"""Activation functions in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single


def _with(kind: str, **renamed: str) -> Form:
    """The form of an operator with attributes; ``renamed`` has the table's name of each."""
    return Form(
        kind,
        lambda case, _: Graph(
            [node(kind, "data", **{ours: case[theirs] for ours, theirs in renamed.items()})]
        ),
    )


GRAPHS: Mapping[str, Form] = {
    "relu": single("Relu", "data"),
    "leaky_relu": _with("LeakyRelu", alpha="slope"),
    "prelu": single("PRelu", "data", "alpha"),
    "elu": _with("Elu", alpha="alpha"),
    "selu": single("Selu", "data"),
    "celu": _with("Celu", alpha="alpha"),
    "sigmoid": single("Sigmoid", "data"),
    # ONNX has no logarithm of the sigmoid; the logarithm of Sigmoid would lose the small values
    "log_sigmoid": Form(
        "Neg Softplus",
        lambda *_: Graph(
            [
                node("Neg", "data", output="negative"),
                node("Softplus", "negative", output="positive"),
                node("Neg", "positive"),
            ]
        ),
    ),
    "hard_sigmoid": single("HardSigmoid", "data", alpha=1 / 6, beta=0.5),
    "tanh": single("Tanh", "data"),
    "softsign": single("Softsign", "data"),
    "softplus": single("Softplus", "data"),
    # ONNX's own Swish has no kernel; this one of ONNX Runtime is data · sigmoid(alpha · data)
    "swish": single("QuickGelu", "data", alpha=1.0, domain="com.microsoft"),
    "hard_swish": single("HardSwish", "data"),
    "mish": single("Mish", "data"),
    "gelu": single("Gelu", "data"),
    "gelu_tanh": single("Gelu", "data", approximate="tanh"),
    "softmax": _with("Softmax", axis="axis"),
    "log_softmax": _with("LogSoftmax", axis="axis"),
    # ONNX has no single operator
    "softmin": Form(
        "Neg Softmax",
        lambda case, _: Graph(
            [node("Neg", "data", output="negative"), node("Softmax", "negative", axis=case["axis"])]
        ),
    ),
}
MISSING: Mapping[str, str] = {}
