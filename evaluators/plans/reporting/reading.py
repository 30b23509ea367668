"""The cases of a plan as its journal and its database have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.reporting.cases import Case, Observation, cases_of, observations_of
from inferometer.evaluators.plans.running.journal import RunHistory
from inferometer.evaluators.plans.running.results import Ended
from inferometer.evaluators.store.evaluation_store import EvaluationFilter

if TYPE_CHECKING:
    from inferometer.evaluators.evaluation import Evaluation
    from inferometer.evaluators.store.evaluation_store import EvaluationStore


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is to report on a plan.

    Attributes:
        cases: The cases of all complete runs, in the order of the cells.
        notes: What is missing, a line each.
        lacking: The runs whose evaluations the database lacks.
    """

    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


class PlanReader:
    """Reads what the runs of a plan measured. Keeps what it has read: evaluations do not change.

    Args:
        store: The database of the plan.
    """

    def __init__(self, store: EvaluationStore) -> None:
        self._store = store
        self._unreadable: dict[str, None] = {}
        self._known: dict[tuple[str, tuple[str, ...]], tuple[Observation, ...]] = {}

    def read(self, runs: Sequence[Run], history: Mapping[str, RunHistory]) -> Measured:
        """Returns the cases of the complete runs.

        Args:
            runs: The runs, by cell.
            history: The journal.

        Raises:
            StoreError: The database cannot be read.
        """
        observations: list[Observation] = []
        left, lacking = 0, []
        for run in runs:
            result = history[run.key].result if run.key in history else None
            if result is None or result.ended is not Ended.COMPLETE:
                left += 1
                continue
            key = run.key, result.evaluations
            if key not in self._known:
                found = [each for name in result.evaluations for each in self._find(name)]
                if len(found) < len(result.evaluations):
                    lacking.append(run.key)
                    continue  # it may be imported later, or be in another database
                self._known[key] = tuple(observations_of(run, result, found))
            observations += self._known[key]
        told = [*notes_on_runs(len(runs), left, lacking, self._store.location), *self._unreadable]
        return Measured(cases_of(observations), tuple(told), tuple(lacking))

    def _find(self, evaluation_id: str) -> Sequence[Evaluation[Any]]:
        wanted = EvaluationFilter(evaluation_id=evaluation_id, include_interrupted=True)
        return self._store.find(wanted, lambda error: self._unreadable.setdefault(f"Left out {error}"))


def notes_on_runs(total: int, left: int, lacking: Sequence[str], location: str) -> Iterator[str]:
    """Yields what is missing in tables of a plan.

    Args:
        total: Its runs.
        left: How many are not complete.
        lacking: Those whose evaluations the database lacks.
        location: The database.
    """
    if left:
        yield f"{left} of {total} runs are not complete, and are left out."
    if lacking:
        yield (
            f"{len(lacking)} of {total} runs, such as {lacking[0]}, published evaluations that "
            f"{location} lacks; name the database with --database_address or --database_name."
        )
