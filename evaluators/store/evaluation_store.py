"""The store of evaluations, over collections of documents in any database, and the filter for queries.

A whole evaluation is JSON text for transmission, and in the spool of evaluations that are not yet stored.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from inferometer.agent.files import replacing, sync
from inferometer.agent.hardware.environment import Weights
from inferometer.agent.tracing.recorder import SpanChunk
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.documents import SPANS, Document, checked
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.kinds.batches.documents import predictions_from_documents
from inferometer.evaluators.kinds.batches.measurement import InputPrediction
from inferometer.evaluators.store import documents_v1
from inferometer.evaluators.store.documents import (
    DAMAGES,
    Documents,
    chunk_from_document,
    from_documents,
    lookup_key,
    on_demand,
    part_collections,
    part_ids,
    present_head,
    release_of,
    to_documents,
)
from inferometer.manifests.errors import ConfigurationError, StoreError, explained, one_line, printable

EXPIRING = {"agent": "expires_at"}
"""Collections whose documents the database deletes at the time in this field, if it supports that."""

_Read = TypeVar("_Read")
_IDS_PER_QUERY = 500
_PREDICTIONS = "input_prediction"
_CHOICES = {
    "model_name": "model.name",
    "framework_name": "framework.name",
    "batch_size": "batch_size",
    "hostname": "hostname",
    "kind": "kind",
    "stability": "conditions.stability",
}
_DOCUMENTS_PER_INSERT = {_PREDICTIONS: 1000}
_LARGE_DOCUMENTS_PER_INSERT = 4  # a document of any other part holds thousands of values
_CHARACTERS_PER_INSERT = 8_000_000
_TELLING = ("created_at", "kind", "model_key", "elapsed_ns")
"""The fields that distinguish two evaluations that have the same id."""


@cache
def indexes() -> Mapping[str, tuple[str, ...]]:
    """Returns the collections, each with the fields that are indexed."""
    return {
        "evaluation": ("created_at", "model_key"),
        "agent": ("expires_unix_ms",),
        **dict.fromkeys(part_collections(), ("evaluation_id",)),
    }


class Connection(Protocol):
    """An open database.

    Attributes:
        location: The file or address, for messages; without credentials.
        database: Its collections by name, with the methods that pymongo and neosqlite share.
        errors: The exceptions that its methods raise.
        duplicate_error: The exception for a duplicate id, one of ``errors``.
        creation: The fields that sort documents in the order of their creation.
    """

    location: str
    database: Any
    errors: tuple[type[Exception], ...]
    duplicate_error: type[Exception]
    creation: tuple[str, ...]

    def prepare_to_write(self) -> None:
        """Creates missing indexes, at the first call in a process that writes."""

    def transaction(self) -> AbstractContextManager[None]:
        """Makes the writes inside atomic, if the database supports that."""

    def reason(self, error: Exception) -> str:
        """Returns the reason for an error as one short line, without credentials."""

    def close(self) -> None:
        """Closes the connection."""


class Collections:
    """Access to the collections of one open database.

    Args:
        connection: The database, which ``close`` closes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = False

    @property
    def location(self) -> str:
        """The database: a file's path, or an address without credentials."""
        return self._connection.location

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    @contextmanager
    def _wrapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._connection.errors as error:
            reason = self._connection.reason(error)
            raise StoreError(f"{self.location}: {what}: {reason}") from error


@dataclass(frozen=True, slots=True)
class EvaluationFilter:
    """A filter of evaluations; None means any. Names and versions match as a whole, ignoring case.

    Attributes:
        framework_version: If it has no local part such as ``+cpu``, any local part matches.
        limit: The maximum number of evaluations, the newest first; None means all.
        offset: The number of the newest evaluations to skip.
        include_interrupted: Whether interrupted and failed evaluations match.
        evaluation_id: The id of an evaluation or of a group.
        stability: The verdict on the conditions.
    """

    model_name: str | None = None
    model_version: str | None = None
    framework_name: str | None = None
    framework_version: str | None = None
    architecture: str | None = None
    hostname: str | None = None
    batch_size: int | None = None
    weights: Weights | None = None
    limit: int | None = None
    include_interrupted: bool = False
    evaluation_id: str | None = None
    kinds: tuple[str, ...] | None = None
    stability: Stability | None = None
    offset: int = 0


