"""Element-wise comparisons and logic in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from inferometer.agent.frameworks.pytorch.operators.functions import Form
from inferometer.agent.frameworks.pytorch.operators.table.arithmetic import function

FUNCTIONS: Mapping[str, Form] = {
    "equal": function("eq"),
    "not_equal": function("ne", "ne", "not_equal"),
    "greater": function("gt", "gt", "greater"),
    "greater_equal": function("ge", "ge", "greater_equal"),
    "less": function("lt", "lt", "less"),
    "less_equal": function("le", "le", "less_equal"),
    "logical_and": function("logical_and"),
    "logical_or": function("logical_or"),
    "logical_xor": function("logical_xor"),
    "logical_not": function("logical_not"),
}
MISSING: Mapping[str, str] = {}
