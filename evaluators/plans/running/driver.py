"""The driver of a plan: it assigns runs to a place, and stores their results and evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from inferometer.agent.files import lock
from inferometer.evaluators.plans.cell_command import CellCommand
from inferometer.evaluators.plans.cells import Run
from inferometer.evaluators.plans.plan import Plan, Rerun
from inferometer.evaluators.plans.running.folder import (
    AGENTS_PLACE,
    Ended,
    Journal,
    PlanFolder,
    Result,
    RunFolder,
    RunHistory,
    RunSpec,
    read_result,
)
from inferometer.evaluators.plans.running.places import Claim, LocalPlace, Place
from inferometer.manifests.errors import ConfigurationError, InferometerError, explained

MOST_LOSSES = 3
"""The number of jobs without a result after which a run has failed; before that, it starts again."""
_PROBED_S = 0.05


@dataclass(frozen=True, slots=True)
class RunEvent:
    """The beginning or the end of a run of a plan.

    Attributes:
        done: The number of runs that have a result.
        total: The number of all runs.
        run: The run that this event is about.
        result: The result of the run; None when it begins, or when its job ended without one.
        lost: Why its job ended without a result; empty if it did not.
        job: The id of its job when the run begins; empty otherwise.
    """

    done: int
    total: int
    run: Run
    result: Result | None = None
    lost: str = ""
    job: str = ""


@dataclass(slots=True)
class Driver:
    """Runs the remaining runs of a plan. A second driver for the same folder is refused.

    Attributes:
        runs: All its runs, in order.
        place: The place where the runs execute.
        command: Returns the command that starts a run.
        locks: The folder of the lock files that runs on the same machine use.
        on_begin: Called once this driver has locked the folder.
        claim: Returns what a run gets from a place that has room for it. Returns None while everything that
            could run it is busy, and raises if nothing can ever run it.
        on_progress: Called as runs begin and end.
        on_result: Called with each result before it is written to the journal, for example to import its
            evaluations; the result that it returns is stored.
        stop_requested: Returns whether to stop: after the current runs, or at once if the jobs of the place
            survive the driver.
        sleep: Waits a number of seconds between two polls.
    """

    plan: Plan
    runs: Sequence[Run]
    folder: PlanFolder
    place: Place
    command: Callable[[Run], CellCommand]
    locks: str
    on_begin: Callable[[], None] = lambda: None
    claim: Callable[[Run], Claim | None] = lambda _: Claim()
    on_progress: Callable[[RunEvent], None] = lambda _: None
    on_result: Callable[[Run, Result], Result] = lambda _, result: result
    stop_requested: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    _too_large: dict[str, float] = field(default_factory=dict)

    def drive(self, rerun: Rerun = Rerun.NEVER) -> Mapping[str, RunHistory]:
        """Runs all runs that lack a result or need a new one, and returns the outcome of all runs.

        Args:
            rerun: Which runs with a result run again; runs that were interrupted always do.

        Raises:
            ConfigurationError: Another driver has locked the folder, or jobs of another place have not ended.
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
            looked = -1
            while working or waiting:
                self._take_ended(working, waiting, journal)
                stopping = self.stop_requested() or self.folder.stop.exists()
                if not stopping and len(working) != looked:  # else nothing has become free
                    while len(working) < self.place.capacity and self._start_next(waiting, working, journal):
                        pass
                    looked = len(working)
                if stopping and (not working or self.place.survives):
                    break
                if working:
                    self.sleep(self.place.poll_s)
            return journal.runs

    def _check_places(self, jobs: Iterable[str]) -> None:
        """Raises an error if jobs of another place may still run; local jobs have ended with their driver."""
        here = (self.place.name, LocalPlace.name, AGENTS_PLACE)
        elsewhere = [job for job in jobs if job.partition("/")[0] not in here]
        if elsewhere:
            raise ConfigurationError(
                f"{self.folder.path}: jobs elsewhere have not ended ({len(elsewhere)}, such as "
                f"{elsewhere[0]}); resume the plan in its former place until they have"
            )

    def _is_due(self, run: Run, journal: Journal, rerun: Rerun) -> bool:
        result = journal.runs[run.key].result if run.key in journal.runs else None
        if result is None or result.ended is Ended.INTERRUPTED:
            return True
        if result.ended is Ended.OUT_OF_MEMORY:
            self._note_too_large(run)
        return rerun is Rerun.ALWAYS or (rerun is Rerun.ON_FAILURE and result.ended is not Ended.COMPLETE)

    def _start_next(self, waiting: list[Run], working: dict[str, Run], journal: Journal) -> bool:
        """Starts or ends the first waiting run for which this is possible; returns False if there is none."""
        for number, run in enumerate(waiting):
            claim: Claim | Result | None
            if (reason := self._why_too_large(run)) is not None:
                claim = Result(run.key, Ended.LEFT_OUT, reason)
            else:
                try:
                    claim = self.claim(run)
                except InferometerError as error:
                    claim = Result(run.key, Ended.FAILED, str(error))
            if claim is None:
                continue
            del waiting[number]
            if isinstance(claim, Result):
                self._keep(run, claim, journal)
            else:
                self._start(run, claim, working, journal)
            return True
        return False

    def _start(self, run: Run, claim: Claim, working: dict[str, Run], journal: Journal) -> None:
        command, folder = self.command(run), self.folder.run(run)
        if (unnoted := _unnoted(folder, journal.runs.get(run.key))) is not None:
            self._keep(run, unnoted, journal)
            return
        folder.write(
            RunSpec(
                run.key,
                (*command.argv, *claim.words),
                self.plan.timeout_s,
                self.locks,
                command.environment,
                command.stop,
                self.plan.monitor_s,
                machines=claim.machines,
                slurm=command.slurm,
                container_pid=command.container_pid,
            )
        )
        journal.submitted(run.key, f"{self.place.name}/{self.place.start(folder.path)}")
        working[run.key] = run
        self._tell(journal, run, job=journal.runs[run.key].job)

    def _take_ended(self, working: dict[str, Run], waiting: list[Run], journal: Journal) -> None:
        """Collects the results of jobs that have ended; runs without a result wait for another job."""
        jobs = {journal.runs[key].job.partition("/")[2]: key for key in working}
        for job, news in self.place.look(jobs).items():
            run = working[jobs[job]]
            for number in range(journal.runs[run.key].restarts + 1, news.restarts + 1):
                reason = f"{self.place.name} started it again, for the {number}. time; now {news.reason}"
                journal.restarted(run.key, reason)
                self._tell(journal, run, lost=reason)
            if not news.ended:
                continue
            del working[run.key]
            result = None if news.void else read_result(self.folder.run(run).result)
            if result is None:
                journal.lost(run.key, news.reason, counts=news.counts)
                if (lost := journal.runs[run.key].lost) < MOST_LOSSES:
                    waiting.insert(0, run)
                    self._tell(journal, run, lost=news.reason)
                    continue
                result = Result(run.key, Ended.FAILED, f"lost {lost} times: {news.reason}")
            self._keep(run, result, journal)

    def _keep(self, run: Run, result: Result, journal: Journal) -> None:
        result = self.on_result(run, result)
        journal.ended(result)
        if result.ended is Ended.OUT_OF_MEMORY:
            self._note_too_large(run)
        self._tell(journal, run, result=result)

    def _note_too_large(self, run: Run) -> None:
        size, others = self._batch(run)
        if size is not None:
            self._too_large[others] = min(size, self._too_large.get(others, size))

    def _why_too_large(self, run: Run) -> str | None:
        size, others = self._batch(run)
        least = self._too_large.get(others)
        if size is None or least is None or size <= least:
            return None
        return f"{self.plan.batch_option} {least:g} ran out of memory"

    def _batch(self, run: Run) -> tuple[float | None, str]:
        """Returns the batch size of a run, if it has one, and its other options and parameters."""
        cell, option = run.cell, self.plan.batch_option
        value = cell.options.get(option)
        size = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        others = sorted((name, repr(each)) for name, each in cell.parameters.items() if name != option)
        return size, repr((cell.words, others))

    def _tell(self, journal: Journal, run: Run, **what: Any) -> None:
        done = sum(
            each.key in journal.runs and journal.runs[each.key].result is not None for each in self.runs
        )
        self.on_progress(RunEvent(done, len(self.runs), run, **what))

    def _alone(self) -> IO[bytes]:
        """Returns the lock of the folder, which is held until it is closed."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with explained(ConfigurationError, f"{self.folder.lock}: cannot be locked"):
            try:
                with suppress(BlockingIOError):
                    return lock(self.folder.lock)
                self.sleep(_PROBED_S)  # who asks whether a driver runs has the lock for a moment
                return lock(self.folder.lock)
            except BlockingIOError as error:
                raise ConfigurationError(
                    f"{self.folder.path}: another driver runs this plan; agent plan watch shows it"
                ) from error


def _unnoted(folder: RunFolder, history: RunHistory | None) -> Result | None:
    """Returns a result that the journal lacks, because a driver was killed before it recorded the result."""
    found = read_result(folder.result)
    if found is None or found.ended is Ended.INTERRUPTED:
        return None
    if history is None:
        return found
    known = history.result  # None after a loss, which is why the run begins again
    return found if known is not None and known.start_ns not in (0, found.start_ns) else None