class EvaluationStore(Collections):
    """The evaluations in one open database. It is not thread-safe.

    Each method raises StoreError if the database cannot be reached.

    The parts of an evaluation are written before its own document, which lists them: no reader finds a
    partial evaluation, even without transactions. Documents are never changed. The remains of an interrupted
    attempt only take up space.
    """

    def save(self, evaluation: Evaluation) -> bool:
        """Saves an evaluation atomically; its time is kept to the millisecond.

        Returns:
            Whether it is new; saving a stored evaluation again changes nothing.

        Raises:
            StoreError: It could not be saved, or another evaluation has the same id.
        """
        with self._wrapped(f"evaluation {evaluation.id} was not kept"):
            self._connection.prepare_to_write()
            documents = to_documents(evaluation, str(uuid.uuid4()))
            try:
                with self._connection.transaction():
                    if self._is_kept(documents.evaluation):
                        return False
                    self._insert(documents)
            except self._connection.duplicate_error:
                # Another process saved it first; without transactions, the database holds our parts too.
                for name in documents.parts:
                    self._connection.database[name].delete_many({"save_id": documents.evaluation["save_id"]})
                if self._is_kept(documents.evaluation):
                    return False
                raise
        return True

    def find(
        self, wanted: EvaluationFilter, on_unreadable: Callable[[StoreError], None] | None = None
    ) -> Sequence[Evaluation]:
        """Returns the matching evaluations, the newest first, without predictions and spans.

        For an evaluation that is damaged or of a newer version, ``on_unreadable`` is called with the error
        and the evaluation is skipped; without ``on_unreadable``, the error is raised.

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
            found = found.sort([(field, -1) for field in (*self._connection.creation, "_id")])
            found = found.skip(wanted.offset) if wanted.offset else found
            heads: list[Document] = list(found.limit(wanted.limit) if wanted.limit else found)
            return self._with_parts(heads, on_unreadable)

    def count(self, wanted: EvaluationFilter) -> int:
        """Returns how many evaluations match, ignoring limit and offset, without reading them."""
        with self._wrapped("evaluations cannot be counted"):
            return int(self._connection.database["evaluation"].count_documents(_query(wanted)))

    def choices(self) -> Mapping[str, Sequence[str | int]]:
        """Returns the values, sorted, that some of a filter's fields have in the stored evaluations.

        The fields are ``model_name``, ``framework_name``, ``batch_size``, ``hostname``, ``kind`` and
        ``stability``.
        """
        with self._wrapped("evaluations cannot be read"):
            collection = self._connection.database["evaluation"]
            found = {name: collection.distinct(path) for name, path in _CHOICES.items()}
        kinds: Mapping[str, Any] = {"batch_size": int}  # a damaged document may hold another one
        return {n: sorted(v for v in known if isinstance(v, kinds.get(n, str))) for n, known in found.items()}

    def ids(self, prefix: str) -> Sequence[str]:
        """Returns the sorted ids of evaluations and groups that begin with ``prefix``."""
        begun = {"$gte": prefix, "$lt": f"{prefix}\U0010ffff"}
        with self._wrapped("ids of evaluations cannot be read"):
            query = {"$or": [{key: begun} for key in ("_id", "group_id")]}
            found = self._connection.database["evaluation"].find(query, {"_id": 1, "group_id": 1})
            every = [head.get(key) for head in found for key in ("_id", "group_id")]
        return sorted({name for name in every if isinstance(name, str) and name.startswith(prefix)})

    def predictions(self, evaluation_id: str) -> Sequence[InputPrediction]:
        """Returns the stored predictions of an evaluation, in order; empty if it has none.

        Raises:
            StoreError: The database cannot be reached, or the evaluation or predictions are missing.
        """
        with self._wrapped(f"predictions of evaluation {evaluation_id} cannot be read"):
            head = self._head(evaluation_id)
            count = len(part_ids(head).get(_PREDICTIONS, ()))
            if not count:
                return []
            query = {"evaluation_id": evaluation_id, "save_id": head["save_id"]}
            found = list(self._connection.database[_PREDICTIONS].find(query))
            if len(found) != count:
                raise StoreError(
                    f"{self.location}: evaluation {evaluation_id} is damaged: {len(found)} of "
                    f"its {count} predictions are there; evaluate again"
                )
            return self._read(lambda: _in_order(found), evaluation_id, "a prediction")

    def spans(self, evaluation_id: str) -> Iterator[SpanChunk]:
        """Yields the stored spans of an evaluation's trace, chunk by chunk, in order; nothing if it has none.

        Raises:
            StoreError: The database cannot be reached, or the evaluation or spans are missing.
        """
        with self._wrapped(f"spans of evaluation {evaluation_id} cannot be read"):
            ids = part_ids(self._head(evaluation_id)).get(SPANS, ())
            for sequence, name in enumerate(ids):
                document = self._connection.database[SPANS].find_one({"_id": name})
                if document is None:
                    raise StoreError(
                        f"{self.location}: evaluation {evaluation_id} is damaged: piece "
                        f"{sequence} of {len(ids)} of its spans is missing; evaluate again"
                    )
                yield self._read(partial(chunk_from_document, document), evaluation_id, "spans")

    def _head(self, evaluation_id: str) -> Document:
        """Returns the evaluation's own document, in the present schema."""
        head = self._connection.database["evaluation"].find_one({"_id": evaluation_id})
        if head is None:
            raise StoreError(f"{self.location}: holds no evaluation {evaluation_id}")
        with self._located():
            return present_head(head)

    def _insert(self, documents: Documents) -> None:
        for name, part in documents.parts.items():
            remaining = iter(part)
            most = _DOCUMENTS_PER_INSERT.get(name, _LARGE_DOCUMENTS_PER_INSERT)
            while piece := list(_few(remaining, most)):
                self._connection.database[name].insert_many(piece)
        self._connection.database["evaluation"].insert_one(documents.evaluation)

    def _is_kept(self, head: Document) -> bool:
        """Returns whether this evaluation is stored; raises StoreError if another one has its id."""
        found = self._connection.database["evaluation"].find_one({"_id": head["_id"]})
        if found is None:
            return False
        with self._located():
            kept = present_head(found)
        if any(kept.get(name) != head[name] for name in _TELLING) or _counts(kept) != _counts(head):
            raise StoreError(
                f"{self.location}: another evaluation has the id {head['_id']}; nothing was changed"
            )
        return True

    def _with_parts(
        self, heads: Sequence[Document], on_unreadable: Callable[[StoreError], None] | None
    ) -> list[Evaluation]:
        """Returns the evaluations of these documents; the parts of all are fetched together."""

        def report(error: StoreError) -> None:
            if on_unreadable is None:
                raise error
            on_unreadable(error)

        wanted: list[tuple[Document, dict[str, Sequence[str]]]] = []
        for head in heads:
            try:
                with self._located():
                    present = present_head(head)
            except StoreError as error:
                report(error)
                continue
            wanted.append((head, dict(part_ids(present, on_demand(present)))))
        ids_of: dict[str, list[str]] = {}
        for _, parts in wanted:
            for name, ids in parts.items():
                ids_of.setdefault(name, []).extend(ids)
        found = {name: self._by_id(name, ids) for name, ids in ids_of.items()}
        evaluations: list[Evaluation] = []
        for head, parts in wanted:
            there = {name: [found[name][i] for i in ids if i in found[name]] for name, ids in parts.items()}
            try:
                with self._located():
                    evaluations.append(from_documents(Documents(head, there), partial=True))
            except StoreError as error:
                report(error)
        return evaluations

    def _read(self, read: Callable[[], _Read], evaluation_id: str, what: str) -> _Read:
        try:
            return read()
        except DAMAGES as error:
            raise StoreError(
                f"{self.location}: evaluation {evaluation_id} is damaged: {what} "
                f"cannot be read: {type(error).__name__}: {printable(one_line(error))}"
            ) from error

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Adds the location of the database to errors about a document."""
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{self.location}: {error}") from error

    def _by_id(self, name: str, ids: Sequence[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        for start in range(0, len(ids), _IDS_PER_QUERY):
            query = {"_id": {"$in": list(ids[start : start + _IDS_PER_QUERY])}}
            found |= {document["_id"]: document for document in self._connection.database[name].find(query)}
        return found


def _in_order(found: list[Document]) -> list[InputPrediction]:
    """Returns the predictions of documents; in version 1, each is a document without a sequence number."""
    found.sort(key=lambda each: (int(each["input_index"]), int(each.get("sequence", 0))))
    return list(predictions_from_documents(found))


def _few(documents: Iterator[Document], most: int) -> Iterator[Document]:
    """Yields the next documents, or fewer if they hold pieces of large columns."""
    characters = 0
    for document in itertools.islice(documents, most):
        yield document
        characters += len(document.get("data", ""))
        if characters >= _CHARACTERS_PER_INSERT:
            return


def _query(wanted: EvaluationFilter) -> Document:
    """Returns the query of a filter, without its limit; raises TypeError for a value of another type."""
    checked(wanted)
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
    if wanted.weights is not None:  # without this field, of earlier versions, they are pretrained
        random = Weights.RANDOM.value
        query["system.weights"] = random if wanted.weights is Weights.RANDOM else {"$ne": random}
    if wanted.evaluation_id is not None:
        query["$and"] = [{"$or": [{key: wanted.evaluation_id} for key in ("_id", "group_id")]}]
    if wanted.stability is not None:
        query["conditions.stability"] = wanted.stability.value
    if wanted.kinds is not None:
        of_kind = {"$or": [{"kind": {"$in": list(wanted.kinds)}}, documents_v1.kind_query(wanted.kinds)]}
        query["$and"] = [*query.get("$and", ()), of_kind]
    if not wanted.include_interrupted:
        query["status"] = "complete"
    return query


def _counts(head: Document) -> Document:
    """Returns those values of a measurement's document that are integers, which are its counts."""
    return {name: value for name, value in head["measurement"].items() if isinstance(value, int)}


