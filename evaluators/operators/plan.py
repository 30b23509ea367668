"""The cells of a benchmark for one framework, and the order in which groups of them run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from inferometer.agent.operators.operator import Case
from inferometer.agent.operators.table.registry import operators
from inferometer.evaluators.kinds.operators.measurement import RowStatus
from inferometer.evaluators.operators.cases import OperatorRequest
from inferometer.evaluators.operators.measuring import Cell
from inferometer.evaluators.operators.processes import FrameworkFacts


@dataclass(frozen=True, slots=True)
class Group:
    """The work of one fresh process: a framework's cells of a category.

    Attributes:
        framework: The framework.
        process: Which of the processes of each cell it is, from 1.
        cells: Its cells, with their numbers in the framework's plan.
    """

    framework: str
    process: int
    cells: tuple[tuple[int, Cell], ...]


def cells_of(request: OperatorRequest, facts: FrameworkFacts) -> tuple[Cell, ...]:
    """Returns the cells of a framework: each operator, case, form and mode, in this order.

    An operator that it lacks, or that has none of the forms asked for, has cells with the reason.
    """
    known = RowStatus.FAILED if facts.lost else RowStatus.MISSING
    found = []
    for name, case in request.cases():
        plain = Case(dict(case.shapes), dict(case.parameters), case.preset)
        for form, reason in _forms(name, request.forms, facts):
            found += [Cell(name, plain, form, mode, reason=reason, known=known) for mode in request.modes]
    return tuple(found)


def _forms(name: str, wanted: Sequence[str], facts: FrameworkFacts) -> Sequence[tuple[str, str]]:
    """Returns the forms to measure, each with the reason why it cannot be measured, or an empty text."""
    if facts.unfit:
        return [("", facts.unfit)]
    known = facts.forms.get(name, ())
    if not known:
        return [("", facts.missing.get(name, f"{facts.name} has no such operator"))]
    if not wanted:
        return [(known[0], "")]
    chosen = [form for form in known if form in wanted]
    if not chosen:
        reason = f"{facts.name} has no {' or '.join(wanted)} of it; it has {', '.join(known)}"
        return [("", reason)]
    return [(form, "") for form in chosen]


def groups_of(plans: Mapping[str, Sequence[Cell]], processes: int) -> Iterator[Group]:
    """Yields the groups in the order in which they run.

    The first process of all categories comes before the second. Frameworks take turns within a category, so
    that what drifts meets all of them, and begin with another one in each process.
    """
    every = {name: _by_category(plan) for name, plan in plans.items()}
    categories = dict.fromkeys(category for found in every.values() for category in found)
    names = list(plans)
    for process in range(1, processes + 1):
        first = (process - 1) % max(len(names), 1)
        for category in categories:
            for name in names[first:] + names[:first]:
                cells = every[name].get(category, [])
                numbered = [(number, replace(cell, process=process)) for number, cell in cells]
                yield Group(name, process, tuple(numbered))


def _by_category(plan: Sequence[Cell]) -> Mapping[str, list[tuple[int, Cell]]]:
    found: dict[str, list[tuple[int, Cell]]] = {}
    for number, cell in enumerate(plan):
        found.setdefault(operators()[cell.operator].category.value, []).append((number, cell))
    return found
