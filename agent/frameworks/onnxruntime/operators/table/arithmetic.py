"""Element-wise arithmetic in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, single

_IN_PLACE = "ONNX has no operator that replaces its input"

GRAPHS: Mapping[str, Form] = {
    "add": single("Add", "lhs", "rhs"),
    "subtract": single("Sub", "lhs", "rhs"),
    "multiply": single("Mul", "lhs", "rhs"),
    "divide": single("Div", "lhs", "rhs"),
    "fmod": single("Mod", "lhs", "rhs", fmod=1),
    "power": single("Pow", "lhs", "rhs"),
    "maximum": single("Max", "lhs", "rhs"),
    "minimum": single("Min", "lhs", "rhs"),
    "broadcast_add": single("Add", "lhs", "rhs"),
    "broadcast_subtract": single("Sub", "lhs", "rhs"),
    "broadcast_multiply": single("Mul", "lhs", "rhs"),
    "broadcast_divide": single("Div", "lhs", "rhs"),
    "add_n": single("Sum", "first", "second", "third"),
    "negative": single("Neg", "data"),
}
MISSING: Mapping[str, str] = {
    "modulo": "ONNX's Mod of floating-point numbers has the sign of the dividend, as fmod has",
    "hypot": "ONNX has no hypot; the root of the sum of squares overflows where hypot does not",
    **dict.fromkeys(("iadd", "isub", "imul", "idiv", "imod"), _IN_PLACE),
}
