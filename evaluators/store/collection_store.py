"""The store over collections of documents, whichever database holds them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from agent.predictor import Weights
from agent.tracing.span import SpanChunk
from evaluators.evaluation import Evaluation, InputPrediction
from evaluators.store.base import DATASET, EvaluationFilter
from evaluators.store.documents import (
    PARTS,
    Document,
    Documents,
    from_documents,
    lookup_key,
    release_of,
    to_documents,
)
from evaluators.store.load_documents import load_document_ids
from evaluators.store.prediction_documents import prediction_from_document
from evaluators.store.span_documents import chunk_from_document, span_document_id
from manifests.errors import ConfigurationError, StoreError

INDEXES = {
    "evaluation": ("created_at", "model_key"),
    "performance": ("evaluation_id",),
    "model_accuracy": ("evaluation_id",),
    "input_failure": ("evaluation_id",),
    "input_prediction": ("evaluation_id",),
    "span": ("evaluation_id",),
    "load_query": ("evaluation_id",),
    "agent": ("expires_unix_ms",),
}
"""The collections, and the fields of each that have an index."""
EXPIRING = {"agent": "expires_at"}
"""Collections whose documents go away by themselves at the time in a field, where the database does that."""

_IDS_PER_QUERY = 500
_DOCUMENTS_PER_INSERT = {"input_prediction": 1000}
_LARGE_DOCUMENTS_PER_INSERT = 4  # those of other parts hold thousands of values each
_TELLING = ("created_at", "model_key", "elapsed_ns", "batch_count", "failure_count")
"""Fields in which two evaluations differ even if somebody gave them the same id."""


class Database(Protocol):
    """Collections by name, with the methods that pymongo and neosqlite share."""

    def __getitem__(self, name: str, /) -> Any:
        """Returns a collection."""
        ...


class Connection(Protocol):
    """An open database.

    Attributes:
        location: Where it is, for messages; never with credentials.
        database: Its collections.
        errors: What its methods raise.
        duplicate_error: Which of them says that an id is there already.
    """

    location: str
    database: Database
    errors: tuple[type[Exception], ...]
    duplicate_error: type[Exception]

    def transaction(self) -> AbstractContextManager[None]:
        """Takes what is written inside as one, where the database can."""
        ...

    def reason(self, error: Exception) -> str:
        """Says in one short line, without credentials, why something failed."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


