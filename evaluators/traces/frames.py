"""The frames of a flame graph: spans summed up by their names and the names above them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agent.tracing.span import SpanChunk

Spans: TypeAlias = Callable[[], Iterable[SpanChunk]]
"""Gives the spans of a trace from the first on, each time that it is called."""

_OUTSIDE = -1  # of a trace: where the parent of a topmost span is
_NOWHERE = -1  # the place of a span below itself
_TOP = 0
_LATEST_NS = int(np.iinfo(np.int64).max)


@dataclass(slots=True)
class Frame:
    """All spans with the same names above them.

    Attributes:
        name: Their name.
        count: How many they are.
        total_ns: Their time, together.
        children: The frames below.
    """

    name: str
    count: int = 0
    total_ns: int = 0
    children: list[Frame] = field(default_factory=list)

    @property
    def width_ns(self) -> int:
        """The time that the frame is drawn with: that of those below it where they ran side by side."""
        return max(self.total_ns, sum(child.width_ns for child in self.children))


def frames(spans: Spans) -> Frame:
    """Sums up spans by their names and those above them; what has no parent in the trace is at the top.

    Frames of one level are in the order in which the first of their spans began. Spans that lie below
    themselves are left out.

    Memory: some 40 bytes for each span that has others below it, one chunk, and the frames. So the spans are
    read three times: to learn which have others below them, what those are, and to sum all up.

    Returns:
        A frame without a name that holds the topmost ones.
    """
    above = _above(spans())
    names: dict[str, int] = {}
    found: list[tuple[NDArray[np.int64], ...]] = [(np.empty(0, np.int64),) * 3]
    for chunk in spans():
        has_others = _places(above, chunk.span_id) >= 0
        columns = (_names(chunk, names), chunk.span_id, chunk.parent_id)
        found.append(tuple(column[has_others] for column in columns))
    name, span_id, parent_id = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(span_id, kind="stable")
    name, span_id, parent_id = name[order], span_id[order], parent_id[order]
    stacks = _Stacks(list(names))
    stack_of = _stacked(stacks, name, _places(span_id, parent_id))
    for chunk in spans():
        parents = _places(span_id, chunk.parent_id)
        stack_above = np.where(parents == _OUTSIDE, _TOP, np.append(stack_of, _NOWHERE)[parents])
        known = stack_above != _NOWHERE
        stacks.add(
            stack_above[known],
            _names(chunk, names)[known],
            chunk.start_ns[known],
            chunk.duration_ns[known],
        )
    return stacks.as_frame()


class _Stacks:
    """Names with the names above them; each stack has a number, and ``_TOP`` is the one without a name."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._number: dict[int, int] = {}
        self._key = [0]
        self._count, self._total_ns, self._start_ns = [0], [0], [_LATEST_NS]

    def numbers(
        self, above: NDArray[np.int64], name: NDArray[np.int64]
    ) -> tuple[list[int], NDArray[np.int64]]:
        """Returns the stacks of spans under others: each once, and for each span which of these it is."""
        keys, inverse = np.unique(above * len(self._names) + name, return_inverse=True)
        return [self._number.get(key) or self._new(key) for key in keys.tolist()], inverse

    def add(
        self,
        above: NDArray[np.int64],
        name: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        duration_ns: NDArray[np.int64],
    ) -> None:
        """Counts spans and their time."""
        numbers, inverse = self.numbers(above, name)
        counts = np.bincount(inverse, minlength=len(numbers))
        totals = np.zeros(len(numbers), np.int64)
        np.add.at(totals, inverse, duration_ns)
        starts = np.full(len(numbers), _LATEST_NS)
        np.minimum.at(starts, inverse, start_ns)
        for number, count, total_ns, begin_ns in zip(
            numbers, counts.tolist(), totals.tolist(), starts.tolist(), strict=True
        ):
            self._count[number] += count
            self._total_ns[number] += total_ns
            self._start_ns[number] = min(begin_ns, self._start_ns[number])

    def as_frame(self) -> Frame:
        """Returns the stacks as frames below each other."""
        top = Frame("")
        made = [top]
        for number in range(1, len(self._key)):
            name = self._names[self._key[number] % len(self._names)]
            made.append(Frame(name, self._count[number], self._total_ns[number]))
        for number in sorted(range(1, len(made)), key=lambda n: (self._start_ns[n], self._key[n])):
            made[self._key[number] // len(self._names)].children.append(made[number])
        return top

    def _new(self, key: int) -> int:
        number = self._number[key] = len(self._key)
        self._key.append(key)
        self._count.append(0)
        self._total_ns.append(0)
        self._start_ns.append(_LATEST_NS)
        return number


def _above(chunks: Iterable[SpanChunk]) -> NDArray[np.int64]:
    """The ids of the spans that have others below them; sorted."""
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
    """The number of the stack of each span, level by level from the top; ``above`` is where its parent is."""
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
    """The name of each span, as a number that ``names`` has or is given."""
    of_kind = np.array([names.setdefault(kind.name, len(names)) for kind in chunk.kinds], np.int64)
    of_span: NDArray[np.int64] = of_kind[chunk.kind]
    return of_span


def _places(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of ``wanted`` is among sorted ids; -1 for one that is not there."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    found = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    places: NDArray[np.int64] = np.where(ids[found] == wanted, found, -1)
    return places
