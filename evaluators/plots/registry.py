"""The pictures by the name of their report. One is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from evaluators.plots.base import Plot
from evaluators.reports.registry import ALIASES
from manifests.errors import ConfigurationError, suggestion

PLOTS: Mapping[str, str] = MappingProxyType(
    {
        "latency": "evaluators.plots.latency:LatencyPlot",
        "accuracy": "evaluators.plots.accuracy:AccuracyPlot",
        "duration": "evaluators.plots.duration:DurationPlot",
        "layers": "evaluators.plots.layers:LayersPlot",
        "layer_tree": "evaluators.plots.layer_tree:LayerTreePlot",
        "cuda_launch": "evaluators.plots.kernels:KernelsPlot",
        "eventflow": "evaluators.plots.eventflow:EventflowPlot",
        "workload": "evaluators.plots.workload:WorkloadPlot",
        "max_qps": "evaluators.plots.max_qps:MaxQpsPlot",
    }
)


def find_plot(report_name: str) -> Plot:
    """Returns the picture of a report, by its name or an alias; case does not matter.

    Raises:
        ConfigurationError: There is none.
    """
    key = report_name.strip().casefold()
    target = PLOTS.get(ALIASES.get(key, key))
    if target is None:
        raise ConfigurationError(
            f'there is no picture of a report "{report_name}"; {suggestion(report_name, PLOTS)}'
        )
    module, _, attribute = target.partition(":")
    plot = getattr(importlib.import_module(module), attribute)()
    if not isinstance(plot, Plot):
        raise TypeError(f"{target} is no Plot")
    return plot
