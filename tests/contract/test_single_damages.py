"""Every field of every document is damaged in turn: what can still be read is used, the rest is named."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from inferometer.agent.inference.stages import InputFailure, Stage
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.results import newest, readable_spans
from inferometer.client.commands.show import as_document, lines_of
from inferometer.client.web.documents import (
    comparison_document,
    evaluation_document,
    overview_rows,
    page_reports,
)
from inferometer.evaluators.comparing.comparison import Side
from inferometer.evaluators.evaluation import Evaluation, SpanSource
from inferometer.evaluators.kinds.kind import timed_by
from inferometer.evaluators.kinds.registry import every_kind, find_kind
from inferometer.evaluators.kinds.reports import TraceReport
from inferometer.evaluators.store.documents import to_documents
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.evaluators.tasks.metric import Accuracy, Score, ScoreInterval, TaskResult
from inferometer.manifests.errors import ConfigurationError, StoreError
from tests.contract.store_fixtures import StoreBackend, make_evaluation, make_predictions
from tests.contract.test_condition_stores import CONDITIONS
from tests.contract.test_span_stores import traced_evaluation
from tests.ingestion_evaluations import few
from tests.operator_evaluations import several
from tests.reports.loads import overloaded, silenced
from tests.training_evaluations import make_training
from tests.tuned_hosts import tuned_host

MISSING = object()
VALUES = (7, "x", [1], {"$ne": 1}, None, MISSING, -(2**63), 1e308)
"""Numbers, a text, a list, a document that is an operator of queries, null, and nothing."""
RESULT = TaskResult(
    *("object_detection", "COCO AP", 8),
    (Score("AP", 0.5, ScoreInterval(0.25, 0.75)), Score("classes", 3.0, is_count=True)),
)


def batches() -> Evaluation[Any]:
    """An evaluation with every part, of a group."""
    traced = traced_evaluation(20)
    return replace(
        make_evaluation(
            conditions=CONDITIONS[2], task_result=RESULT, predictions=make_predictions(2), spans=traced.spans
        ),
        dataset=replace(traced.dataset, size=2, sample_ids=("a", "b")),
        trace=traced.trace,
        trace_level=TraceLevel.FRAMEWORK_TRACE,
        group_id="group-1",
        process=1,
    )


def training() -> Evaluation[Any]:
    failures = (InputFailure("17.png", Stage.READ, "cannot be decoded"),)
    return make_training(
        make_evaluation().system, ranks=2, accuracy=Accuracy(1, 2, 3), validation="v", failures=failures
    )


def tuning() -> Evaluation[Any]:
    """The best configuration and another one, with only two bursts of queries."""
    whole = tuned_host()
    trials = tuple(replace(each, probes=[place]) for place, each in enumerate(whole.trials[:2]))
    return replace(make_evaluation(), measurement=replace(whole, probes=whole.probes[:2], trials=trials))


OWN: Mapping[str, Callable[[], Evaluation[Any]]] = {
    "batches": batches,
    "load": lambda: overloaded(make_evaluation()),
    "mix": lambda: silenced(make_evaluation()),
    "training": training,
    "ingestion": lambda: few(make_evaluation()),
    "operators": lambda: several(make_evaluation()),
    "tuning": tuning,
}
"""Evaluations with more parts, or smaller ones, than those that ``tests/kinds`` has for pictures."""
KINDS = [kind.name for kind in every_kind()]


def evaluation_of(kind: str) -> Evaluation[Any]:
    """The kind's own one above, or the first that one of its reports draws."""
    if kind in OWN:
        return OWN[kind]()
    [found, *_] = import_module(f"tests.kinds.{kind}").reported([make_evaluation()] * 3).values()
    return found[0]


