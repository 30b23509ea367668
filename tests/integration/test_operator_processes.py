"""Benchmarks of operators in fresh processes: what fails leaves its own row, and all others are whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.agent.inference.registry import BUILTIN, FrameworkEntry, Registry
from inferometer.agent.operators.operator import OwnCase
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.operators.job import FrameworkFacts, benchmark_operators
from inferometer.evaluators.kinds.operators.measurement import (
    MachinePeak,
    OperatorMeasurement,
    OperatorRow,
    RowStatus,
    Stop,
)
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.request import OperatorRequest
from inferometer.manifests.errors import (
    ConfigurationError,
    DeviceError,
    EvaluationInterrupted,
    FrameworkUnavailableError,
    UnknownFrameworkError,
)
from tests.integration.operator_frameworks import (
    BUSY,
    BUSY_NS,
    EXITS,
    HANGS,
    KILLED,
    RAISES,
    RECORD,
    RIGHT,
    SPENT,
    UNSUPPORTED,
    WRONG,
    Crashing,
    Letters,
    Numbers,
    entry,
)

REGISTRY = Registry([entry(Numbers), entry(Letters), entry(Crashing)])
OPTIONS: dict[str, Any] = {"runs": 10, "warmup": 1}


def of_sizes(*sizes: int) -> tuple[OwnCase, ...]:
    return tuple(OwnCase("add", {"lhs": (size, 3), "rhs": (size, 3)}) for size in sizes)


def benchmarked(
    *sizes: int,
    frameworks: Sequence[str] = ("Numbers",),
    options: OperatorOptions | None = None,
    stop_after: int | None = None,
    seen: list[Progress] | None = None,
    request: dict[str, Any] | None = None,
    **given: Any,
) -> list[Evaluation[OperatorMeasurement]]:
    """Adds tensors of sizes, one thread each, and stops after some rows."""
    seen = [] if seen is None else seen
    wanted = OperatorRequest(
        own=of_sizes(*sizes),
        frameworks=tuple(frameworks),
        threads=1,
        options=options or OperatorOptions(**OPTIONS),
        **request or {},
    )
    callbacks: JobCallbacks = JobCallbacks(
        on_progress=seen.append,
        stop_requested=lambda: stop_after is not None and sum(bool(each.now) for each in seen) >= stop_after,
    )
    return list(
        benchmark_operators(
            wanted, given.pop("registry", REGISTRY), callbacks, **{"with_peak": False, **given}
        )
    )


def rows_of(*sizes: int, **given: Any) -> tuple[OperatorRow, ...]:
    [found] = benchmarked(*sizes, **given)
    assert found.status is Status.COMPLETE
    return found.measurement.rows


@pytest.mark.parametrize("second", [1.0, 1e15])
def test_times_beyond_the_peak_are_refused_after_it_was_measured_again(
    monkeypatch: pytest.MonkeyPatch, second: float
) -> None:
    asked = []

    def peak(*_: object, again: bool = False) -> MachinePeak:
        asked.append(again)
        return MachinePeak(second if again else 1.0, 1e15, 1 << 20, 1, "as the test has it")

    monkeypatch.setattr("inferometer.evaluators.kinds.operators.job.machine_peak", peak)
    [found] = benchmarked(RIGHT, RIGHT + 100, with_peak=True)
    assert asked == ([False, True] if second > 1 else [False, True, True])
    for row in found.measurement.rows:
        if second > 1:
            assert (row.status, row.reason) == (RowStatus.MEASURED, "")
        else:
            assert row.status is RowStatus.WRONG
            assert "GFLOP/s; this machine reaches 0: the operator cannot have computed" in row.reason
            assert row.times_ns.size == 0
    assert found.measurement.peak is not None
    assert found.measurement.peak.flops_per_s == second


def test_what_fails_leaves_a_row_and_all_others_are_whole() -> None:
    sizes = (RIGHT, RAISES, KILLED, RIGHT + 100, EXITS, HANGS, WRONG, UNSUPPORTED, RIGHT + 200)
    rows = rows_of(*sizes, answer_s=2.0, options=OperatorOptions(budget_s=0.02))
    assert [row.shapes["lhs"][0] for row in rows] == list(sizes)
    measured = {RIGHT, RIGHT + 100, RIGHT + 200}
    for row, size in zip(rows, sizes, strict=True):
        assert (row.status is RowStatus.MEASURED) == (size in measured), row.reason
        assert bool(len(row.times_ns)) == (size in measured)
        assert row.api == "numpy" or size not in {*measured, WRONG}
    reasons = {size: (row.status, row.reason) for size, row in zip(sizes, rows, strict=True)}
    assert reasons[RAISES] == (RowStatus.FAILED, "add in Numbers: the kernel failed at its second line")
    assert reasons[KILLED] == (
        RowStatus.FAILED,
        "its process was ended by SIGKILL before it was complete; the kernel does that when memory runs out",
    )
    assert reasons[EXITS] == (RowStatus.FAILED, "its process ended with code 7 before it was complete")
    assert reasons[HANGS] == (RowStatus.FAILED, "its process: no answer within 2.08 s")
    assert reasons[UNSUPPORTED] == (RowStatus.MISSING, "Numbers has no addition of nines")
    wrong = rows[sizes.index(WRONG)]
    assert wrong.status is RowStatus.WRONG
    assert wrong.reason.startswith("the outputs differ from the reference by ")
    assert wrong.correctness.max_absolute == pytest.approx(1, abs=1e-6)


def test_a_row_has_its_figures() -> None:
    [row] = rows_of(RIGHT)
    assert (row.operator, row.category, row.preset, row.form) == ("add", "arithmetic", "own", "plain")
    assert dict(row.shapes) == {"lhs": (2, 3), "rhs": (2, 3)}
    assert (row.flops, row.moved_bytes) == (6, 3 * 6 * 4)
    assert (row.stop, len(row.times_ns), row.block) == (Stop.COUNT, 10, 1)
    assert row.correctness.against == "reference"
    assert row.floor_ns > 0
    assert (row.peak_memory_bytes is None) == (row.memory_of == "")


def test_the_envelope_says_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORD, str(tmp_path / "opened"))
    numbers, letters = benchmarked(RIGHT, frameworks=["Numbers", "letters", "NUMBERS"])
    assert numbers.group_id == letters.group_id is not None
    assert numbers.system.manifest.name == "Operators"
    assert [each.system.manifest.framework.name for each in (numbers, letters)] == ["Numbers", "Letters"]
    assert numbers.system.framework_version == np.__version__
    assert (numbers.system.threads, numbers.system.environment.variables["OMP_NUM_THREADS"]) == (1, "1")
    assert numbers.system.environment.libraries == {"NumPy": np.__version__}
    assert (numbers.dataset.name, numbers.dataset.size) == ("random values", 1)
    assert numbers.conditions == letters.conditions is not None
    [host] = numbers.conditions.hosts
    assert host.hostname == numbers.system.environment.hostname
    assert host.own_cpu_s > 0  # that of the processes, which have ended
    assert set((tmp_path / "opened").read_text().splitlines()) == {"Numbers 1", "Letters 1"}


def test_rows_that_a_framework_lacks_are_there() -> None:
    modes = {"modes": tuple(Mode), "forms": ("other",)}
    numbers, letters = benchmarked(RIGHT, frameworks=["Numbers", "Letters"], request=modes)
    assert [(row.mode, row.form) for row in numbers.measurement.rows] == [(mode, "other") for mode in Mode]
    assert [row.reason for row in numbers.measurement.rows] == ["", *["Numbers has no gradients"] * 2]
    assert [row.reason for row in letters.measurement.rows] == ["Letters cannot add"] * 3
    assert {row.status for row in letters.measurement.rows} == {RowStatus.MISSING}
    [row] = rows_of(RIGHT, request={"forms": ("nd",)})
    assert (row.status, row.reason) == (RowStatus.MISSING, "Numbers has no nd of it; it has plain, other")


def test_processes_are_fresh_and_frameworks_take_turns() -> None:
    seen: list[Progress] = []
    options = OperatorOptions(**OPTIONS, processes=2)
    found = benchmarked(RIGHT, 50, frameworks=["Numbers", "Letters"], options=options, seen=seen)
    order = [each.now.partition(" in ")[2] for each in seen if each.now]
    assert order == [*["Numbers"] * 2, *["Letters"] * 4, *["Numbers"] * 2]
    assert [(each.done, each.total) for each in seen] == [(done, 8) for done in range(9)]
    rows = found[0].measurement.rows
    assert [(row.shapes["lhs"][0], row.process) for row in rows] == [(2, 1), (2, 2), (50, 1), (50, 2)]


def test_a_stopped_benchmark_goes_on_where_it_was(tmp_path: Path) -> None:
    sizes = (RIGHT, KILLED, 50, 51)
    [first] = benchmarked(*sizes, stop_after=2, journal=tmp_path)
    assert first.status is Status.INTERRUPTED
    kept = len(first.measurement.rows)
    assert 2 <= kept < 4
    [journal] = tmp_path.glob("*.jsonl")
    with journal.open("a", encoding="utf-8") as file:
        file.write('{"place": ["Numbers", 3, 1], "row": {"oper')

    seen: list[Progress] = []
    [second] = benchmarked(*sizes, journal=tmp_path, resume=True, seen=seen)

    assert second.status is Status.COMPLETE
    assert [each.done for each in seen] == [0, *range(kept + 1, 5)]
    assert [row.shapes["lhs"][0] for row in second.measurement.rows] == list(sizes)
    for one, other in zip(first.measurement.rows, second.measurement.rows, strict=False):
        assert one.times_ns.tolist() == other.times_ns.tolist()
    assert not list(tmp_path.glob("*.jsonl"))


def test_another_request_does_not_go_on(tmp_path: Path) -> None:
    benchmarked(RIGHT, 50, 51, stop_after=1, journal=tmp_path)
    for given in ({"options": OperatorOptions(**OPTIONS, seed=1)}, {}):
        seen: list[Progress] = []
        benchmarked(RIGHT, 50, 51, journal=tmp_path, resume=bool(given), seen=seen, **given)
        assert [each.done for each in seen] == [0, 1, 2, 3]


def test_stopped_before_a_row_there_is_no_evaluation() -> None:
    with pytest.raises(EvaluationInterrupted, match="before an operator was measured"):
        benchmarked(RIGHT, stop_after=0)


def test_a_framework_that_does_not_run_leaves_its_rows() -> None:
    numbers, crashing = benchmarked(RIGHT, frameworks=["Numbers", "Crashing"])
    assert [row.status for row in numbers.measurement.rows] == [RowStatus.MEASURED]
    [alone] = benchmarked(RIGHT, frameworks=["Crashing"])
    for each in (crashing, alone):
        [row] = each.measurement.rows
        assert (row.status, row.reason) == (
            RowStatus.FAILED,
            "its process was ended by SIGSEGV before it was complete",
        )


def test_what_runs_nowhere_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="Numbers has no bfloat16"):
        benchmarked(RIGHT, options=OperatorOptions(dtype="bfloat16"))
    with pytest.raises(UnknownFrameworkError):
        benchmarked(RIGHT, frameworks=["Nowhere"])
    absent = FrameworkEntry("Absent", "a:b", ("no-such-distribution",), "pip install it", operators="a:b")
    with pytest.raises(FrameworkUnavailableError, match="pip install it"):
        benchmarked(RIGHT, frameworks=["Absent"], registry=Registry([absent]))
    with pytest.raises(FrameworkUnavailableError, match="install Absent"):
        benchmarked(RIGHT, frameworks=[], registry=Registry([absent]))
    plain = FrameworkEntry("Plain", "a:b", ("numpy",), "pip install numpy")
    with pytest.raises(ConfigurationError, match="Plain cannot run single operators"):
        benchmarked(RIGHT, frameworks=["Plain"], registry=Registry([plain]))


@pytest.mark.parametrize("lacks_device", [True, False])
@pytest.mark.parametrize("arrival", [("Numbers", "Letters"), ("Letters", "Numbers")])
def test_the_error_does_not_depend_on_which_framework_answers_first(
    monkeypatch: pytest.MonkeyPatch, arrival: tuple[str, str], lacks_device: bool
) -> None:
    unfit = {name: FrameworkFacts(name, unfit=f"{name} cannot") for name in arrival}
    unfit["Letters"] = replace(unfit["Letters"], deviceless=lacks_device)
    monkeypatch.setattr("inferometer.evaluators.kinds.operators.job.facts_of", lambda *_: unfit)
    error, named = (DeviceError, "Letters") if lacks_device else (ConfigurationError, "Numbers")
    with pytest.raises(error, match=f"^{named} cannot$"):
        benchmarked(RIGHT, frameworks=["Numbers", "Letters"])


def test_convolutions_of_each_rank_have_their_rows() -> None:
    request = OperatorRequest(
        operators=("conv1d", "conv2d"),
        presets=("small",),
        frameworks=("PyTorch",),
        threads=1,
        options=OperatorOptions(**OPTIONS),
    )
    [found] = benchmark_operators(request, Registry(BUILTIN), with_peak=False)
    rows = {row.operator: row.status for row in found.measurement.rows}
    assert rows == {"conv1d": RowStatus.MEASURED, "conv2d": RowStatus.MEASURED}


@pytest.mark.real_time
def test_five_milliseconds_are_told_within_a_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SPENT, str(tmp_path / "spent"))
    [row] = rows_of(BUSY, options=OperatorOptions())

    spent_ns = np.loadtxt(tmp_path / "spent")[-len(row.times_ns) :]
    assert spent_ns.min() >= BUSY_NS
    assert np.percentile(row.times_ns, 50) == pytest.approx(np.percentile(spent_ns, 50), rel=0.01)
