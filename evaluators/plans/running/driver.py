"""The driver of a plan: it gives runs to a place, and keeps what becomes of them."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.plan import Plan, Rerun
from inferometer.evaluators.plans.running.folder import PlanFolder, RunSpec
from inferometer.evaluators.plans.running.journal import Journal, RunHistory
from inferometer.evaluators.plans.running.local import LocalPlace
from inferometer.evaluators.plans.running.places import Place
from inferometer.evaluators.plans.running.results import Ended, Result, read_result
from inferometer.evaluators.plans.software.command import CellCommand
from inferometer.manifests.errors import ConfigurationError

MOST_LOSSES = 3
"""How often a run starts again whose job ended without a result, before it has failed."""
_PROBED_S = 0.05


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """How far a plan is.

    Attributes:
        done: The runs that have a result.
        total: All runs.
        run: The one that this is about.
        result: Its result; None where it begins, or was lost.
        lost: Why its job ended without a result; empty if it did not.
    """

    done: int
    total: int
    run: Run
    result: Result | None = None
    lost: str = ""


@dataclass(slots=True)
class Driver:
    """Runs what is left of a plan. A second one for the same folder is refused.

    Attributes:
        plan: The plan.
        runs: All its runs, in their order.
        folder: Its folder.
        place: Where they run.
        command: Returns how a run is started.
        locks: The folder of the files that runs on one machine lock.
        on_begin: Called once no other driver has the folder.
        on_progress: Called as runs begin and end.
        on_result: Called with each result before the journal has it, such as to import its evaluations;
            what it returns is kept.
        stop_requested: Whether to stop: after the runs in work, or at once where their jobs go on.
        sleep: Waits between two looks, in seconds.
    """

    plan: Plan
    runs: Sequence[Run]
    folder: PlanFolder
    place: Place
    command: Callable[[Run], CellCommand]
    locks: str
    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[PlanProgress], None] = lambda _: None
    on_result: Callable[[Run, Result], Result] = lambda _, result: result
    stop_requested: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    _too_large: dict[str, float] = field(default_factory=dict)

    def drive(self, rerun: Rerun = Rerun.NEVER) -> Mapping[str, RunHistory]:
        """Runs what has no result, or has one that is to be replaced, and returns what became of all.

        Args:
            rerun: Which runs with a result run again; runs that were interrupted always do.

        Raises:
            ConfigurationError: Another driver has the folder, or jobs of another place have not ended.
            InferometerError: The place cannot start a job, or the journal cannot be written.
        """
        with self._alone():
            self.on_begin()
            journal = Journal(self.folder.path)
            known = {run.key: run for run in self.runs}
            working = {key: known[key] for key, each in journal.runs.items() if each.job and key in known}
            self._check_places(journal.runs[key].job for key in working)
            waiting = [
                run for run in self.runs if run.key not in working and self._is_due(run, journal, rerun)
            ]
            self.folder.stop.unlink(missing_ok=True)
            while working or waiting:
                self._take_ended(working, waiting, journal)
                stopping = self.stop_requested() or self.folder.stop.exists()
                while waiting and len(working) < self.place.capacity and not stopping:
                    self._start(waiting.pop(0), working, journal)
                if stopping and (not working or self.place.survives):
                    break
                if working:
                    self.sleep(self.place.poll_s)
            return journal.runs

    def _check_places(self, jobs: Iterable[str]) -> None:
        """Raises where jobs of another place may still run; local ones have ended with their driver."""
        elsewhere = [job for job in jobs if job.partition("/")[0] not in (self.place.name, LocalPlace.name)]
        if elsewhere:
            raise ConfigurationError(
                f"{self.folder.path}: jobs elsewhere have not ended ({len(elsewhere)}, such as "
                f"{elsewhere[0]}); resume the plan as it was until they have"
            )

    def _is_due(self, run: Run, journal: Journal, rerun: Rerun) -> bool:
        result = journal.runs[run.key].result if run.key in journal.runs else None
        if result is None or result.ended is Ended.INTERRUPTED:
            return True
        if result.ended is Ended.OUT_OF_MEMORY:
            self._note_too_large(run)
        return rerun is Rerun.ALWAYS or (rerun is Rerun.ON_FAILURE and result.ended is not Ended.COMPLETE)

    def _start(self, run: Run, working: dict[str, Run], journal: Journal) -> None:
        if (reason := self._why_too_large(run)) is not None:
            self._keep(run, Result(run.key, Ended.LEFT_OUT, reason), journal)
            return
        command, folder = self.command(run), self.folder.run(run)
        folder.write(
            RunSpec(
                run.key,
                command.argv,
                self.plan.timeout_s,
                self.locks,
                command.environment,
                command.stop,
                self.plan.monitor_s,
            )
        )
        journal.submitted(run.key, f"{self.place.name}/{self.place.start(folder.path)}")
        working[run.key] = run
        self.on_progress(PlanProgress(self._done(journal), len(self.runs), run))

    def _take_ended(self, working: dict[str, Run], waiting: list[Run], journal: Journal) -> None:
        """Takes the results of jobs that have ended, and starts those again that have none."""
        jobs = {journal.runs[key].job.partition("/")[2]: key for key in working}
        for job, news in self.place.look(jobs).items():
            run = working[jobs[job]]
            for number in range(journal.runs[run.key].restarts + 1, news.restarts + 1):
                reason = f"{self.place.name} started it again, for the {number}. time; now {news.reason}"
                journal.restarted(run.key, reason)
                self.on_progress(PlanProgress(self._done(journal), len(self.runs), run, lost=reason))
            if not news.ended:
                continue
            del working[run.key]
            result = read_result(self.folder.run(run).result)
            if result is None:
                reason = news.reason
                journal.lost(run.key, reason, counts=news.counts)
                if (lost := journal.runs[run.key].lost) >= MOST_LOSSES:
                    result = Result(run.key, Ended.FAILED, f"lost {lost} times: {reason}")
                else:
                    waiting.insert(0, run)
                    self.on_progress(PlanProgress(self._done(journal), len(self.runs), run, lost=reason))
                    continue
            self._keep(run, result, journal)

    def _keep(self, run: Run, result: Result, journal: Journal) -> None:
        result = self.on_result(run, result)
        journal.ended(result)
        if result.ended is Ended.OUT_OF_MEMORY:
            self._note_too_large(run)
        self.on_progress(PlanProgress(self._done(journal), len(self.runs), run, result))

    def _note_too_large(self, run: Run) -> None:
        size = _size(run, self.plan.batch_option)
        if size is not None:
            others = _others(run, self.plan.batch_option)
            self._too_large[others] = min(size, self._too_large.get(others, size))

    def _why_too_large(self, run: Run) -> str | None:
        size = _size(run, self.plan.batch_option)
        least = self._too_large.get(_others(run, self.plan.batch_option))
        if size is None or least is None or size <= least:
            return None
        return f"{self.plan.batch_option} {least:g} ran out of memory"

    def _done(self, journal: Journal) -> int:
        return sum(run.key in journal.runs and journal.runs[run.key].result is not None for run in self.runs)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with self.folder.lock.open("ab") as lock:
            for last in (False, True):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if last:
                        raise ConfigurationError(
                            f"{self.folder.path}: another driver runs this plan; agent plan watch shows it"
                        ) from error
                self.sleep(_PROBED_S)  # who asks whether a driver runs has the lock for a moment
            yield


def _size(run: Run, option: str) -> float | None:
    value = run.cell.options.get(option)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _others(run: Run, option: str) -> str:
    """What a cell has beside its batch size."""
    return repr((run.cell.words, sorted((n, repr(v)) for n, v in run.cell.parameters.items() if n != option)))
