"""Drives a plan whose cells note when they ran: ``python -m tests.integration.plan_driver FOLDER CELLS``."""

from __future__ import annotations

import sys
from pathlib import Path

from inferometer.evaluators.plans.cell_command import CellCommand
from inferometer.evaluators.plans.cells import Run, cells_of, runs_of
from inferometer.evaluators.plans.plan import Plan, plan_of
from inferometer.evaluators.plans.running.driver import Driver
from inferometer.evaluators.plans.running.folder import PlanFolder
from inferometer.evaluators.plans.running.places import LocalPlace

_NOTES = """
import sys, time
begin = time.monotonic_ns()
until = begin + 30_000_000
while time.monotonic_ns() < until:
    pass
with open(sys.argv[1], "ab", buffering=0) as file:
    file.write(f"{sys.argv[2]} {begin} {time.monotonic_ns()}\\n".encode())
"""


def plan_of_cells(count: int, repeat: int = 1) -> Plan:
    """A plan with so many cells."""
    content = {"name": "notes", "command": "notes", "variables": {"n": list(range(count))}, "repeat": repeat}
    return plan_of(content, "notes")


def driver_of(folder: Path, count: int) -> Driver:
    """What drives it in a folder; each run adds a line with its interval to the file ``notes``."""
    plan = plan_of_cells(count)

    def command(run: Run) -> CellCommand:
        return CellCommand((sys.executable, "-S", "-c", _NOTES, str(folder / "notes"), run.key))

    runs = tuple(runs_of(plan, cells_of(plan)))
    return Driver(plan, runs, PlanFolder(folder), LocalPlace(), command, str(folder))


if __name__ == "__main__":
    driver_of(Path(sys.argv[1]), int(sys.argv[2])).drive()
