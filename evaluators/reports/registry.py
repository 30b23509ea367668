"""The reports by name. A report is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from evaluators.reports.base import Report
from manifests.errors import ConfigurationError, suggestion

REPORTS: Mapping[str, str] = MappingProxyType(
    {
        "latency": "evaluators.reports.latency:LatencyReport",
        "accuracy": "evaluators.reports.accuracy:AccuracyReport",
        "duration": "evaluators.reports.duration:DurationReport",
        "layers": "evaluators.reports.layers:LayersReport",
        "layer_tree": "evaluators.reports.layer_tree:LayerTreeReport",
        "cuda_launch": "evaluators.reports.kernels:KernelsReport",
        "eventflow": "evaluators.reports.eventflow:EventflowReport",
        "workload": "evaluators.reports.workload:WorkloadReport",
        "max_qps": "evaluators.reports.max_qps:MaxQpsReport",
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {"throughput": "latency", "kernels": "cuda_launch", "max-qps": "max_qps"}
)


def find_report(name: str) -> Report:
    """Returns the report of a name or an alias; case does not matter.

    Raises:
        ConfigurationError: There is none.
    """
    key = name.strip().casefold()
    target = REPORTS.get(ALIASES.get(key, key))
    if target is None:
        raise ConfigurationError(f'unknown report "{name}"; {suggestion(name, (*REPORTS, *ALIASES))}')
    module, _, attribute = target.partition(":")
    report = getattr(importlib.import_module(module), attribute)()
    if not isinstance(report, Report):
        raise TypeError(f"{target} is no Report")
    return report
