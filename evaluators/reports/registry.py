"""The reports by name. A report is imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from inferometer.evaluators.reports.base import Report
from inferometer.manifests.errors import IMPORT_FAILURES, ConfigurationError, one_line, suggestion

ENTRY_POINTS = "inferometer.reports"
REPORTS: Mapping[str, str] = MappingProxyType(
    {
        "latency": "inferometer.evaluators.kinds.batches.report:LatencyReport",
        "accuracy": "inferometer.evaluators.kinds.batches.accuracy_report:AccuracyReport",
        "duration": "inferometer.evaluators.kinds.batches.report:DurationReport",
        "layers": "inferometer.evaluators.reports.layers:LayersReport",
        "layer_tree": "inferometer.evaluators.reports.layers:LayerTreeReport",
        "cuda_launch": "inferometer.evaluators.reports.layers:KernelsReport",
        "eventflow": "inferometer.evaluators.reports.eventflow:EventflowReport",
        "workload": "inferometer.evaluators.kinds.load.report:WorkloadReport",
        "max_qps": "inferometer.evaluators.kinds.load.report:MaxQpsReport",
        "training": "inferometer.evaluators.kinds.training.report:TrainingReport",
        "training_steps": "inferometer.evaluators.kinds.training.report:TrainingStepsReport",
        "ingestion": "inferometer.evaluators.kinds.ingestion.report:IngestionReport",
        "weak_scaling": "inferometer.evaluators.kinds.training.scaling_report:WeakScalingReport",
        "strong_scaling": "inferometer.evaluators.kinds.training.scaling_report:StrongScalingReport",
        "operators": "inferometer.evaluators.kinds.operators.report:OperatorsReport",
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {"throughput": "latency", "kernels": "cuda_launch", "max-qps": "max_qps", "op": "operators"}
)


def known_reports() -> dict[str, str]:
    """Returns the reports as ``"module:Class"`` by name: the built-in ones and those of plug-ins."""
    announced = {point.name.casefold(): point.value for point in metadata.entry_points(group=ENTRY_POINTS)}
    return announced | dict(REPORTS)


def find_report(name: str) -> Report[Any]:
    """Returns the report of a name or an alias; case does not matter.

    Raises:
        ConfigurationError: No such report exists, or a plug-in's report cannot be imported.
    """
    key = name.strip().casefold()
    known = known_reports()
    target = known.get(ALIASES.get(key, key))
    if target is None:
        raise ConfigurationError(f'unknown report "{name}"; {suggestion(name, (*known, *ALIASES))}')
    module, _, attribute = target.partition(":")
    try:
        report = getattr(importlib.import_module(module), attribute)()
    except IMPORT_FAILURES as error:
        raise ConfigurationError(f"report {key}: {target} cannot be imported: {one_line(error)}") from error
    if not isinstance(report, Report):
        raise TypeError(f"{target} is no Report")
    return report
