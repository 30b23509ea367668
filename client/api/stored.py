"""Finds evaluations in the database by ids, prefixes of ids and groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from inferometer.agent.tracing.span import SpanChunk
from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.reports.trace_report import SpanSource
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import ConfigurationError, StoreError, UnknownEvaluationError

_NAMED = 5
_log = logging.getLogger(__name__)


def left_out(error: StoreError) -> None:
    """Logs the error of an evaluation or a trace that cannot be read."""
    _log.warning("left out %s", error)


def whole_id(store: EvaluationStore, given: str) -> str:
    """Returns the only id with a prefix; the prefix itself if it is an id, or if no id begins with it.

    Raises:
        UnknownEvaluationError: Several ids begin with the prefix.
        StoreError: The database cannot be reached.
    """
    found = store.ids(given) if given else ()
    if given in found or not found:
        return given
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UnknownEvaluationError(
            f"{len(found)} ids begin with {given}: {', '.join(found[:_NAMED])}{more}; give more of the one"
        )
    return found[0]


def find_one(store: EvaluationStore, evaluation_id: str) -> Evaluation:
    """Returns the evaluation with an id or a unique prefix of an id.

    Raises:
        UnknownEvaluationError: No evaluation matches, several match, or the id is that of a group. For a
            group, the message names its evaluations.
        StoreError: The database cannot be reached.
    """
    evaluation_id = whole_id(store, evaluation_id)
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted)
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation {evaluation_id}; agent info evaluations lists them"
        )
    if found[0].id != evaluation_id:
        members = ", ".join(f"{each.id} ({each.trace_level.name})" for each in found)
        raise UnknownEvaluationError(f"{evaluation_id} is a group of evaluations; name one of {members}")
    return found[0]


def newest(store: EvaluationStore, on_unreadable: Callable[[StoreError], None] = left_out) -> Evaluation:
    """Returns the newest readable evaluation; calls ``on_unreadable`` with the error of each newer one.

    Raises:
        UnknownEvaluationError: The database holds no readable evaluation.
    """
    wanted = EvaluationFilter(limit=1, include_interrupted=True)
    for offset in range(store.count(wanted)):
        if found := store.find(replace(wanted, offset=offset), on_unreadable):
            return found[0]
    raise UnknownEvaluationError(f"{store.location}: holds no evaluation yet; agent predict publishes them")


def others_of(
    store: EvaluationStore,
    evaluation: Evaluation,
    on_unreadable: Callable[[StoreError], None] = left_out,
) -> Sequence[Evaluation]:
    """Returns the other readable evaluations of the group, ordered from the shallowest trace level."""
    if evaluation.group_id is None:
        return ()
    wanted = EvaluationFilter(evaluation_id=evaluation.group_id, include_interrupted=True)
    members = store.find(wanted, on_unreadable)
    others = [each for each in members if each.id != evaluation.id]
    return sorted(others, key=lambda each: each.trace_level)


def readable_spans(
    store: EvaluationStore, on_unreadable: Callable[[StoreError], None] = left_out
) -> SpanSource:
    """Returns a source of spans; for a trace that cannot be read completely, it has no spans."""

    def spans(evaluation_id: str) -> Iterator[SpanChunk]:
        try:
            chunks = tuple(store.spans(evaluation_id))
        except StoreError as error:
            on_unreadable(error)
            return
        yield from chunks

    return spans


def chosen_side(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> Side:
    """Returns the evaluations that ids or unique prefixes of ids select, without duplicates.

    Evaluations of a group that ran under a profiler are skipped and reported, because a group of trace levels
    also contains one that ran without. An evaluation selected by its own id is never skipped. ``given`` holds
    ids of evaluations or groups, separated by commas. ``notify`` is called with a line about skipped ones.

    Raises:
        ConfigurationError: ``given`` is empty, or the evaluations cannot be compared.
        UnknownEvaluationError: An id does not exist, or is ambiguous.
    """
    ids = [word.strip() for word in given.split(",") if word.strip()]
    if not ids:
        raise ConfigurationError(f"{name} names no evaluation; give ids, separated by commas")
    found: dict[str, Evaluation] = {}
    for each in ids:
        found.update({evaluation.id: evaluation for evaluation in _named(store, name, each, notify)})
    return Side(name, tuple(found.values()))


def _named(store: EvaluationStore, name: str, given: str, notify: Callable[[str], None]) -> list[Evaluation]:
    evaluation_id = whole_id(store, given)
    unreadable: list[StoreError] = []
    wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
    found = store.find(wanted, unreadable.append)
    if unreadable and not found:
        raise unreadable[0]
    for error in unreadable:
        notify(f"{name}: left out {error}")
    if not found:
        raise UnknownEvaluationError(
            f"{store.location}: holds no evaluation or group {given}; "
            "the reports of agent info evaluation list them"
        )
    if found[0].id == evaluation_id:
        return list(found)
    undisturbed = [evaluation for evaluation in found if not evaluation.profiled]
    if undisturbed and len(undisturbed) < len(found):
        notify(
            f"{name}: left out {len(found) - len(undisturbed)} of {len(found)} evaluations of the group "
            f"{evaluation_id}: they ran under a profiler, which slows the model down"
        )
    return undisturbed or list(found)