def paths(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, of lists the first and the last one."""
    if above:
        yield above
    if isinstance(content, dict):
        for key, inside in content.items():
            yield from paths(inside, (*above, key))
    elif isinstance(content, list):
        for place in sorted({0, len(content) - 1} if content else ()):
            yield from paths(content[place], (*above, place))


def damaged(document: Mapping[str, Any], path: Sequence[Any], value: object) -> dict[str, Any]:
    inside = whole = copy.deepcopy(dict(document))
    for key in path[:-1]:
        inside = inside[key]
    if value is MISSING:
        del inside[path[-1]]
    else:
        inside[path[-1]] = copy.deepcopy(value)
    return whole


def damages(document: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """The document with each place damaged; what all kinds have in common only for one of them.

    Places at the top, and those that name the system, are damaged in every way, others in one, in turn.
    """
    for number, path in enumerate(paths(document)):
        if path[0] in {"_id", "evaluation_id"} or (kind != "batches" and path[0] != "measurement"):
            continue
        whole = len(path) == 1 or path[0] == "system"
        for value in VALUES if whole else (VALUES[number % len(VALUES)],):
            yield damaged(document, path, value)


REPORTS = page_reports()


def consume(evaluation: Evaluation[Any], whole: Evaluation[Any], spans: SpanSource) -> None:
    """Makes everything of an evaluation that a user can ask for."""
    for report in REPORTS.values():
        taken = report.taken([evaluation])
        rows = report.rows_of(taken, spans) if isinstance(report, TraceReport) else report.rows(taken)
        json.dumps(list(rows))
    list(overview_rows([evaluation, whole]))
    lines_of(evaluation, [whole], spans)
    as_document(evaluation, timed_by(evaluation, [whole]), [whole], spans)
    json.dumps(evaluation_document(evaluation, [whole], REPORTS, spans))
    try:
        sides = Side("A", (evaluation,)), Side("B", (whole,))
    except ConfigurationError:  # that it cannot be compared is said
        return
    comparison_document(*sides)


def check(backend: StoreBackend, store: EvaluationStore, whole: Evaluation[Any], ids: set[str]) -> None:
    """Each evaluation is there, or is named; those that are there can be used, whatever the database."""
    errors: list[StoreError] = []
    found = store.find(EvaluationFilter(include_interrupted=True), errors.append)
    named = [next(word for word in str(error).split() if word in ids) for error in errors]
    assert all(str(error).isprintable() for error in errors)
    used = [evaluation.id for evaluation in found]
    assert sorted([*named, *used]) == sorted({*ids, whole.id})
    assert len(named) > len(ids) / 4
    assert set(used) <= set(store.ids(""))
    store.choices()
    newest(store)
    chunks = tuple(store.spans(whole.id))
    for evaluation in found if backend.address is None else ():
        consume(evaluation, whole, lambda _: iter(chunks))


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_evaluation_is_used_or_named(backend: StoreBackend, name: str, kind: str) -> None:
    whole, store = evaluation_of(kind), backend.open(name)
    store.save(whole)
    with backend.documents(name) as documents:
        head = documents["evaluation"].find_one({"_id": whole.id})
        every = [each | {"_id": str(uuid.uuid4())} for each in damages(head, kind)]
        documents["evaluation"].insert_many(every)
    check(backend, store, whole, {each["_id"] for each in every})
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_with_a_damaged_part_is_used_or_named(
    backend: StoreBackend, name: str, kind: str
) -> None:
    whole, store = evaluation_of(kind), backend.open(name)
    store.save(whole)
    ids: set[str] = set()
    inserted: dict[str, list[dict[str, Any]]] = {}
    parts = {name: list(part) for name, part in to_documents(whole, "s").parts.items()}
    if not find_kind(kind).collections:
        assert not any(parts.values())
        store.close()
        return  # it is in the evaluation's own document
    for part, documents_of_it in parts.items():
        for each in damages({"measurement": documents_of_it[0]} if documents_of_it else {}, kind):
            if not isinstance(each.get("measurement"), dict) or "_id" not in each["measurement"]:
                continue
            again = to_documents(replace(whole, id=str(uuid.uuid4())), str(uuid.uuid4()))
            contents = {n: list(d) for n, d in again.parts.items()}
            kept = {n: contents[part][0][n] for n in ("_id", "evaluation_id", "save_id", "sequence")}
            contents[part][0] = each["measurement"] | kept
            ids.add(again.evaluation["_id"])
            for n, d in {**contents, "evaluation": [again.evaluation]}.items():
                inserted.setdefault(n, []).extend(d)
    with backend.documents(name) as documents:
        for n, d in inserted.items():
            if d:
                documents[n].insert_many(d)
    check(backend, store, whole, ids)
    for evaluation_id in ids:
        with suppress(StoreError):
            store.predictions(evaluation_id)
        errors: list[StoreError] = []
        chunks = tuple(readable_spans(store, errors.append)(evaluation_id))
        assert bool(chunks) or bool(errors) or not whole.spans
    store.close()


def test_an_operator_in_place_of_a_value_is_refused(store: EvaluationStore) -> None:
    with pytest.raises(TypeError, match="evaluation_id is dict"):
        store.find(EvaluationFilter(evaluation_id={"$ne": 1}))  # type: ignore[arg-type]
