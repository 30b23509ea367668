"""Element-wise comparisons and logic in MXNet; their outputs are 0 and 1 in the type of the inputs."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.mxnet.operators.functions import Form
from inferometer.agent.frameworks.mxnet.operators.table.arithmetic import named

FUNCTIONS: Mapping[str, Form] = {
    "equal": named("broadcast_equal"),
    "not_equal": named("broadcast_not_equal"),
    "greater": named("broadcast_greater"),
    "greater_equal": named("broadcast_greater_equal"),
    "less": named("broadcast_lesser"),
    "less_equal": named("broadcast_lesser_equal"),
    "logical_and": named("broadcast_logical_and"),
    "logical_or": named("broadcast_logical_or"),
    "logical_xor": named("broadcast_logical_xor"),
    "logical_not": named("logical_not"),
}
MISSING: Mapping[str, str] = {}
