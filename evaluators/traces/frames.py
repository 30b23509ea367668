"""Aggregation of spans into the frames of a flame graph, by their names and those of their ancestors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.tracing.span import SpanChunk

Spans: TypeAlias = Callable[[], Iterable[SpanChunk]]
"""Returns an iteration over the spans of a trace from the first; can be called repeatedly."""

_OUTSIDE = -1  # the position of the parent of a root span
_NOWHERE = -1  # the stack of a span below itself
_TOP = 0
_LATEST_NS = int(np.iinfo(np.int64).max)


@dataclass(slots=True)
class Frame:
    """All spans of one name below ancestors of the same names: their count and total time."""

    name: str
    count: int = 0
    total_ns: int = 0
    children: list[Frame] = field(default_factory=list)

    @property
    def width_ns(self) -> int:
        """The time that the frame's width shows: that of its children if they ran concurrently."""
        return max(self.total_ns, sum(child.width_ns for child in self.children))


def frames(spans: Spans) -> Frame:
    """Aggregates spans into frames; spans without a parent in the trace are at the top.

    Sibling frames are ordered by the earliest start of their spans. Spans below themselves are omitted.

    Memory: about 40 bytes for each span with children, one chunk, and the frames. The spans are read three
    times: to find the spans with children, to read these, and to aggregate all.

    Returns:
        A frame without a name whose children are the top frames.
    """
    above = _above(spans())
    names: dict[str, int] = {}
    found: list[tuple[NDArray[np.int64], ...]] = [(np.empty(0, np.int64),) * 3]
    for chunk in spans():
        has_others = _positions(above, chunk.span_id) >= 0
        columns = (_names(chunk, names), chunk.span_id, chunk.parent_id)
        found.append(tuple(column[has_others] for column in columns))
    name, span_id, parent_id = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(span_id, kind="stable")
    name, span_id, parent_id = name[order], span_id[order], parent_id[order]
    stacks = _Stacks(list(names))
    stack_of = _stacked(stacks, name, _positions(span_id, parent_id))
    for chunk in spans():
        parents = _positions(span_id, chunk.parent_id)
        stack_above = np.where(parents == _OUTSIDE, _TOP, np.append(stack_of, _NOWHERE)[parents])
        known = stack_above != _NOWHERE
        stacks.add(
            stack_above[known], _names(chunk, names)[known], chunk.start_ns[known], chunk.duration_ns[known]
        )
    return stacks.as_frame()


class _Stacks:
    """Stacks of names, each with a number; ``_TOP`` is the empty stack."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._number: dict[int, int] = {}
        self._key, self._start_ns = [0], [_LATEST_NS]
        self._frames = [Frame("")]

    def numbers(
        self, above: NDArray[np.int64], name: NDArray[np.int64]
    ) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the distinct stacks of spans below others, and for each span the index of its stack."""
        keys, inverse = np.unique(above * len(self._names) + name, return_inverse=True)
        return [self._number.get(key) or self._new(key) for key in keys.tolist()], inverse

    def add(
        self,
        above: NDArray[np.int64],
        name: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
    ) -> None:
        """Adds spans and their time."""
        numbers, inverse = self.numbers(above, name)
        counts = np.bincount(inverse, minlength=len(numbers))
        totals = np.zeros(len(numbers), np.int64)
        np.add.at(totals, inverse, duration_ns)
        starts = np.full(len(numbers), _LATEST_NS)
        np.minimum.at(starts, inverse, start_ns)
        for number, count, total_ns, begin_ns in zip(
            numbers, counts.tolist(), totals.tolist(), starts.tolist(), strict=True
        ):
            self._frames[number].count += count
            self._frames[number].total_ns += total_ns
            self._start_ns[number] = min(begin_ns, self._start_ns[number])

    def as_frame(self) -> Frame:
        """Returns the stacks as a tree of frames."""
        for number in sorted(range(1, len(self._key)), key=lambda n: (self._start_ns[n], self._key[n])):
            self._frames[self._key[number] // len(self._names)].children.append(self._frames[number])
        return self._frames[_TOP]

    def _new(self, key: int) -> int:
        number = self._number[key] = len(self._key)
        self._key.append(key)
        self._start_ns.append(_LATEST_NS)
        self._frames.append(Frame(self._names[key % len(self._names)]))
        return number


def _above(chunks: Iterable[SpanChunk]) -> NDArray[np.int64]:
    """Returns the sorted ids of the spans with children."""
    found: NDArray[np.int64] = np.empty(0, np.int64)
    pieces: list[NDArray[np.int64]] = []
    waiting = 0
    for chunk in chunks:
        pieces.append(np.unique(chunk.parent_id))
        waiting += len(pieces[-1])
        if waiting > len(found):
            found, pieces, waiting = np.unique(np.concatenate([found, *pieces])), [], 0
    ids: NDArray[np.int64] = np.unique(np.concatenate([found, *pieces]))
    return ids


def _stacked(stacks: _Stacks, name: NDArray[np.int64], above: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the number of each span's stack, level by level from the top; ``above`` locates its parent."""
    stack_of: NDArray[np.int64] = np.full(len(name), _NOWHERE, np.int64)
    level = np.flatnonzero(above == _OUTSIDE)
    parents = np.full(len(level), _TOP, np.int64)
    while len(level):
        numbers, inverse = stacks.numbers(parents, name[level])
        stack_of[level] = np.array(numbers, np.int64)[inverse]
        left = np.flatnonzero((above != _OUTSIDE) & (stack_of == _NOWHERE))
        level = left[stack_of[above[left]] != _NOWHERE]
        parents = stack_of[above[level]]
    return stack_of


def _names(chunk: SpanChunk, names: dict[str, int]) -> NDArray[np.int64]:
    """Returns the name of each span, as its number in ``names``, which grows as needed."""
    of_kind = np.array([names.setdefault(kind.name, len(names)) for kind in chunk.kinds], np.int64)
    of_span: NDArray[np.int64] = of_kind[chunk.kind]
    return of_span


def _positions(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each of ``wanted`` in sorted ids; -1 for a missing one."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    found = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    positions: NDArray[np.int64] = np.where(ids[found] == wanted, found, -1)
    return positions