_FORMAT = "inferometer evaluation"


def evaluation_to_json(evaluation: Evaluation) -> str:
    """Returns the evaluation with its raw times and its predictions as JSON; non-ASCII text is escaped."""
    documents = to_documents(evaluation, evaluation.id)
    created_at = documents.evaluation["created_at"].isoformat(timespec="milliseconds")
    content = {
        "format": _FORMAT,
        "evaluation": documents.evaluation | {"created_at": created_at},
        "parts": {name: list(part) for name, part in documents.parts.items()},
    }
    return json.dumps(content, allow_nan=False)


def evaluation_from_json(text: str) -> Evaluation:
    """Returns the evaluation that ``evaluation_to_json`` of this version or the first version wrote.

    Raises:
        StoreError: The text is truncated, not an evaluation, or from a newer version of the program.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise StoreError(f"is cut off or not JSON: {reason}") from error
    if not isinstance(content, dict) or content.get("format") not in (_FORMAT, documents_v1.FORMAT):
        raise StoreError(f'is not an evaluation: it has no "format": "{_FORMAT}"')
    try:
        if content["format"] == documents_v1.FORMAT:
            content["parts"] = {name: content.get(name, []) for name in documents_v1.COLLECTIONS}
        head = content["evaluation"]
        head["created_at"] = datetime.fromisoformat(head["created_at"])
        documents = Documents(head, dict(content["parts"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"is not a whole evaluation: {type(error).__name__}: {error}") from error
    return from_documents(documents)


def write_spool(evaluation: Evaluation, directory: Path) -> Path:
    """Writes an evaluation, with its predictions, to a file in ``directory`` and returns the file's path.

    The file is written atomically and synced to the disk. Writing an evaluation again replaces its file.

    Raises:
        StoreError: The directory cannot be created, or the file cannot be written.
    """
    path = directory / f"{quote(evaluation.id, safe='')}.json"
    content = evaluation_to_json(evaluation).encode("utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _write(path, content)
        except FileNotFoundError:  # another process has removed the folder, which was empty
            directory.mkdir(parents=True, exist_ok=True)
            _write(path, content)
        with suppress(OSError):  # some file systems do not support this
            sync(directory)  # without this, a power failure may lose the name of a new file
    except OSError as error:
        raise StoreError(
            f"{path}: evaluation {evaluation.id} cannot be written there: {error.strerror or error}; "
            "free space or name another directory"
        ) from error
    return path


def read_spool(path: Path) -> Evaluation:
    """Returns the evaluation that ``write_spool`` wrote to the file ``path``.

    Raises:
        StoreError: The file cannot be read, is truncated, or holds something else.
    """
    try:
        with explained(StoreError, f"{path}: cannot be read"):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: is not an evaluation: it is not text") from error
    try:
        return evaluation_from_json(text)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def _write(path: Path, content: bytes) -> None:
    with replacing(path, synced=True, mode=0o600) as file:
        file.write(content)
