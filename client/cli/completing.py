"""The candidate values of options and arguments for shell completion; see ``completion``.

No function here imports a framework. If a required file or the database is missing, there are no candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

import click

from inferometer.manifests.errors import InferometerError

if TYPE_CHECKING:
    from inferometer.client.api.invocation import Invocation

_MOST_IDS = 200
Names: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def _names(find: Callable[[click.Context, str], Iterable[str]], *, listed: bool = False) -> Names:
    """Returns the function that click calls to complete a value.

    The known names that begin with the typed text are offered; if the value is ``listed``, only the last of
    its items, separated by commas, is completed.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",") if listed else ("", "", incomplete)
        try:
            known = list(find(context, begun))
        except InferometerError:
            return []
        return [f"{before}{comma}{name}" for name in known if name.casefold().startswith(begun.casefold())]

    return complete


def _invocation(context: click.Context) -> Invocation:
    from inferometer.client.api.invocation import Invocation

    return Invocation(context.ensure_object(dict), notify=lambda _: None)


def _models(context: click.Context, _: str) -> Iterable[str]:
    models = _invocation(context).listing.models
    return dict.fromkeys(model.name for model in models if not model.hidden)


def _frameworks(context: click.Context, _: str) -> Iterable[str]:
    return [entry.name for entry in _invocation(context).registry.entries]


def _evaluations(context: click.Context, begun: str) -> Iterable[str]:
    """Returns the ids in the database that begin with a text. Does not create a missing local file."""
    found = _invocation(context)
    if not found.has_store:
        return []
    with closing(found.open_store()) as store:
        return store.ids(begun)[:_MOST_IDS]


def _columns(context: click.Context, begun: str) -> Iterable[str]:
    """Returns the columns of the command's report; none for a listing, whose columns depend on its rows."""
    from inferometer.evaluators.kinds.registry import report_named

    name = context.info_name or ""
    if name == "evaluations":
        from inferometer.evaluators.kinds.reports import OverviewReport

        return [column.key for column in OverviewReport.columns]
    report, sign = report_named(name), "-" * begun.startswith("-")
    return [sign + column.key for column in report.columns] if report else []


def _operators(_: click.Context, __: str) -> Iterable[str]:
    from inferometer.agent.operators.operator import operators

    return operators()


def _categories(_: click.Context, __: str) -> Iterable[str]:
    from inferometer.agent.operators.operator import Category

    return [category.value for category in Category]


evaluations = _names(_evaluations, listed=True)
"""Ids of evaluations, separated by commas."""
operators = _names(_operators)
"""Operators of the table."""
categories = _names(_categories, listed=True)
"""Groups of operators, separated by commas."""
several_frameworks = _names(_frameworks, listed=True)
"""Frameworks, separated by commas."""
OPTIONS: Mapping[str, Names] = {
    "--model_name": _names(_models),
    "--framework_name": _names(_frameworks),
    "--dataset_name": _names(lambda context, _: _invocation(context).listing.datasets),
    "--cluster": _names(lambda context, _: _invocation(context).configuration.clusters),
    "--id": _names(_evaluations),
    "--from_evaluation": _names(_evaluations),
    "--resume": _names(_evaluations),
    "--noise": evaluations,
    "--columns": _names(_columns, listed=True),
    "--sort": _names(_columns, listed=True),
}
"""The options of all commands whose values can be completed."""
