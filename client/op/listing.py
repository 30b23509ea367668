"""``agent op list``: the operators of the table, how each framework runs them, and what the table lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferometer.agent.operators.table.registry import chosen_operators, operators
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.output import print_rows
from inferometer.evaluators.kinds.operators.asking import listed
from inferometer.evaluators.operators.coverage import Coverage, coverage_of, frameworks_with_operators
from inferometer.evaluators.reports.base import Column, Row
from inferometer.manifests.errors import ConfigurationError

_NAMED = (
    Column("operator", "operator", stays=True),
    Column("category", "category", stays=True),
)
_SUMMARY = Column("summary", "what it computes", detail=2, wraps=True)
_UNCOVERED = (Column("framework_name", "framework"), Column("operator", "operator"))


def print_operators(
    invocation: Invocation, categories: Sequence[str], frameworks: str | None, printing: Mapping[str, Any]
) -> None:
    """Prints a row for each operator, with a column for each framework.

    Raises:
        ConfigurationError: A category is unknown, or a framework runs no operators.
        UnknownFrameworkError: The framework is unknown.
    """
    groups = tuple(listed(categories))
    shown = chosen_operators(() if groups else operators(), groups)
    names = tuple(listed([frameworks or ""]))
    entries = list(frameworks_with_operators(invocation.registry, names))
    with invocation.waiting.during("importing frameworks"):
        found = [coverage_of(entry, shown) for entry in entries]
    columns = (*_NAMED, *(Column(_key(each), each.framework, wraps=True) for each in found), _SUMMARY)
    rows: list[Row] = [
        {
            "operator": each.name,
            "category": each.category.value,
            **{_key(coverage): _forms(coverage, each.name) for coverage in found},
            "summary": each.summary,
        }
        for each in shown
    ]
    print_rows(columns, rows, **printing)


def _key(coverage: Coverage) -> str:
    return coverage.framework.lower()


def _forms(coverage: Coverage, name: str) -> str:
    """Returns the forms of an operator, or the reason why there are none."""
    forms = coverage.forms.get(name, ())
    return ", ".join(forms) if forms else f"no: {coverage.reasons[name]}"


def print_uncovered(
    invocation: Invocation, categories: Sequence[str], frameworks: str | None, printing: Mapping[str, Any]
) -> None:
    """Prints a row for each operator of a framework's own registry that the table does not use.

    Raises:
        ConfigurationError: A category is given, or a framework runs no operators.
        UnknownFrameworkError: The framework is unknown.
    """
    if categories:
        raise ConfigurationError("--uncovered lists what has no category; leave out --category")
    names = tuple(listed([frameworks or ""]))
    entries = list(frameworks_with_operators(invocation.registry, names))
    with invocation.waiting.during("importing frameworks"):
        found = [coverage_of(entry, ()) for entry in entries]
    print_rows(_UNCOVERED, _uncovered_rows(found), **printing)


def _uncovered_rows(found: Sequence[Coverage]) -> Iterator[Row]:
    for coverage in found:
        for name in coverage.uncovered:
            yield {"framework_name": coverage.framework, "operator": name}
