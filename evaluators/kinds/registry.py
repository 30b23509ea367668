"""The kinds of measurement and reports, by name. A kind is imported on first use; plug-ins add others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.reports.base import Report
from inferometer.manifests.errors import IMPORT_FAILURES, ConfigurationError, one_line, suggestion

if TYPE_CHECKING:
    from inferometer.evaluators.drawing.charts import Plot
    from inferometer.evaluators.evaluation import Evaluation, M
    from inferometer.evaluators.kinds.kind import Again, Kind

ENTRY_POINTS, REPORT_ENTRY_POINTS = "inferometer.kinds", "inferometer.reports"
_log = logging.getLogger(__name__)
_HERE = "inferometer.evaluators.kinds."
_BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "batches": f"{_HERE}batches.kind:BatchesKind",
        "load": f"{_HERE}load.kind:LoadKind",
        "rate_search": f"{_HERE}load.kind:RateSearchKind",
        "mix": f"{_HERE}load.kind:MixKind",
        "mix_search": f"{_HERE}load.kind:MixSearchKind",
        "training": f"{_HERE}training.kind:TrainingKind",
        "ingestion": f"{_HERE}ingestion.kind:IngestionKind",
        "operators": f"{_HERE}operators.kind:OperatorsKind",
        "memory": f"{_HERE}memory.kind:MemoryKind",
        "tuning": f"{_HERE}tuning.kind:TuningKind",
        "generation": f"{_HERE}generation.kind:GenerationKind",
        "generation_search": f"{_HERE}generation.kind:GenerationSearchKind",
    }
)


@cache
def known_kinds() -> Mapping[str, str]:
    """Returns the kinds as ``"module:Class"`` by name: the built-in kinds, then those of plug-ins."""
    announced = {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINTS)}
    return {**_BUILT_IN, **{name: value for name, value in announced.items() if name not in _BUILT_IN}}


@cache
def find_kind(name: str) -> Kind[Any]:
    """Returns a kind by its name.

    Raises:
        KeyError: There is no kind of this name.
        ConfigurationError: A plug-in's kind cannot be imported, or is not a kind of this name.
    """
    from inferometer.evaluators.kinds.kind import Kind

    target = known_kinds()[name]
    try:
        kind = resolve_name(target)()
    except IMPORT_FAILURES as error:
        raise ConfigurationError(f"kind {name}: {target} cannot be imported: {one_line(error)}") from error
    if not isinstance(kind, Kind) or getattr(kind, "name", None) != name:
        raise ConfigurationError(f'kind {name}: {target} is not a Kind with the name "{name}"')
    declared: tuple[Any, ...] = (kind.reports, kind.further_reports)
    if not all(isinstance(each, Mapping) for each in declared):
        raise ConfigurationError(f"kind {name}: its reports must map each Report to its Plot, or to None")
    return kind


def kind_of(evaluation: Evaluation[M]) -> Kind[M]:
    """Returns the kind of an evaluation's measurement."""
    return find_kind(evaluation.measurement.kind)


def again(evaluation: Evaluation) -> Again:
    """Returns the command that repeats an evaluation, with notes on what it requires or does not repeat.

    The command gives the model's version, what ran it, and every option that differs from its default.
    """
    from inferometer.evaluators.kinds.kind import Again, notes_on_repeating

    found = kind_of(evaluation).again(evaluation)
    notes = tuple(notes_on_repeating(evaluation))
    return Again(found.words, (*notes, *found.notes) if found.words else (*found.notes, *notes))


@cache
def _usable(name: str) -> Kind[Any] | None:
    try:
        return find_kind(name)
    except ConfigurationError as error:
        _log.warning("left out %s", error)
        return None


def every_kind() -> Iterator[Kind[Any]]:
    """Yields all kinds, each imported when it is reached; a plug-in's broken one is logged and left out."""
    return (kind for kind in map(_usable, known_kinds()) if kind is not None)


def declared_reports() -> Iterator[tuple[type[Report[Any]], type[Plot[Any]] | None]]:
    """Yields the reports that kinds declare, each with its picture."""
    for kind in every_kind():
        yield from kind.reports.items()
        yield from kind.further_reports.items()


def _announced() -> Mapping[str, str]:
    """Returns the other reports of plug-ins as ``"module:Class"`` by name."""
    points = metadata.entry_points(group=REPORT_ENTRY_POINTS)
    return {point.name.casefold(): point.value for point in points}


def known_reports() -> Sequence[str]:
    """Returns the names of the reports: those that kinds declare, then the others of plug-ins."""
    return list(dict.fromkeys([*(report.name for report, _ in declared_reports()), *_announced()]))


def report_named(name: str) -> Report[Any] | None:
    """Returns a report by its name or an alias, importing no more kinds than necessary; None if unknown.

    Raises:
        ConfigurationError: A plug-in's report cannot be imported.
    """
    for report, _ in declared_reports():
        if name in (report.name, *report.aliases):
            return report()
    if (target := _announced().get(name)) is None:
        return None
    try:
        found = resolve_name(target)()
    except IMPORT_FAILURES as error:
        raise ConfigurationError(f"report {name}: {target} cannot be imported: {one_line(error)}") from error
    if not isinstance(found, Report):
        raise TypeError(f"{target} is not a Report")
    return found


def find_report(name: str) -> Report[Any]:
    """Returns a report by its name or an alias, ignoring case.

    Raises:
        ConfigurationError: No such report exists, or a plug-in's report cannot be imported.
    """
    found = report_named(name.strip().casefold())
    if found is None:
        aliases = (alias for report, _ in declared_reports() for alias in report.aliases)
        raise ConfigurationError(f'unknown report "{name}"; {suggestion(name, (*known_reports(), *aliases))}')
    return found


def find_plot(report: Report[Any]) -> Plot[Any]:
    """Returns the picture of a report; raises ConfigurationError if it has none."""
    for declared, plot in declared_reports():
        if declared is type(report) and plot is not None:
            return plot()
    raise ConfigurationError(f"report {report.name} has no picture; leave out --plot")
