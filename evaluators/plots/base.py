"""Pictures of reports: their interface, their names, and their common parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timezone
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Generic, TypeAlias

from inferometer.evaluators.drawing.charts import Drawing, Label, how_many_fit
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.reports.base import M, Row, Value
from inferometer.evaluators.reports.registry import ALIASES
from inferometer.manifests.errors import ConfigurationError, suggestion

MOST_EVALUATIONS = 20
"""The maximum number of evaluations in one picture, in which charts of a certain height fit."""
_HERE = "inferometer.evaluators.plots"
_KINDS = "inferometer.evaluators.kinds"
PLOTS: Mapping[str, str] = MappingProxyType(
    {
        "latency": f"{_KINDS}.batches.plot:LatencyPlot",
        "accuracy": f"{_KINDS}.batches.accuracy_plot:AccuracyPlot",
        "duration": f"{_KINDS}.batches.plot:DurationPlot",
        "layers": f"{_HERE}.layers:LayersPlot",
        "layer_tree": f"{_HERE}.layers:LayerTreePlot",
        "cuda_launch": f"{_HERE}.layers:KernelsPlot",
        "eventflow": f"{_HERE}.eventflow:EventflowPlot",
        "workload": f"{_KINDS}.load.plot:WorkloadPlot",
        "max_qps": f"{_KINDS}.load.plot:MaxQpsPlot",
        "training": f"{_KINDS}.training.plot:TrainingPlot",
        "training_steps": f"{_KINDS}.training.plot:TrainingStepsPlot",
        "ingestion": f"{_KINDS}.ingestion.plot:IngestionPlot",
        "weak_scaling": f"{_KINDS}.training.plot:ScalingPlot",
        "strong_scaling": f"{_KINDS}.training.plot:ScalingPlot",
        "operators": f"{_KINDS}.operators.plot:OperatorsPlot",
    }
)
"""The pictures by the name of their report, as ``module:class``; each is imported on first use."""


Chosen: TypeAlias = Sequence[tuple[Evaluation[M], list[Row]]]
"""Evaluations, each with its rows."""


class Plot(ABC, Generic[M]):
    """The picture of one report."""

    def draw(self, evaluations: Sequence[Evaluation[M]], rows: Sequence[Row]) -> Drawing | None:
        """Returns the picture of a report's rows; None if they contain nothing to draw.

        A pure function: the same rows give the same drawing.

        Args:
            evaluations: The reported evaluations, as the source of raw times.
            rows: The report's rows on them.
        """
        shown = [row for row in rows if self.shows(row)]
        chosen, notes = by_evaluation(evaluations, shown)
        drawing = self.drawing(chosen, notes) if chosen else None
        if drawing is None or (fitting := how_many_fit(drawing.charts)) == len(drawing.charts):
            return drawing
        return self.drawing(*by_evaluation(evaluations, shown, fitting))

    def shows(self, row: Row) -> bool:
        """Returns whether a row has something to draw."""
        return True

    @abstractmethod
    def drawing(self, chosen: Chosen[M], notes: Sequence[str]) -> Drawing | None:
        """Returns the picture of at least one evaluation; None if there is nothing to draw."""


def find_plot(report_name: str) -> Plot[Any]:
    """Returns the picture of a report by its name or an alias, ignoring case.

    Raises:
        ConfigurationError: The report has no picture.
    """
    key = report_name.strip().casefold()
    target = PLOTS.get(ALIASES.get(key, key))
    if target is None:
        raise ConfigurationError(f'no picture of report "{report_name}"; {suggestion(report_name, PLOTS)}')
    plot: Plot[Any] = resolve_name(target)()
    return plot


def label_of(evaluation: Evaluation, *more: str, warning: str = "") -> Label:
    """Returns the label of an evaluation: model, batch size, framework, device, ``more``, and start time.

    Where its conditions were not stable, the label says so: the details in one word, the remark in a line.

    Args:
        evaluation: The evaluation.
        more: Further details.
        warning: The reason not to trust its figures; empty for none.
    """
    system = evaluation.system
    manifest = system.manifest
    began = evaluation.created_at.astimezone(timezone.utc)
    framework = f"{manifest.framework.name} {system.framework_version}"
    remark = evaluation.conditions.warning if evaluation.conditions else ""
    word = (remark.partition(":")[0],) * bool(remark)
    details = (framework, str(system.device).upper(), *more, f"{began:%Y-%m-%d %H:%M:%S}", *word)
    name = f"{manifest.name} {manifest.version}, batch size {evaluation.measurement.batch_size}"
    return Label(name, " · ".join(details), warning, remark)


def by_evaluation(
    evaluations: Sequence[Evaluation[M]], rows: Sequence[Row], most: int = MOST_EVALUATIONS
) -> tuple[Chosen[M], tuple[str, ...]]:
    """Groups rows by their evaluation, in the order of the rows.

    Returns:
        The first ``most`` evaluations with rows, each with its rows, and a note if others are hidden.
    """
    known = {evaluation.id: evaluation for evaluation in evaluations}
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (key := str(row["id"])) in known:
            found.setdefault(key, []).append(row)
    chosen = [(known[key], of_one) for key, of_one in found.items()][:most]
    hidden = len(found) > len(chosen)
    return chosen, (f"{len(chosen):,} of {len(found):,} evaluations are shown.",) if hidden else ()


def number(value: Value) -> float:
    """Returns a row's figure; 0 for a missing one."""
    return float(value) if isinstance(value, int | float) else 0.0


def by_weight(weights: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Returns names by the sum of their weights, the largest sum first."""
    sums: dict[str, float] = {}
    for name, weight in weights:
        sums[name] = sums.get(name, 0.0) + weight
    return tuple(sorted(sums, key=lambda name: -sums[name]))


def time_unit(longest_us: float) -> tuple[float, str]:
    """Returns a readable unit for times up to ``longest_us``: its length in µs, and its name."""
    for scale, unit in ((1e6, "s"), (1e3, "ms")):
        if longest_us >= scale:
            return scale, unit
    return 1.0, "µs"


def readable(value: float) -> str:
    """Returns a number with three significant digits: ``0.0123``, ``1.23``, ``12.3``, ``1,230``."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.1e}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Returns a count with its noun: ``1 layer``, ``2,000 layers``."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def described(row: Mapping[str, Value], keys: Mapping[str, str]) -> Iterator[str]:
    """Yields ``name value`` for those of the ``keys`` that have a value in the row."""
    for key, name in keys.items():
        if row.get(key) not in (None, ""):
            yield f"{name} {row[key]}"
