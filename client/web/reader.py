"""Queries a store for the server's page: a page of evaluations, one evaluation, a comparison, totals."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from inferometer.client.api.results import chosen_side, find_one, others_of, readable_spans
from inferometer.client.web.documents import (
    SORTABLE,
    Reports,
    comparison_document,
    evaluation_document,
    overview_columns,
    overview_rows,
    page_reports,
    sort_key,
)
from inferometer.evaluators.conditions.conditions import Stability
from inferometer.evaluators.kinds.registry import every_kind, find_kind
from inferometer.evaluators.store.evaluation_store import EvaluationFilter, EvaluationStore
from inferometer.manifests.errors import ConfigurationError, StoreError

MOST_ROWS = 500
"""The maximum number of rows in one answer."""
MOST_SORTED = 100_000
"""The maximum number of evaluations whose rows are cached and can be sorted by any column."""
_READ_AT_ONCE = 50
_READING_S = 0.25
_BY_TIME = "created_at"
_T = TypeVar("_T")
OpenStore: TypeAlias = Callable[[], EvaluationStore]
"""Opens a store."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A page of the table of evaluations.

    An empty ``id_prefix`` stands for any id.
    """

    wanted: EvaluationFilter
    sort: str = _BY_TIME
    ascending: bool = False
    offset: int = 0
    limit: int = 100
    id_prefix: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ListQuery:
        """Reads the parameters of a request.

        Raises:
            ConfigurationError: A parameter is invalid; the message names it.
        """
        sort = given.get("sort") or _BY_TIME
        _choice("sort", sort, dict.fromkeys(SORTABLE))
        batch_size = given.get("batch_size")
        wanted = EvaluationFilter(
            model_name=given.get("model_name") or None,
            framework_name=given.get("framework_name") or None,
            hostname=given.get("hostname") or None,
            batch_size=_number("batch_size", batch_size, 1) if batch_size else None,
            kinds=_choice("kind", given.get("kind"), {kind.title: (kind.name,) for kind in every_kind()}),
            stability=_choice("stability", given.get("stability"), {each.value: each for each in Stability}),
            include_interrupted=True,
        )
        return cls(
            wanted,
            sort,
            given.get("order") == "ascending",
            _number("offset", given.get("offset", "0"), 0),
            _number("limit", given.get("limit", "100"), 1, MOST_ROWS),
            given.get("id", "").strip().lower(),
        )

    @property
    def is_by_time(self) -> bool:
        """Whether the store itself sorts and limits the page, so that nothing else is read."""
        return self.sort == _BY_TIME and not self.ascending and not self.id_prefix

    def takes(self, values: Mapping[str, Any]) -> bool:
        """Returns whether a row with these values by column is wanted, ignoring case."""
        wanted = self.wanted
        asked = {
            "model_name": wanted.model_name,
            "framework_name": wanted.framework_name,
            "hostname": wanted.hostname,
            "batch_size": wanted.batch_size,
            "kind": None if wanted.kinds is None else find_kind(wanted.kinds[0]).title,
            "stability": None if wanted.stability is None else wanted.stability.value,
        }
        return all(
            str(values[name]).strip().casefold() == str(value).strip().casefold()
            for name, value in asked.items()
            if value is not None
        )


def _number(name: str, text: str, least: int, most: int = 2**31 - 1) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
        raise ConfigurationError(f"{name} is {text[:20]!r}; it must be a whole number from {least} to {most}")
    return int(text)


def _choice(name: str, text: str | None, known: Mapping[str, _T]) -> _T | None:
    """Returns the value that a text names; None if the text is empty."""
    if not text:
        return None
    if text not in known:
        raise ConfigurationError(f"{name} is {text[:40]!r}; it must be one of {', '.join(known)}")
    return known[text]


class StoreReader:
    """Reads from one store. All methods must be called in the thread that makes the first call.

    Rows of the table are cached, because evaluations never change. Each method raises StoreError if the store
    cannot be read.
    """

    def __init__(self, open_store: OpenStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = open_store
        self._clock = clock
        self._read_to = 0
        self._store: EvaluationStore | None = None
        self._rows: dict[str, dict[str, Any]] = {}
        self._unreadable: dict[str, None] = {}

    @property
    def store(self) -> EvaluationStore:
        """The store, opened in this thread."""
        if self._store is None:
            self._store = self._open()
        return self._store

    @cached_property
    def _reports(self) -> Reports:
        return page_reports()

    def close(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def total(self) -> int:
        """Returns how many evaluations there are."""
        return self.store.count(EvaluationFilter(include_interrupted=True))

    def about(self) -> dict[str, Any]:
        """Returns the content of the page's header."""
        return {"source": self.store.location}

    def filters(self) -> dict[str, Any]:
        """Returns the values that each filter offers, by the key of its column."""
        found = dict(self.store.choices())
        titles = {kind.name: kind.title for kind in every_kind()}
        found["kind"] = [titles.get(kind, kind) for kind in map(str, found["kind"])]
        return found

    def page(self, query: ListQuery) -> dict[str, Any]:
        """Returns a page of the table, or how many of the rows that it requires have been read.

        If sorted by time, only that page is read. In any other order, rows are read for at most
        ``_READING_S``, so that other requests are not blocked, and the caller asks again.

        Raises:
            StoreError: The store cannot be read.
            ConfigurationError: There are too many evaluations to sort.
        """
        if not query.is_by_time:
            return self._ordered_page(query)
        rows = self._read(replace(query.wanted, offset=query.offset, limit=query.limit))
        return self._answer(query, rows, self.store.count(query.wanted))

    def _ordered_page(self, query: ListQuery) -> dict[str, Any]:
        rows: Sequence[dict[str, Any]]
        if query.id_prefix:
            ids = self.store.ids(query.id_prefix)[:MOST_ROWS]  # of evaluations or groups
            wanted = (EvaluationFilter(evaluation_id=each, include_interrupted=True) for each in ids)
            rows = list({row["id"]: row for each in wanted for row in self._read(each)}.values())
        else:
            total = self.total()
            if total > MOST_SORTED:
                raise ConfigurationError(
                    f"{total} evaluations are too many to sort by {query.sort}; sort by time"
                )
            if not self._all_read(total):
                return {"reading": {"done": len(self._rows), "total": total}}
            rows = tuple(self._rows.values())
        keys = [column["key"] for column in overview_columns()]
        chosen = [row for row in rows if query.takes(dict(zip(keys, row["values"], strict=True)))]
        at = keys.index(query.sort)
        chosen.sort(key=lambda row: (row["values"][keys.index(_BY_TIME)], row["id"]), reverse=True)
        known = [row for row in chosen if row["values"][at] is not None]
        known.sort(key=lambda row: sort_key(row["values"][at]), reverse=not query.ascending)
        ordered = [*known, *(row for row in chosen if row["values"][at] is None)]
        return self._answer(query, ordered[query.offset : query.offset + query.limit], len(chosen))

    def _all_read(self, total: int) -> bool:
        """Reads rows that are not cached, the newest first; returns whether all are cached."""
        deadline_s = self._clock() + _READING_S
        while len(self._rows) + len(self._unreadable) < total and self._read_to < total:
            if self._clock() > deadline_s:
                return False
            self._read(EvaluationFilter(include_interrupted=True, offset=self._read_to, limit=_READ_AT_ONCE))
            self._read_to += _READ_AT_ONCE
        self._read_to = 0
        return True

    def evaluation(self, evaluation_id: str) -> dict[str, Any]:
        """Returns one evaluation by its id or a unique beginning of it.

        Raises:
            StoreError: There is no such evaluation, or it cannot be read.
        """
        found = find_one(self.store, evaluation_id)
        others = others_of(self.store, found, self._left_out)
        return evaluation_document(found, others, self._reports, readable_spans(self.store))

    def comparison(self, a: str, b: str) -> dict[str, Any]:
        """Returns the comparison of two evaluations, or of two groups.

        Raises:
            StoreError: An evaluation or a group does not exist.
            ConfigurationError: A side has no evaluation that can be compared.
        """
        left_out: list[str] = []
        one, other = (
            chosen_side(self.store, name, given, left_out.append) for name, given in (("A", a), ("B", b))
        )
        return comparison_document(one, other, left_out)

    def _read(self, wanted: EvaluationFilter) -> list[dict[str, Any]]:
        """Returns the rows of evaluations, in the order of the store."""
        found = self.store.find(wanted, self._left_out)
        missing = [each for each in found if each.id not in self._rows]
        self._rows.update((row["id"], row) for row in overview_rows(missing))
        return [self._rows[each.id] for each in found]

    def _left_out(self, error: StoreError) -> None:
        self._unreadable.setdefault(str(error))

    def _answer(self, query: ListQuery, rows: Sequence[dict[str, Any]], matched: int) -> dict[str, Any]:
        return {
            "columns": overview_columns(),
            "rows": list(rows),
            "total": self.total(),
            "matched": matched,
            "offset": query.offset,
            "limit": query.limit,
            "sort": {"key": query.sort, "descending": not query.ascending},
            "unreadable": list(self._unreadable),
        }
