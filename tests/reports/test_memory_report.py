"""The report on memory: golden outputs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.registry import find_report
from inferometer.evaluators.reports.writer import Format, write
from tests.evaluations import changed
from tests.memory_points import MEASURED

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("output_format", Format)
@pytest.mark.parametrize("count", [0, 1])
def test_the_report_is_its_golden_output(
    output_format: Format, count: int, evaluations: list[Evaluation]
) -> None:
    report, stream = find_report("memory"), io.StringIO()
    measured = [changed(evaluations[0], measurement=MEASURED)]

    write(report.columns, report.rows(measured[:count]), output_format, stream)

    golden = GOLDEN / f"memory_{count}.{output_format.value}"
    assert stream.getvalue() == golden.read_text(encoding="utf-8")
