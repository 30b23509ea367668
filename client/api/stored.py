"""Finds stored evaluations by id, prefix or group, lists them as rows, and compares them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias

from inferometer.agent.tracing.recorder import SpanChunk
from inferometer.client.api import results
from inferometer.client.api.invocation import library_invocation
from inferometer.client.api.results import Result, Rows
from inferometer.evaluators.comparing import job as job
from inferometer.evaluators.comparing.sides import Side, drawing_of
from inferometer.evaluators.drawing.charts import MOST_EVALUATIONS
from inferometer.evaluators.evaluation import Evaluation, of_kind
from inferometer.evaluators.jobs.options import ACCURACY_THRESHOLD
from inferometer.evaluators.kinds.batches.measurement import BatchMeasurement
from inferometer.evaluators.kinds.batches.report import LatencyReport
from inferometer.evaluators.kinds.kind import SpanSource
from inferometer.evaluators.kinds.reports import OverviewReport
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.evaluators.verdict import parse_figures
from inferometer.manifests.errors import ConfigurationError, StoreError, UnknownEvaluationError

_NAMED = 5
_log = logging.getLogger(__name__)


def left_out(error: StoreError) -> None:
    """Logs the error raised by an evaluation or a trace that cannot be read."""
    _log.warning("left out %s", error)


def whole_id(store: EvaluationStore, given: str) -> str:
    """Returns the only id that begins with a prefix; the prefix itself if it is an id or matches none.

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
            f"{len(found)} ids begin with {given}: {', '.join(found[:_NAMED])}{more}; give more of the id"
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
    store: EvaluationStore, evaluation: Evaluation, on_unreadable: Callable[[StoreError], None] = left_out
) -> Sequence[Evaluation]:
    """Returns the other readable evaluations of an evaluation's group, the shallowest trace level first."""
    if evaluation.group_id is None:
        return ()
    wanted = EvaluationFilter(evaluation_id=evaluation.group_id, include_interrupted=True)
    others = (each for each in store.find(wanted, on_unreadable) if each.id != evaluation.id)
    return sorted(others, key=lambda each: each.trace_level)


def readable_spans(
    store: EvaluationStore, on_unreadable: Callable[[StoreError], None] = left_out
) -> SpanSource:
    """Returns a source of spans that yields none for a trace that cannot be read completely."""

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
    ids of evaluations or groups, separated by commas. ``notify`` is called with one line per omission.

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


class Evaluations(Rows):
    """Stored evaluations of every kind, newest first, as the rows that ``agent info evaluations`` shows.

    Args:
        rows: The rows.
        pictured: The evaluations that the picture in a notebook shows.
    """

    def __init__(self, rows: Iterable[Row], pictured: Sequence[Evaluation[BatchMeasurement]] = ()) -> None:
        super().__init__(OverviewReport.columns, rows)
        self._pictured = tuple(pictured)

    def _repr_html_(self) -> str:
        return results.with_picture(super()._repr_html_(), LatencyReport(), self._pictured)


def evaluations(
    *, model: str | None = None, framework: str | None = None, limit: int | None = None
) -> Evaluations:
    """Returns stored evaluations of every kind, newest first.

    Args:
        model: The model whose evaluations are returned; None means all.
        framework: The framework whose evaluations are returned; None means all.
        limit: The maximum number of evaluations, newest first; None means all.

    Raises:
        ConfigurationError: The limit is below 1.
        StoreError: The database cannot be reached.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit is {limit}; it must be at least 1, or None for all")
    wanted = EvaluationFilter(model_name=model, framework_name=framework, limit=limit)
    with closing(library_invocation().open_store()) as store:
        found = store.find(wanted, left_out)
    batches = of_kind(found, BatchMeasurement)
    pictured = [evaluation for evaluation in batches if not evaluation.profiled][:MOST_EVALUATIONS]
    return Evaluations(OverviewReport().rows(found), pictured)


Named: TypeAlias = Result[Any] | str
"""A result, or the id of a stored evaluation or group; a unique prefix is enough."""


class Comparison(Rows):
    """A row for each figure: A, B, their ratio with its 95 % interval, and the verdict.

    Attributes:
        conclusion: The overall conclusion from all figures, in one line.
        worse: Whether B is worse in any figure by more than the threshold.
        undecided: One line for each undecided figure, with the reason and by how much B may be worse.
        notes: Caveats about the rows: differences between the sides, and disturbed conditions.
    """

    def __init__(
        self, request: job.ComparisonRequest, found: job.Comparison, left_out: Sequence[str]
    ) -> None:
        super().__init__(found.columns, found.rows)
        self.conclusion = found.conclusion
        self.worse = found.worse
        self.undecided = found.undecided
        self.notes = (*left_out, *found.notes)
        self._sides = request.a, request.b

    def __repr__(self) -> str:
        """Returns the table, followed by the notes and the conclusion."""
        return "\n".join((super().__repr__(), *self._lines()))

    def _repr_html_(self) -> str:
        shown = super()._repr_html_() + results.lines(self._lines())
        return results.with_drawing(shown, drawing_of(*self._sides))

    def _lines(self) -> Sequence[str]:
        return (*self.notes, *self.undecided, self.conclusion)


def compare(
    a: Named | Sequence[Named],
    b: Named | Sequence[Named],
    *,
    noise: Named | Sequence[Named] | None = None,
    threshold: float | None = None,
    accuracy_threshold: float = ACCURACY_THRESHOLD,
    figures: str | Sequence[str] | None = None,
) -> Comparison:
    """Compares the evaluations B with the evaluations A, like ``agent compare``.

    Args:
        a: The baseline: results, ids of stored evaluations or groups, or unique prefixes of ids.
        b: The evaluations to judge, given in the same forms as ``a``.
        noise: Two or more evaluations of the same system, whose differences set the threshold of each figure.
        threshold: The largest difference, as a share, that is treated as no change; None means 0.05.
        accuracy_threshold: The largest difference in top-1 that is treated as no change.
        figures: The figures to compare, such as ``["p50", "throughput"]``; None means all available ones.

    Raises:
        ConfigurationError: The evaluations cannot be compared, or a value is invalid.
        StoreError: An id does not exist, or the database cannot be reached.
    """
    job.check_one_threshold(noise is not None, threshold)
    wanted = figures if figures is None or isinstance(figures, str) else ",".join(figures)
    parsed = None if wanted is None else parse_figures(wanted)
    notes: list[str] = []
    request = job.ComparisonRequest(
        a=_side("A", a, notes),
        b=_side("B", b, notes),
        noise=None if noise is None else _side("noise", noise, notes),
        threshold=threshold,
        accuracy_threshold=accuracy_threshold,
        figures=parsed,
    )
    return Comparison(request, job.compare(request), notes)


def _side(name: str, given: Named | Sequence[Named], notes: list[str]) -> Side:
    """Returns the evaluations of one side, without duplicates."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: dict[str, Evaluation] = {}
    for each in several:
        if isinstance(each, Result):
            found[each.id] = each.evaluation
        elif isinstance(each, str):
            with closing(library_invocation().open_store()) as store:
                side = chosen_side(store, name, each, notes.append)
            found |= {evaluation.id: evaluation for evaluation in side.evaluations}
        else:
            raise ConfigurationError(
                f"{name} holds {each!r}; give results of evaluate, sweep, train, ingest, workload, max_qps "
                "or benchmark_operators, or ids"
            )
    return Side(name, tuple(found.values()))
