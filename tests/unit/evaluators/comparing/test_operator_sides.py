"""Comparison of benchmarks of operators with an evaluation for each framework."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferometer.evaluators.comparing.comparison import Side
from inferometer.evaluators.comparing.job import Comparison, ComparisonRequest, compare
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.manifests.errors import ConfigurationError
from tests.contract.store_fixtures import make_evaluation
from tests.operator_rows import noisy, row
from tests.reported_operators import in_framework, measured

ADD = row(noisy(1e6, seed=1), form="eager")
MULTIPLY = row(noisy(2e6, seed=2), form="eager", operator="multiply")
FAILED = replace(
    MULTIPLY,
    status=RowStatus.FAILED,
    reason="its process was ended by SIGSEGV",
    times_ns=np.empty(0, np.int64),
)


def evaluation(
    name: str, *rows: OperatorRow, framework: str = "PyTorch", **options: object
) -> Evaluation[OperatorMeasurement]:
    """An evaluation of operators on the machine of all tests."""
    return replace(in_framework(framework, measured(make_evaluation(), *rows, **options)), id=name)


def slow(each: OperatorRow, factor: float) -> OperatorRow:
    return replace(each, times_ns=np.rint(each.times_ns * factor).astype(np.int64))


def compared(a: list[Evaluation], b: list[Evaluation], **more: object) -> Comparison:
    return compare(ComparisonRequest(a=Side("A", tuple(a)), b=Side("B", tuple(b)), **more))


def verdicts(found: Comparison) -> dict[str, object]:
    return {f"{each['operator']} {each['framework']}": each["verdict"] for each in found.rows}


def test_each_row_is_compared_with_that_of_its_own_framework() -> None:
    a = [evaluation("a1", ADD, MULTIPLY), evaluation("a2", slow(ADD, 3), framework="MXNet")]
    b = [evaluation("b1", slow(ADD, 0.5), MULTIPLY), evaluation("b2", slow(ADD, 6), framework="MXNet")]

    found = compared(a, b)

    assert verdicts(found) == {"add PyTorch": "better", "multiply PyTorch": "same", "add MXNet": "worse"}
    assert found.worse
    assert found.conclusion.startswith("REGRESSION: B is worse than A in 1 of 3 rows: add (")
    assert "in MXNet is 2 times A's" in found.conclusion
    assert any("one process each" in note for note in found.notes)
    assert set(found.rows[0]) == {column.key for column in found.columns}


def test_frameworks_of_one_side_alone_are_left_out() -> None:
    a = [evaluation("a1", ADD), evaluation("a2", ADD, framework="MXNet")]

    found = compared(a, [evaluation("b1", ADD)])

    assert verdicts(found) == {"add PyTorch": "same"}
    assert "left out MXNet of A, which B does not have" in found.notes
    assert found.conclusion == "no regression in 1 row; 1 the same"


def test_two_frameworks_are_compared_with_each_other() -> None:
    mxnet = replace(slow(ADD, 1.5), form="nd")

    found = compared([evaluation("a", ADD)], [evaluation("b", mxnet, framework="MXNet")])

    assert verdicts(found) == {"add MXNet / PyTorch": "worse"}
    assert any(note.startswith("differs: framework: PyTorch") for note in found.notes)


def test_frameworks_that_cannot_be_paired_are_refused() -> None:
    b = [evaluation("b1", ADD, framework="MXNet"), evaluation("b2", ADD, framework="ONNXRuntime")]

    with pytest.raises(ConfigurationError, match="A has PyTorch and B MXNet and ONNXRuntime; compare"):
        compared([evaluation("a", ADD)], b)


def test_what_b_no_longer_runs_is_worse_and_what_it_begins_to_run_is_better() -> None:
    both, broken = evaluation("a", ADD, MULTIPLY), evaluation("b", ADD, FAILED)

    lost, mended = compared([both], [broken]), compared([broken], [both])

    assert lost.worse
    assert "multiply" in lost.conclusion
    assert "B: failed: its process was ended by SIGSEGV" in lost.conclusion
    assert verdicts(lost)["multiply PyTorch"] == "worse"
    assert verdicts(mended)["multiply PyTorch"] == "better"


def test_rows_of_one_side_alone_are_not_compared() -> None:
    found = compared([evaluation("a", ADD, MULTIPLY)], [evaluation("b", ADD)])

    assert verdicts(found) == {"add PyTorch": "same", "multiply PyTorch": None}
    assert not found.worse
    assert found.conclusion == "no regression in 2 rows; 1 the same; 1 not compared"


def test_without_a_row_in_common_there_is_no_comparison() -> None:
    with pytest.raises(ConfigurationError, match="have no measured row of the same operator"):
        compared([evaluation("a", ADD)], [evaluation("b", MULTIPLY)])


def test_an_undecided_row_is_named() -> None:
    few = replace(ADD, times_ns=ADD.times_ns[:3])

    found = compared([evaluation("a", few)], [evaluation("b", few)])

    assert verdicts(found) == {"add PyTorch": "undecided"}
    assert found.undecided == (found.undecided[0],)
    assert found.undecided[0].startswith("1 row may differ by more or by less than 5 %: add (")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"figures": ("throughput",)}, "operators are compared only in p50"),
        ({"noise": True}, "--noise is not for operators"),
    ],
)
def test_options_of_other_kinds_are_refused(options: dict[str, object], message: str) -> None:
    if "noise" in options:
        options = {"noise": Side("noise", (evaluation("n", ADD), evaluation("m", ADD)))}

    with pytest.raises(ConfigurationError, match=message):
        compared([evaluation("a", ADD)], [evaluation("b", ADD)], **options)


def test_sides_of_other_types_or_kinds_are_told() -> None:
    found = compared([evaluation("a", ADD)], [evaluation("b", ADD, dtype="float64")])

    assert "differs: element type: float32 (A), float64 (B)" in found.notes
    with pytest.raises(ConfigurationError, match="A mixes evaluations with element type float32 and float64"):
        Side("A", (evaluation("a", ADD), evaluation("b", ADD, framework="MXNet", dtype="float64")))
    with pytest.raises(ConfigurationError, match="compare evaluations of the same kind"):
        compared([evaluation("a", ADD)], [make_evaluation()])
