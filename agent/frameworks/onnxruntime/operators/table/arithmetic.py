"""Element-wise arithmetic in ONNX."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form, single

GRAPHS: Mapping[str, Form] = {
    "add": single("Add", "lhs", "rhs"),
}
MISSING: Mapping[str, str] = {}
