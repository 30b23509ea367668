"""The kinds of measurement, by name. A kind is imported on first use; plug-ins register further kinds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from inferometer.manifests.errors import IMPORT_FAILURES, ConfigurationError, one_line

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation, M
    from inferometer.evaluators.kinds.kind import Again, Kind

ENTRY_POINTS = "inferometer.kinds"
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
def every_kind() -> tuple[Kind[Any], ...]:
    """Returns all kinds. A plug-in's kind that cannot be imported is logged once and left out."""
    found = []
    for name in known_kinds():
        try:
            found.append(find_kind(name))
        except ConfigurationError as error:
            _log.warning("left out %s", error)
    return tuple(found)