class CollectionStore:
    """An ``EvaluationStore`` over one open database. It is for one thread at a time.

    An evaluation's parts are written before its own document, which names them, so that nobody finds half
    of it, even where the database has no transactions. Documents are never changed. What an attempt that
    was cut off leaves behind takes space, and nothing else.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = False

    @property
    def location(self) -> str:
        """Where the evaluations are kept: a file's path, or an address without credentials."""
        return self._connection.location

    def save(self, evaluation: Evaluation) -> bool:
        """Keeps an evaluation; saving the same one again changes nothing.

        Returns:
            Whether it was not there before.

        Raises:
            StoreError: It could not be kept, or another evaluation has its id.
        """
        with self._wrapped(f"evaluation {evaluation.id} was not kept"):
            documents = to_documents(evaluation, _new_id())
            try:
                with self._connection.transaction():
                    if self._is_kept(documents.evaluation):
                        return False
                    self._insert(documents)
            except self._connection.duplicate_error:
                # Another process saved it in the meantime; without transactions our parts are there too.
                self._remove_parts(documents)
                if self._is_kept(documents.evaluation):
                    return False
                raise
        return True

    def find(
        self, wanted: EvaluationFilter, on_unreadable: Callable[[StoreError], None] | None = None
    ) -> Sequence[Evaluation]:
        """Returns the evaluations that are ``wanted``, the newest first, without their predictions.

        Args:
            wanted: Which.
            on_unreadable: Told of each evaluation that is damaged or of a newer version, which is then left
                out; None means that the first such one is raised.

        Raises:
            StoreError: The database cannot be reached, or an evaluation cannot be read.
            ConfigurationError: The limit is negative.
        """
        if wanted.limit is not None and wanted.limit < 0:
            raise ConfigurationError(f"limit {wanted.limit} makes no sense; leave it out for all evaluations")
        if wanted.limit == 0:
            return []
        with self._wrapped("evaluations cannot be read"):
            found = self._connection.database["evaluation"].find(_query(wanted))
            found = found.sort([("created_at", -1), ("_id", -1)])
            heads: list[Document] = list(found.limit(wanted.limit) if wanted.limit else found)
            return self._with_parts(heads, on_unreadable)

    def ids(self, prefix: str) -> Sequence[str]:
        """Returns the ids of evaluations, and of groups of them, that begin with ``prefix``, sorted.

        Raises:
            StoreError: The database cannot be reached.
        """
        begun = {"$gte": prefix, "$lt": f"{prefix}\U0010ffff"}
        with self._wrapped("ids of evaluations cannot be read"):
            query = {"$or": [{key: begun} for key in ("_id", "group_id")]}
            found = self._connection.database["evaluation"].find(query, {"_id": 1, "group_id": 1})
            every = {head.get(key) for head in found for key in ("_id", "group_id")}
        return sorted(name for name in every if isinstance(name, str) and name.startswith(prefix))

    def predictions(self, evaluation_id: str) -> Sequence[InputPrediction]:
        """Returns the predictions that were kept of an evaluation, in order; empty when none were.

        Raises:
            StoreError: The database cannot be reached, or does not hold the evaluation and its predictions.
        """
        with self._wrapped(f"predictions of evaluation {evaluation_id} cannot be read"):
            head = self._connection.database["evaluation"].find_one({"_id": evaluation_id})
            if head is None:
                raise StoreError(f"{self._connection.location}: holds no evaluation {evaluation_id}")
            if not head["input_prediction_count"]:
                return []
            query = {"evaluation_id": evaluation_id, "save_id": head["save_id"]}
            found = sorted(
                self._connection.database["input_prediction"].find(query), key=lambda d: int(d["input_index"])
            )
            if len(found) != head["input_prediction_count"]:
                raise StoreError(
                    f"{self._connection.location}: evaluation {evaluation_id} is damaged: {len(found)} of "
                    f"its {head['input_prediction_count']} predictions are there; evaluate again"
                )
            return [self._prediction(document) for document in found]

    def spans(self, evaluation_id: str) -> Iterator[SpanChunk]:
        """Yields the spans that were kept of an evaluation's trace, one piece after the other in order.

        Raises:
            StoreError: The database cannot be reached, or does not hold the evaluation and all its spans.
        """
        with self._wrapped(f"spans of evaluation {evaluation_id} cannot be read"):
            head = self._connection.database["evaluation"].find_one({"_id": evaluation_id})
            if head is None:
                raise StoreError(f"{self._connection.location}: holds no evaluation {evaluation_id}")
            for sequence in range(head.get("span_document_count", 0)):
                document = self._connection.database["span"].find_one(
                    {"_id": span_document_id(head["save_id"], sequence)}
                )
                if document is None:
                    raise StoreError(
                        f"{self._connection.location}: evaluation {evaluation_id} is damaged: piece "
                        f"{sequence} of {head['span_document_count']} of its spans is missing; evaluate again"
                    )
                yield self._chunk(document)

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def _insert(self, documents: Documents) -> None:
        for name in PARTS:
            remaining = iter(getattr(documents, name))
            most = _DOCUMENTS_PER_INSERT.get(name, _LARGE_DOCUMENTS_PER_INSERT)
            while piece := list(itertools.islice(remaining, most)):
                self._connection.database[name].insert_many(piece)
        self._connection.database["evaluation"].insert_one(documents.evaluation)

    def _is_kept(self, head: Document) -> bool:
        """Whether this evaluation is in the database.

        Raises:
            StoreError: Another evaluation is there with the same id.
        """
        kept = self._connection.database["evaluation"].find_one({"_id": head["_id"]})
        if kept is None:
            return False
        if any(kept.get(name) != head[name] for name in _TELLING):
            raise StoreError(
                f"{self._connection.location}: another evaluation has the id {head['_id']}; "
                "nothing was changed"
            )
        return True

    def _remove_parts(self, documents: Documents) -> None:
        for name in PARTS:
            self._connection.database[name].delete_many({"save_id": documents.evaluation["save_id"]})

    def _with_parts(
        self, heads: Sequence[Document], on_unreadable: Callable[[StoreError], None] | None
    ) -> list[Evaluation]:
        performance = self._by_id(
            "performance", [i for head in heads for i in head.get("performance_ids", ())]
        )
        failures = self._by_id(
            "input_failure", [i for head in heads for i in head.get("input_failure_ids", ())]
        )
        accuracy_ids = [head["model_accuracy_id"] for head in heads if head.get("model_accuracy_id")]
        accuracy = self._by_id("model_accuracy", accuracy_ids)
        queries = self._by_id("load_query", [i for head in heads for i in load_document_ids(head)])
        evaluations: list[Evaluation] = []
        for head in heads:
            documents = Documents(
                evaluation=head,
                performance=_present(performance, head.get("performance_ids", ())),
                model_accuracy=_present(accuracy, [head.get("model_accuracy_id")]),
                input_failure=_present(failures, head.get("input_failure_ids", ())),
                load_query=_present(queries, load_document_ids(head)),
            )
            try:
                evaluations.append(self._evaluation(documents))
            except StoreError as error:
                if on_unreadable is None:
                    raise
                on_unreadable(error)
        return evaluations

    def _evaluation(self, documents: Documents) -> Evaluation:
        try:
            return from_documents(documents)
        except StoreError as error:
            raise StoreError(f"{self._connection.location}: {error}") from error

    def _prediction(self, document: Document) -> InputPrediction:
        try:
            return prediction_from_document(document)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{self._connection.location}: evaluation {document['evaluation_id']} is damaged: a "
                f"prediction cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _chunk(self, document: Document) -> SpanChunk:
        try:
            return chunk_from_document(document)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{self._connection.location}: evaluation {document['evaluation_id']} is damaged: spans "
                f"cannot be read: {type(error).__name__}: {error}"
            ) from error

    def _by_id(self, name: str, ids: Sequence[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            query = {"_id": {"$in": list(ids[start : start + _IDS_PER_QUERY])}}
            found |= {document["_id"]: document for document in self._connection.database[name].find(query)}
        return found

    @contextmanager
    def _wrapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._connection.errors as error:
            reason = self._connection.reason(error)
            raise StoreError(f"{self._connection.location}: {what}: {reason}") from error


def _query(wanted: EvaluationFilter) -> Document:
    """What the database is asked for; every field of the filter but the limit is in it."""
    version = wanted.framework_version
    local = version is not None and release_of(version) != version
    names = {
        "model_key": wanted.model_name,
        "model_version_key": wanted.model_version,
        "framework_key": wanted.framework_name,
        "framework_version_key" if local else "framework_release_key": version,
        "machine_architecture_key": wanted.architecture,
        "hostname_key": wanted.hostname,
    }
    query: Document = {key: lookup_key(name) for key, name in names.items() if name is not None}
    if wanted.batch_size is not None:
        query["batch_size"] = wanted.batch_size
    if wanted.weights is not None:  # earlier versions, which kept nothing of it, had no random ones
        random = Weights.RANDOM.value
        query["system.weights"] = random if wanted.weights is Weights.RANDOM else {"$ne": random}
    if wanted.evaluation_id is not None:
        query["$or"] = [{key: wanted.evaluation_id} for key in ("_id", "group_id")]
    if wanted.kind is not None:
        query["load.options.kind"] = None if wanted.kind == DATASET else wanted.kind
    if not wanted.include_interrupted:
        query["status"] = "complete"
    return query


def _present(documents: dict[str, Document], ids: Sequence[str | None]) -> list[Document]:
    return [documents[name] for name in ids if name in documents]


def _new_id() -> str:
    return str(uuid.uuid4())
