"""The updates of weights in ONNX: there are none that ONNX Runtime's packages for inference can run."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.onnxruntime.operators.graphs import Form
from inferometer.agent.operators.table.optimizer import OPERATORS

_OTHER = "ONNX defines no such update, and no operator that replaces its input"
_PREVIEW = (
    "ONNX defines {} in ai.onnx.preview.training, of which ONNX Runtime's build for inference has no kernel"
)

GRAPHS: Mapping[str, Form] = {}
MISSING: Mapping[str, str] = {
    **{operator.name: _OTHER for operator in OPERATORS},
    "sgd_mom_update": _PREVIEW.format("Momentum"),
    "nag_mom_update": _PREVIEW.format("Momentum"),
    "adam_update": _PREVIEW.format("Adam"),
    "adagrad_update": _PREVIEW.format("Adagrad"),
}
