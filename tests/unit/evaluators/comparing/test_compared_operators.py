"""Verdicts on the rows of operators of two sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from inferometer.evaluators.comparing.operators import compare_operators
from inferometer.evaluators.kinds.operators.measurement import OperatorMeasurement, OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.statistics import student_tail
from inferometer.evaluators.verdict import Verdict
from tests.operator_rows import noisy, row


def measured(*rows: OperatorRow) -> OperatorMeasurement:
    return OperatorMeasurement(rows, OperatorOptions(), None, elapsed_ns=1)


def verdicts(a: OperatorMeasurement, b: OperatorMeasurement) -> Sequence[Verdict | None]:
    return [each.ratio.verdict if each.ratio else None for each in compare_operators([a], [b])]


def many(seed: int, rows: int = 20, processes: int = 1, slower: float = 1.0) -> OperatorMeasurement:
    """Rows whose processes differ by 1 %, as fresh ones do."""
    random = np.random.RandomState(seed)
    return measured(
        *(
            row(
                noisy(1e6 * slower * (1 + 0.01 * random.standard_normal()), seed=random.randint(1 << 30)),
                operator=f"operator{number}",
                process=process,
            )
            for number in range(rows)
            for process in range(1, processes + 1)
        )
    )


def test_rows_are_paired_by_key_and_form() -> None:
    a = measured(row(noisy(1e6, 1)), row(noisy(2e6, 2), form="compile"), row(noisy(1e6, 3), operator="sub"))
    b = measured(row(noisy(2e6, 4), form="compile"), row(noisy(2e6, 5)), row(noisy(1e6, 6), mode=Mode.BOTH))
    found = compare_operators([a], [b])
    assert [(each.row.operator, each.row.form, each.row.mode) for each in found] == [
        ("add", "eager", Mode.FORWARD),
        ("add", "compile", Mode.FORWARD),
        ("sub", "eager", Mode.FORWARD),
        ("add", "eager", Mode.BOTH),
    ]
    assert [each.ratio and each.ratio.verdict for each in found] == [Verdict.WORSE, Verdict.SAME, None, None]
    assert [each.reason for each in found[2:]] == ["B has no such row", "A has no such row"]
    assert found[0].ratio is not None
    assert found[0].ratio.value == pytest.approx(2, rel=0.01)


def test_frameworks_are_paired_by_key_alone() -> None:
    a = measured(row(noisy(1e6, 1), form="nd"), row(noisy(9e6, 1), form="sym"))
    [found] = compare_operators([a], [measured(row(noisy(5e5, 2)))], same_form=False)
    assert found.ratio is not None
    assert found.ratio.verdict is Verdict.BETTER
    assert found.ratio.value == pytest.approx(0.5, rel=0.01)


def test_a_row_that_fails_has_its_reason() -> None:
    failed = row(status=RowStatus.WRONG, reason="the outputs differ")
    [found] = compare_operators([measured(row(noisy(1e6, 1)))], [measured(failed)])
    assert (found.ratio, found.reason, found.processes) == (None, "B: wrong: the outputs differ", (1, 0))


def test_too_few_times_decide_nothing() -> None:
    [found] = compare_operators([measured(row([1000] * 5))], [measured(row([9000] * 5))])
    assert found.ratio is not None
    assert (found.ratio.value, found.ratio.low, found.ratio.verdict) == (9, None, Verdict.UNDECIDED)


def test_fresh_processes_are_what_varies() -> None:
    """Times that are narrow in each process do not hide that the processes differ."""
    a = measured(*(row(noisy(1e6 * f, 1, spread=0.001), process=p) for p, f in enumerate([0.9, 1.1], 1)))
    b = measured(*(row(noisy(1e6 * f, 2, spread=0.001), process=p) for p, f in enumerate([1.3, 1.1], 1)))
    [found] = compare_operators([a], [b])
    assert found.processes == (2, 2)
    assert found.ratio is not None
    assert found.ratio.verdict is Verdict.UNDECIDED
    assert found.ratio.low is not None
    assert found.ratio.low < 1


def test_the_same_with_wide_thresholds() -> None:
    a, b = (measured(row(noisy(1e6, seed))) for seed in (1, 2))
    [narrow] = compare_operators([a], [b], threshold=0.0001)
    assert narrow.ratio is not None
    assert narrow.ratio.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("processes", [1, 3])
def test_twenty_comparisons_of_equal_sides_say_worse_at_most_once(processes: int) -> None:
    worse = [
        Verdict.WORSE in verdicts(many(seed, processes=processes), many(seed + 500, processes=processes))
        for seed in range(20)
    ]
    assert sum(worse) <= 1


@pytest.mark.parametrize("processes", [1, 5])
def test_a_slow_down_of_a_fifth_is_seen(processes: int) -> None:
    seen = [
        verdicts(many(seed, 5, processes), many(seed + 500, 5, processes, slower=1.2)).count(Verdict.WORSE)
        for seed in range(20)
    ]
    assert sum(count == 5 for count in seen) >= 19


def test_many_rows_are_judged_more_strictly_than_one() -> None:
    """A row that is worse alone, by little, is not among a hundred equal ones."""
    random = np.random.RandomState(2)
    logs = random.standard_normal((3, 2)) * 0.004
    ones = [
        measured(
            *(
                row(noisy(1e6 * factor * np.exp(logs[process, side]), 9, spread=0.001), process=process)
                for process in range(3)
            )
        )
        for side, factor in ((0, 1.0), (1, 1.075))
    ]
    assert verdicts(*ones) == [Verdict.WORSE]
    equal = [many(seed, rows=100, processes=3).rows for seed in (7, 8)]
    assert verdicts(*(measured(*one.rows, *more) for one, more in zip(ones, equal, strict=True)))[0] in (
        Verdict.UNDECIDED,
    )


@pytest.mark.parametrize("degrees", [1.0, 2.5, 9.0, 18.0, 200.0])
@pytest.mark.parametrize("t", [-2.0, 0.0, 0.7, 3.0, 8.0])
def test_the_tail_is_that_of_students_t(t: float, degrees: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(float(stats.t.sf(t, degrees)), rel=1e-6)
