"""Element-wise comparisons and logic in ONNX, whose logical operators take booleans only."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, Graph, node, single


def _logical(kind: str, *inputs: str) -> Form:
    """Returns the form of an operator after casts of its inputs."""
    boolean = onnx.TensorProto.BOOL
    casts = [node("Cast", name, output=f"{name}_is_true", to=boolean) for name in inputs]
    last = node(kind, *(f"{name}_is_true" for name in inputs))
    return Form(f"Cast {kind}", lambda _case, _dtype: Graph([*casts, last]))


GRAPHS: Mapping[str, Form] = {
    "equal": single("Equal", "lhs", "rhs"),
    "not_equal": Form(
        "Equal Not",
        lambda _case, _dtype: Graph([node("Equal", "lhs", "rhs", output="equal"), node("Not", "equal")]),
    ),
    "greater": single("Greater", "lhs", "rhs"),
    "greater_equal": single("GreaterOrEqual", "lhs", "rhs"),
    "less": single("Less", "lhs", "rhs"),
    "less_equal": single("LessOrEqual", "lhs", "rhs"),
    "logical_and": _logical("And", "lhs", "rhs"),
    "logical_or": _logical("Or", "lhs", "rhs"),
    "logical_xor": _logical("Xor", "lhs", "rhs"),
    "logical_not": _logical("Not", "data"),
}
MISSING: Mapping[str, str] = {}
