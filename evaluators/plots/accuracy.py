"""The picture of the accuracy report: bars of top-1 and top-5 for each evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from evaluators.evaluation import Evaluation
from evaluators.plots.base import Plot, by_evaluation, label_of, number
from evaluators.plots.drawing import Bar, BarChart, BarRow, Drawing, Label
from evaluators.reports.base import Row

_KEYS = {"top-1": "top1_accuracy", "top-5": "top5_accuracy"}


class AccuracyPlot(Plot):
    """Two bars for each evaluation that has an accuracy."""

    def draw(self, evaluations: Sequence[Evaluation], rows: Sequence[Row]) -> Drawing | None:
        """Returns bars in percent of the evaluated inputs, with their number."""
        counted = [row for row in rows if row["top1_accuracy"] is not None]
        chosen, notes = by_evaluation(evaluations, counted)
        lines = tuple(_line(evaluation, of_one[0]) for evaluation, of_one in chosen)
        if not lines:
            return None
        return Drawing(
            title="Accuracy",
            charts=(BarChart(Label(""), "evaluated inputs that were right (%)", lines, whole=100),),
            groups=tuple(_KEYS),
            notes=("Counted over the inputs with a label and a prediction.", *notes),
        )


def _line(evaluation: Evaluation, row: Row) -> BarRow:
    inputs = f"{row['evaluated_inputs']:,} inputs"
    failed = f"; {row['failed_inputs']:,} failed" if row["failed_inputs"] else ""
    whose = f"{evaluation.system.manifest.name}, {evaluation.id}"
    bars = []
    for group, key in _KEYS.items():
        percent = 100 * number(row[key])
        bars.append(
            Bar(
                percent,
                group,
                f"{percent:.2f} % of {inputs}{failed}",
                f"{whose}: {group} {percent:.4f} % of {inputs} of {row['dataset_name']}{failed}",
            )
        )
    return BarRow(label_of(evaluation), tuple(bars))
