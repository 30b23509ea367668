"""Comparisons of evaluations, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, TypeAlias, overload

from inferometer.client.api.stored import chosen_side
from inferometer.client.library import html
from inferometer.client.library.invocation import library_invocation
from inferometer.client.library.results import Result
from inferometer.client.library.tables import Tabular
from inferometer.evaluators.comparing.sides import Side
from inferometer.evaluators.comparing.verdict import parse_figures
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs import compare as job
from inferometer.evaluators.jobs.defaults import ACCURACY_THRESHOLD
from inferometer.evaluators.plots.compared import drawing_of
from inferometer.evaluators.reports.base import Column, Row
from inferometer.manifests.errors import ConfigurationError

Named: TypeAlias = Result[Any] | str
"""A result, or the id of a stored evaluation or group; a unique prefix is enough."""


class Comparison(Tabular, Sequence[Row]):
    """A row for each figure: A, B, their ratio with its 95 % interval, and the verdict.

    Attributes:
        conclusion: The overall conclusion from all figures, in one line.
        worse: Whether B is worse in any figure by more than the threshold.
        undecided: For each undecided figure, one line with the reason and how much worse B may be.
        notes: Caveats about the rows: differences between the sides, and disturbed conditions.
    """

    def __init__(
        self, request: job.ComparisonRequest, found: job.Comparison, left_out: Sequence[str]
    ) -> None:
        self._of_all = found.columns
        self.conclusion = found.conclusion
        self.worse = found.worse
        self.undecided = found.undecided
        self.notes = (*left_out, *found.notes)
        self._rows = found.rows
        self._sides = request.a, request.b

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    @property
    def _columns(self) -> Sequence[Column]:
        return self._of_all

    @property
    def _table(self) -> Sequence[Row]:
        return self._rows

    def __repr__(self) -> str:
        """Returns the table, followed by the notes and the conclusion."""
        return "\n".join((super().__repr__(), *self._lines()))

    def _repr_html_(self) -> str:
        shown = super()._repr_html_() + html.lines(self._lines())
        return html.with_drawing(shown, drawing_of(*self._sides))

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
    """Compares the evaluations B with the evaluations A, as ``agent compare`` does.

    Args:
        a: The baseline: results, ids of stored evaluations or groups, or unique prefixes of ids.
        b: The evaluations to judge, in the same forms.
        noise: Two or more evaluations of one system, whose differences become the threshold of each figure.
        threshold: The largest difference that counts as the same, as a share; None means 0.05.
        accuracy_threshold: The same for top-1.
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
    """Returns the evaluations of one side, each once."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    found: dict[str, Evaluation] = {}
    for each in several:
        if isinstance(each, Result):
            found[each.id] = each.evaluation
        elif isinstance(each, str):
            found |= {evaluation.id: evaluation for evaluation in _stored(name, each, notes)}
        else:
            raise ConfigurationError(
                f"{name} holds {each!r}; give what evaluate, sweep, train, ingest, workload, max_qps or "
                "benchmark_operators returned, or ids"
            )
    return Side(name, tuple(found.values()))


def _stored(name: str, given: str, notes: list[str]) -> Iterator[Evaluation]:
    """Yields the evaluations of an id."""
    with closing(library_invocation().open_store()) as store:
        yield from chosen_side(store, name, given, notes.append).evaluations
