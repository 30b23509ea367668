"""Folders of plans for the page, with runs in any state, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferometer.evaluators.plans.cells import Run, cells_of
from inferometer.evaluators.plans.plan import plan_of
from inferometer.evaluators.plans.running.folder import Ended, Journal, PlanFolder, Result

START_NS = 1_780_000_000_000_000_000


@dataclass(frozen=True)
class KeptRuns:
    """The folder of a plan, and its runs by cell."""

    folder: PlanFolder
    runs: Sequence[Run]

    def begin(self, number: int, job: str = "local/1:2") -> None:
        """The run with a number has a job."""
        Journal(self.folder.path).submitted(self.runs[number].key, job)

    def lose(self, number: int, reason: str) -> None:
        """The job of a run is lost."""
        Journal(self.folder.path).lost(self.runs[number].key, reason, counts=True)

    def end(self, number: int, ended: Ended, reason: str = "", evaluations: Sequence[str] = ()) -> None:
        """A run ends."""
        times = START_NS + number * 10**9, START_NS + number * 10**9 + 2_500_000_000
        key = self.runs[number].key
        result = Result(key, ended, reason, 0, "node1", *times, evaluations=tuple(evaluations))
        Journal(self.folder.path).ended(result)


def keep_plan(data: Path, name: str, variables: dict[str, list[Any]], **given: Any) -> KeptRuns:
    """Keeps a plan in a data directory; all of its runs wait."""
    content = {
        "name": name,
        "command": "predict dataset",
        "parameters": {"model_name": "DigitsCNN"},
        "variables": variables,
        **given,
    }
    plan = plan_of(content, name)
    folder = PlanFolder(data / "plans" / name)
    folder.path.mkdir(parents=True)
    cells = cells_of(plan)
    folder.keep(plan, cells)
    return KeptRuns(folder, [Run(cell, n) for cell in cells for n in range(1, plan.repeat + 1)])
