"""The reader of a plan's measurements: each evaluation is read once, and again if its run ends anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.kinds.registry import every_kind
from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.reporting.cases import PlanReader
from inferometer.evaluators.plans.running.folder import Ended, Result, RunHistory
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from tests.reports.conftest import on_cpu, on_gpu
from tests.unit.evaluators.dataset_run_fakes import FakeSystem, Numbered, options


class Store:
    """Counts what is read of it."""

    location = "the store"

    def __init__(self) -> None:
        self.evaluation = DatasetRun(FakeSystem(), Numbered(20), options()).run()
        self.asked: list[str] = []
        self.lacks = ""

    def count(self, _: EvaluationFilter) -> int:
        return 100 - bool(self.lacks)

    def find(self, wanted: EvaluationFilter, _: Callable[[Exception], None]) -> list[Any]:
        self.asked.append(wanted.evaluation_id or "")
        return [] if self.asked[-1] == self.lacks else [replace(self.evaluation, id=self.asked[-1])]


def test_each_evaluation_is_read_once() -> None:
    store, cell = Store(), Cell("one", ("predict", "dataset"), {}, {})
    runs = [Run(cell, number) for number in range(1, 5)]
    history: dict[str, RunHistory] = {}
    reader = PlanReader(store)
    for number, run in enumerate(runs, start=1):
        history[run.key] = RunHistory(
            result=Result(run.key, Ended.COMPLETE, evaluations=(f"e{number}",), end_ns=number)
        )
        measured = reader.read(runs, history)
        assert measured.is_new
        assert [case.figures["latency_ms_mean"].count for case in measured.cases] == [number]
    assert store.asked == ["e1", "e2", "e3", "e4"]
    assert not reader.read(runs, history).is_new

    store.asked.clear()
    history[runs[1].key] = RunHistory(result=Result(runs[1].key, Ended.COMPLETE, evaluations=("e5",)))
    store.lacks = "e5"
    measured = reader.read(runs, history)
    assert "1 of 4 runs, such as " in measured.notes[0]
    store.lacks = ""
    assert reader.read(runs, history).cases[0].figures["latency_ms_mean"].count == 4
    assert store.asked == ["e5", "e5"]


@pytest.mark.parametrize("kind", [each.name for each in every_kind()])
def test_each_row_of_an_evaluation_is_a_case_of_its_own(kind: str) -> None:
    store, cell = Store(), Cell("one", ("measure", kind), {}, {})
    reported = import_module(f"tests.kinds.{kind}").reported([on_cpu(), on_gpu(), on_cpu()])
    run = Run(cell, 1)
    history = {run.key: RunHistory(result=Result(run.key, Ended.COMPLETE, evaluations=("e",)))}
    for store.evaluation in next(iter(reported.values())):
        for case in PlanReader(store).read([run], history).cases:
            assert {figure.count for figure in case.figures.values()} == {1}, case.dimensions
