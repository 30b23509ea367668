"""Changes to evaluations and their measurements, for tests."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from inferometer.evaluators.evaluation import Evaluation


def changed(evaluation: Evaluation[Any], **changes: Any) -> Evaluation[Any]:
    """The evaluation with other fields, of its own or of its measurement."""
    own = {field.name for field in fields(Evaluation)}
    measured = {name: value for name, value in changes.items() if name not in own}
    measurement = replace(changes.pop("measurement", evaluation.measurement), **measured)
    rest = {name: value for name, value in changes.items() if name in own}
    return replace(evaluation, measurement=measurement, **rest)
