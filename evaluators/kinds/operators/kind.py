"""The kind of measurement of single operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.kind import Again, Kind, Rows, drawn, own_values
from inferometer.evaluators.kinds.operators.documents import OperatorDocuments
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement
from inferometer.evaluators.kinds.operators.plot import OperatorsPlot
from inferometer.evaluators.kinds.operators.repeating import unrepeated_sizes, words_again
from inferometer.evaluators.kinds.operators.report import OperatorsReport
from inferometer.evaluators.kinds.operators.summary import operator_lines
from inferometer.evaluators.reports.trace_report import SpanSource

if TYPE_CHECKING:
    from inferometer.evaluators.comparing.times import RunTimes


class OperatorsKind(Kind[OperatorMeasurement]):
    """Single operators of one framework."""

    name = "operators"
    title = "operators"
    phrase = "a benchmark of operators"
    collections = ("operator_row",)
    reports = ("operators",)
    headlines = ("p50_us", "gflops_per_s", "gbytes_per_s", "max_difference")
    of_a_model = False
    mixes_frameworks = True
    comparer = "inferometer.evaluators.comparing.operator_sides:compare_operators_of"

    def documents(self) -> OperatorDocuments:
        return OperatorDocuments()

    def summary(self, evaluation: Evaluation[OperatorMeasurement]) -> Rows:
        return operator_lines(evaluation)

    def document(
        self,
        evaluation: Evaluation[OperatorMeasurement],
        timed: Evaluation[OperatorMeasurement],
        spans: SpanSource,
    ) -> dict[str, Any]:
        measured, report = evaluation.measurement, OperatorsReport()
        return {
            "options": asdict(measured.options),
            "peak": None if measured.peak is None else asdict(measured.peak),
            "operators": [own_values(report, row) for row in report.rows([evaluation])],
        }

    def drawings(self, evaluation: Evaluation[OperatorMeasurement], most_points: int) -> Iterator[Drawing]:
        # a legend with a name for each framework alone
        yield from drawn(OperatorsPlot(most_points=0), OperatorsReport(), evaluation)

    def again(self, evaluation: Evaluation[OperatorMeasurement]) -> Again:
        own = "It had sizes of its own for several cases, which --cases=FILE.yaml gives."
        notes = (own,) if unrepeated_sizes(evaluation.measurement) else ()
        return Again(("op", "run", *words_again(evaluation)), notes)

    def unfit(self, measurement: OperatorMeasurement) -> str:
        return ""

    def conditions(self, evaluation: Evaluation[OperatorMeasurement]) -> Mapping[str, str]:
        options = evaluation.measurement.options
        return {
            "dataset": evaluation.dataset.name,  # its size is the number of rows, which differs by framework
            "element type": options.dtype,
            "cache": options.cache.value,
            "seed": str(options.seed),
        }

    def run_times(self, evaluation: Evaluation[OperatorMeasurement]) -> RunTimes:
        raise ValueError("times of its own, as each of its rows has them")
