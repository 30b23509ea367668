"""The race of serving configurations on common arrivals, and what is known of each configuration after it.

Every configuration first answers a burst of queries, whose rate of answers bounds the rates that it can keep.
Then rounds follow (successive halving: Jamieson and Talwalkar, "Non-stochastic best arm identification and
hyperparameter optimization", AISTATS 2016). In a round, all configurations receive the same arrivals, scaled
to the rates at which they are probed (common random numbers: Law, "Simulation Modeling and Analysis", 11.2).
The first probe of a configuration is slightly below the rate that the best one keeps on these arrivals: if it
breaks the bound there, it has lost, and its probe ends once the bound cannot be kept any more. Half of those
that remain go on to a round with probes of twice the duration.

The figure of the best configuration is then measured again, on several fresh sequences of arrivals. Late
queries come in bursts, of which one sequence may have many or none, and the best one was chosen for its luck
with the arrivals of the rounds; the differences between independent sequences give an honest interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from inferometer.evaluators.kinds.load.measurement import Method, RateAnswer
from inferometer.evaluators.kinds.tuning.figures import (
    BLOCKS,
    NEARLY,
    NOT_POSSIBLE,
    OUT_OF_MEMORY,
    OUT_OF_SCORE,
    OUT_OF_TIME,
    SEQUENCES,
    Figure,
    Floats,
    Probe,
    Trial,
    TuningMeasurement,
    between,
    fitted,
    logit,
    nothing_serves,
    probability_better,
)
from inferometer.evaluators.kinds.tuning.request import RATE_PER_WATT, Configuration, TuningRequest
from inferometer.evaluators.load.arrivals import Extent, Schedule
from inferometer.evaluators.load.issuer import frozen_heap
from inferometer.evaluators.load.load_session import LoadSession
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop, bound_ns_of
from inferometer.manifests.errors import SessionError

_SEQUENCE_DURATIONS = 4  # the duration of each, in those of a probe in the first round
_SHORTEST_BOUNDS = 20  # the least duration of each, in latency bounds: the queue takes time to fill
_SHORT_BOUNDS = 50  # likewise, where only the space is small and not the time budget
_FEW_DURATIONS, _RACING_SHARE = 4.5, 0.5
"""The time for each configuration of a small space, in durations of a probe in the first round (a search of
one takes some 25 to 60 of them), and the share of it for the rounds."""
_CONFIRMING_SHARE, _CONFIRMING_PROBES = 0.4, 3  # of the time budget; how many probes are expected
_ROUNDS, _MOST_PROBES = 5, 8
_MARGINS = (0.15, 0.10, 0.07, 0.05, 0.04)
"""How far below the best rate a configuration may break the bound without having lost, by round."""
_WIDTHS = (0.08, 0.06, 0.04, 0.03, 0.02, 0.03)
"""The width of the bracket of a configuration's rate, as a fraction of the rate, by round."""
_FULL_BATCHES, _BURST_S, _MOST_BURST = 8, 0.1, 4096
_CAPACITY_ERROR = 1.1  # the factor by which a burst may understate the capacity
_FIRST_SHARE, _LEAST_SHARE = 0.8, 0.02
_LUCK = 0.75  # by how much a round overstates the rate of the best, in widths: it was lucky, its probes short
_HOPELESS = 2.0  # a probe ends once this many times as many queries are late as the bound allows
_SURELY_HOPELESS = 8.0  # likewise, for several sequences: the burst of one may be the one that others lack
_START_BOUNDS, _START_SHARE = 10, 0.25
_SURELY_WORSE = 0.005
_NS_PER_S, _BYTES_PER_MIB = 1_000_000_000, 1024**2


class _Ended(Exception):  # noqa: N818 - no error
    """The time is used up, or a stop was requested."""


class Replay:
    """Sends the probes of a race, except for those of an interrupted one, which it replays.

    Once the race asks for another probe than the one stored next, those that are left are dropped: it must be
    of the same configuration, on the same arrivals.

    Args:
        session: The model under load, which also keeps the stored probes.
        serve: Serves the model with a configuration from then on; returns why it cannot, or an empty text.
        read_peak_bytes: Returns the peak of the memory since it was called last.
        stored: The interrupted tuning.
        read_watts: Returns the mean power since it was called last; 0 if it is unknown.
    """

    def __init__(
        self,
        session: LoadSession,
        serve: Callable[[Configuration], str],
        read_peak_bytes: Callable[[], int],
        stored: TuningMeasurement,
        read_watts: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._session, self._serve, self._read_peak_bytes = session, serve, read_peak_bytes
        self._read_watts, self._stored_watts = read_watts, stored.watts
        self._impossible = {
            each.configuration: each.stopped.removeprefix(f"{NOT_POSSIBLE}: ")
            for each in stored.trials
            if each.stopped.startswith(NOT_POSSIBLE)
        }
        owners = {number: each for each in stored.trials for number in each.probes}
        self._left = [
            (owners[number], run, ended_s)
            for number, (run, ended_s) in enumerate(zip(stored.probes, stored.ended_s, strict=False))
            if run.stop is not Stop.INTERRUPTED
        ]
        self._wanted: Configuration | None = None
        self._unserved = False
        self._peak_bytes: int | None = None
        self.count, self.watts = 0, 0.0  # of the stored probes that were used; during the last probe

    @property
    def elapsed_s(self) -> float:
        """The time since the warm-up, with that of the stored probes."""
        return self._session.elapsed_s

    def use(self, configuration: Configuration) -> str:
        """Serves a configuration, unless it has the next stored probe; returns why it cannot, or nothing."""
        self._wanted = configuration
        self._unserved = bool(self._left) and self._left[0][0].configuration == configuration
        return "" if self._unserved else self._impossible.get(configuration) or self._serve(configuration)

    def run(
        self, schedule: Schedule, bound_ns: int | None = None, max_late: int | None = None, name: str = ""
    ) -> LoadRun:
        """Returns the next stored probe if it is the one that is asked for; otherwise sends the queries.

        Raises:
            SessionError: The configuration, which was served before the interruption, no longer can be.
        """
        if self._left:
            owner, run, ended_s = self._left.pop(0)
            if owner.configuration == self._wanted and run.checksum == schedule.checksum:
                ends = all(each is not owner for each, *_ in self._left)
                self._peak_bytes = (owner.memory_bytes or 0) if ends else 0  # a peak above the limit ends it
                self._session.keep(run, ended_s)
                self.watts = self._stored_watts[self.count] if self._stored_watts else 0.0
                self.count += 1
                return run
            self._left = []
        self._peak_bytes = None
        if self._unserved and self._wanted:
            if reason := self.use(self._wanted):  # of which no stored probe is left
                raise SessionError(f"{self._wanted}: no longer possible after the interruption: {reason}")
            self._read_peak_bytes()  # leaves what was open before out of the peak
        with frozen_heap():  # which the run then need not wait for
            self._read_watts()
            run = self._session.run(schedule, bound_ns, max_late, name)
            self.watts = self._read_watts()
        return run

    def read_peak_bytes(self) -> int:
        """Returns the peak of the memory since the last call, or of the stored probe that was used last."""
        return self._read_peak_bytes() if self._peak_bytes is None else self._peak_bytes


class Race:
    """A race over configurations, of which those that are ``stopped`` already do not take part.

    ``session`` serves them and sends their probes; at most ``limit_qps`` can be sent on time.
    """

    def __init__(
        self, request: TuningRequest, trials: Iterable[Trial], session: Replay, limit_qps: float
    ) -> None:
        self._request, self._session, self._limit_qps = request, session, limit_qps
        self._bound_ns = bound_ns_of(request.latency_bound_ms)
        self._share, self._process = 1 - request.percentile / 100, request.load.process
        self._per = request.objective.removeprefix("rate").replace("_", " ")
        self._per_watt, self._idle_watts = request.objective == RATE_PER_WATT, 1.0
        self._figure = self._rate if request.rate_qps is None else self._latency
        self._every = list(trials)
        self._figures: dict[Configuration, Figure] = {}
        self._hopeless: set[Configuration] = set()
        self._number = self._queries = self._cut = 0
        self._sequences, self._until_s = 1, (1 - _CONFIRMING_SHARE) * request.time_budget_s
        self._expected_qps = self._shift = 0.0
        self._interrupted = self._confirmed = False
        self.best: Trial | None = None
        self.note = ""
        # of the probes: their lengths depend on no other times; see Replay
        self.ended_s, self.watts = list[float](), list[float]()

    def run(self) -> bool:
        """Races and confirms, until all is known or the time is used up; returns False after a stop."""
        began_s = 0.0
        try:
            self._measure_capacities()
            left = [each for each in self._every if not each.stopped]
            left.sort(key=lambda each: -self._capacity(each))
            while left and self._number < _ROUNDS and (len(left) > 1 or not self._number):
                began_s, before_s = self._session.elapsed_s, began_s
                if self._number and 2 * began_s - before_s > _RACING_SHARE * self._few_s:
                    break  # the next round takes about as long as the last one
                self._number += 1
                self._round(left)
                left = self._remaining(left)
        except _Ended as ended:
            self.note = str(ended)
        for each in self._every:
            if each is not self.best and not each.stopped:
                each.stopped = self.note or "another was better"
        if self.best and not self.best.stopped and not self._interrupted:
            try:
                self._confirm(self.best)
            except _Ended as ended:
                self.note = self.note or str(ended)
        if self.best and self.best.stopped:
            self.note, self.best = f"the best of an earlier round lost: {self.best.stopped}", None
        return not self._interrupted

    def trials(self) -> tuple[Trial, ...]:
        """Returns what is known of each configuration, the best first."""
        for each in self._every:
            each.watts = None  # unless it has a figure
            if figure := self._figures.get(each.configuration):
                confirmed = each is self.best and self._confirmed
                each.tell(figure, self._request.rate_qps, metered=self._per_watt, confirmed=confirmed)

        def rank(each: Trial) -> tuple[bool, int, float]:
            figure = self._figures.get(each.configuration)
            return each is not self.best, -each.rounds, -(figure.log if figure else self._capacity(each))

        return tuple(sorted(self._every, key=rank))

    def answer(self) -> RateAnswer | None:
        """Returns the rate of the best configuration with its interval.

        It is None if the rate was given, or if the time did not suffice to find or confirm a rate.
        """
        if self._request.rate_qps is not None or (self.best is None and self.note == OUT_OF_TIME):
            return None
        if self.best is None:
            return RateAnswer(None, None, None, Method.NONE.value, self.note or nothing_serves(self._every))
        found = self.trials()[0]
        if self._confirmed:
            return RateAnswer(found.rate_qps, found.low, found.high, Method.LATE_FRACTION.value, self.note)
        if (figure := self._figures[found.configuration]).certain:
            return None
        note, low_qps = f"no rate above {found.rate_qps:.4g} queries/s was sent", found.rate_qps
        if len(figure.blocks) != SEQUENCES:  # but those of a round, which chose it for its luck with them
            note, low_qps = f"{note}, and this one was not confirmed", None
        return RateAnswer(
            found.rate_qps, low_qps, None, Method.AT_LEAST.value, "; ".join(filter(None, (note, self.note)))
        )

    def _measure_capacities(self) -> None:
        """Sends bursts to every configuration; a delay makes no difference, since the batches are full."""
        known, wanted_qps = dict[Configuration, float](), self._request.rate_qps or 0.0
        for each in (each for each in self._every if not each.stopped):
            c = each.configuration
            if not wanted_qps and c.max_queue_delay_ms >= self._request.latency_bound_ms:
                each.stopped = "a batch may wait for as long as the bound"
                continue
            key = replace(c, max_queue_delay_ms=0.0)
            if key not in known and self._used(each):
                if self._per_watt and not self.watts:
                    last_ns = int(self._request.min_duration_s * _NS_PER_S)  # of one query
                    self._sent(each, Schedule(np.array([last_ns]), "idle", 0.0), None, None)
                    self._idle_watts = self.watts[-1] or 1.0
                known[key] = self._burst(each)
            each.capacity_qps = known.get(key)
            if each.capacity_qps is not None and each.capacity_qps * _CAPACITY_ERROR <= wanted_qps:
                each.stopped = "its burst is slower than the rate"

    def _used(self, each: Trial) -> bool:
        """Serves a configuration; returns False, with the reason in ``stopped``, if that is impossible."""
        began_s = self._session.elapsed_s
        if began_s >= self._until_s:
            raise _Ended(OUT_OF_TIME)
        if reason := self._session.use(each.configuration):
            each.stopped = f"{NOT_POSSIBLE}: {reason}"
        if self._request.max_memory_mib:
            self._session.read_peak_bytes()  # leaves what was open before out of the peak
        each.spent_s += self._session.elapsed_s - began_s
        return not each.stopped

    @property
    def _few_s(self) -> float:
        """The time that the space is worth: in more, one could almost search every configuration."""
        possible = sum(not each.stopped.startswith((NOT_POSSIBLE, OUT_OF_SCORE)) for each in self._every)
        return _FEW_DURATIONS * self._request.min_duration_s * possible

    def _burst(self, each: Trial) -> float:
        """Returns the rate of answers to the faster of two bursts of full batches, after one to warm up."""
        full, rates_qps = each.configuration.instances * each.configuration.max_batch_size, []
        queries = max(self._request.warm_up_queries, full)
        for _ in range(3):
            schedule = Schedule(np.zeros(queries, np.int64), "burst", 0.0)
            run = self._sent(each, schedule, None, None)
            done_ns = run.queries.done_ns[run.queries.outcome == Outcome.ANSWERED]
            rate_qps = len(done_ns) * _NS_PER_S / max(int(done_ns.max(initial=0)), 1)
            rates_qps.append(rate_qps)
            wanted = max(_FULL_BATCHES * full, rate_qps * _BURST_S)
            queries = int(max(min(wanted, rate_qps * self._request.min_duration_s, _MOST_BURST), 2 * full))
        return max(rates_qps[1:])

    def _sent(self, each: Trial, schedule: Schedule, bound_ns: int | None, max_late: int | None) -> LoadRun:
        name = f"round {self._number}, {each.configuration}"  # of which 0 has the bursts
        began_s = self._session.elapsed_s
        run = self._session.run(schedule, bound_ns, max_late, name)
        each.probes.append(len(self.ended_s))
        self.ended_s.append(self._session.elapsed_s)
        self.watts.append(self._session.watts)
        each.spent_s += self._session.elapsed_s - began_s
        if most_mib := self._request.max_memory_mib:
            each.memory_bytes = max(self._session.read_peak_bytes(), each.memory_bytes or 0)
            if each.memory_bytes > most_mib * _BYTES_PER_MIB:
                each.stopped = f"{OUT_OF_MEMORY} {most_mib} MiB"
        if run.stop is Stop.INTERRUPTED:
            self._interrupted = True
            raise _Ended("the tuning was stopped")
        return run

    def _round(self, left: Sequence[Trial]) -> None:
        """Races the configurations on the same arrivals; the best so far comes first."""
        self._arrive(self._reference_qps(left))
        best: Figure | None = None
        raced: dict[Configuration, Figure] = {}
        try:
            for each in left:
                if reason := self._beaten(each, best, left):
                    each.stopped = reason
                elif self._used(each):
                    each.rounds += 1
                    before = self._figures.get(each.configuration)
                    if figure := self._figure(each, best):
                        if best is None and before is not None:
                            self._shift = figure.log - before.log
                        self._figures[each.configuration] = raced[each.configuration] = figure
                        if not each.stopped and (best is None or figure.log > best.log):
                            self.best, best = each, figure
        finally:
            for each in left:
                if best is not None and (figure := raced.get(each.configuration)):
                    known = best.certain and self._qps(each, figure.log) < NEARLY * self._limit_qps
                    each.better = None if each is self.best or not known else probability_better(figure, best)

    def _confirm(self, best: Trial) -> None:
        """Measures the best configuration on fresh sequences of arrivals."""
        self._number, self._sequences = _ROUNDS + 1, SEQUENCES
        self._until_s = self._request.time_budget_s
        self._arrive(self._reference_qps([best]))
        if not self._used(best):
            return
        if figure := self._figure(best, None):
            self._figures[best.configuration] = figure
            self._confirmed = figure.certain and bool(figure.blocks.any())

    def _cost(self, each: Trial) -> float:
        """Returns by what its rate is divided; where its power is unknown, the least that it can be."""
        return each.cost(self._request.objective) or self._idle_watts

    def _capacity(self, each: Trial) -> float:
        return (each.capacity_qps or 0.0) / self._cost(each)

    def _qps(self, each: Trial, log: float) -> float:
        """Returns the rate at which the figure of merit of a configuration has this logarithm."""
        return math.exp(log) * self._cost(each)

    def _arrive(self, rate_qps: float) -> None:
        """Sets the numbers of arrivals in a sequence and in its empty start, for rates of about this one."""
        self._expected_qps, least_s = rate_qps, self._request.min_duration_s
        duration_s, fewest = least_s * 2 ** (self._number - 1), max(1 / self._share, BLOCKS)
        if self._sequences > 1:
            probes = 1 if self._request.rate_qps else _CONFIRMING_PROBES
            bounds_s = self._bound_ns / _NS_PER_S
            left_s, few_s = (
                (until_s - self.ended_s[-1]) / probes / self._sequences
                for until_s in (self._until_s, self._few_s)
            )
            if left_s < max(_SHORTEST_BOUNDS * bounds_s, fewest / rate_qps):
                raise _Ended("too little time was left to confirm it")
            few_s = max(few_s, least_s, _SHORT_BOUNDS * bounds_s)
            duration_s = min(_SEQUENCE_DURATIONS * least_s * _CONFIRMING_PROBES / probes, left_s, few_s)
        self._queries = math.ceil(max(duration_s * rate_qps, fewest))
        start = _START_BOUNDS * self._bound_ns / _NS_PER_S * rate_qps
        self._cut = int(min(start, _START_SHARE * self._queries))

    def _reference_qps(self, left: Sequence[Trial]) -> float:
        """Returns about the rate of the best of the round, which determines the number of arrivals."""
        if self._request.rate_qps is not None:
            return self._request.rate_qps
        best, figure = left[0], self._figures.get(left[0].configuration)
        guess_qps = _FIRST_SHARE * (best.capacity_qps or 1.0)
        return min(self._qps(best, figure.log) if figure else guess_qps, self._limit_qps)

    def _beaten(self, each: Trial, best: Figure | None, left: Sequence[Trial]) -> str:
        """Returns why a configuration need not be probed; empty if it must be."""
        if best is None or self._request.rate_qps is not None:
            return ""
        c, capacity_qps = each.configuration, each.capacity_qps or 0.0
        if capacity_qps * _CAPACITY_ERROR < self._qps(each, best.log):
            return f"its burst is slower{self._per} than what the best keeps"
        size = c.max_batch_size
        alike = [o for o in left if replace(o.configuration, max_batch_size=size) == c]
        good = [o.configuration.max_batch_size for o in alike if o.rounds == self._number and not o.stopped]
        for bad in (o.configuration.max_batch_size for o in alike if o.configuration in self._hopeless):
            sides = {(g > bad) == (size > bad) for g in good}
            if sides == {False}:
                return f"batch {bad} has lost, and the rate has one peak over the batch"
        return ""

    def _rate(self, each: Trial, best: Figure | None) -> Figure | None:
        """Returns the highest rate that keeps the bound on the arrivals of the round.

        If the configuration breaks it where the best one surely keeps it, this is a bound of the rate.
        """
        capacity_qps, before = each.capacity_qps or 1.0, self._figures.get(each.configuration)
        highest_qps, width = min(_CAPACITY_ERROR * capacity_qps, self._limit_qps), _WIDTHS[self._number - 1]
        lost = -math.inf if best is None else best.log + math.log(1 - _MARGINS[self._number - 1])
        if self._per_watt and self.best and not each.watts:
            each.watts = self.best.watts  # until its own power is known
        rate_qps = max(self._likely_qps(each, best), self._qps(each, lost))
        share, several = self._share, self._sequences > 1
        low: Probe | None = None
        high: Probe | None = None
        for number in range(_MOST_PROBES):
            rate_qps = min(rate_qps, highest_qps)
            probe = self._probe(each, rate_qps)
            if each.stopped:  # by a constraint
                return None
            low, high = (probe, high) if probe.kept else (low, probe)
            lost_qps = self._qps(each, lost)  # at the power of this probe
            if high and high.rate_qps <= lost_qps:
                kept = f"and the best keeps more{self._per}" if self._per else "which the best keeps"
                each.stopped = f"it breaks the bound at {rate_qps:.4g} queries/s, {kept}"
                if high.stopped:
                    self._hopeless.add(each.configuration)
                break
            figure = fitted(low, high, share, width, trusted=several)
            more_s = self._queries * self._sequences / rate_qps if several and low and high else 0.0
            if self._session.elapsed_s + more_s >= self._until_s:
                self.note = "too little time was left for another probe" if more_s else OUT_OF_TIME
                return figure if low and (high or not before) else None
            if low and high and figure:
                if figure.resolution <= width / 4 and (figure.blocks.any() or not several):
                    break
                rate_qps = between(low, high, share)
            elif (low and rate_qps >= highest_qps) or rate_qps < _LEAST_SHARE * highest_qps:
                break
            else:
                rate_qps = max(rate_qps * math.exp(probe.step(share, width, number, before)), lost_qps)
                if best is None and rate_qps < self._expected_qps / 2:  # which no other has seen yet
                    self._arrive(rate_qps)
                    low = high = None
        if low is None and not each.stopped:
            each.stopped = f"it breaks the bound even at {rate_qps:.4g} queries/s"
        return fitted(low, high, share, width, trusted=several)

    def _likely_qps(self, each: Trial, best: Figure | None) -> float:
        """Returns the likely rate of a configuration, for its first probe in a round; 0 if unknown."""
        before, width = self._figures.get(each.configuration), _WIDTHS[self._number - 1]
        if before is None:
            return _FIRST_SHARE * (each.capacity_qps or 1.0) if best is None else 0.0
        if self._sequences > 1:
            return self._qps(each, before.log - _LUCK * _WIDTHS[each.rounds - 1])
        # slightly below its earlier rate, moved like that of the best by the arrivals of this round
        return self._qps(each, before.log + (0.0 if best is None else self._shift - width / 2))

    def _probe(self, each: Trial, rate_qps: float) -> Probe:
        factor = _HOPELESS if self._sequences == 1 else _SURELY_HOPELESS
        most = math.ceil(factor * self._share * self._queries * self._sequences)
        whole = self._per_watt and self._sequences == 1  # a shorter one has no exact power
        runs = self._loaded(each, rate_qps, self._bound_ns, None if whole else most)
        late, queries = self._late(runs, self._bound_ns)
        total, stopped = float(late.sum()), any(run.stopped for run in runs) or len(runs) < self._sequences
        odds = logit((total + 0.5) / (queries + 1))
        if stopped:
            odds = max(odds, logit(min(factor * self._share, 0.9)))
            late = late if self._sequences == 1 else np.zeros(self._sequences)
        kept = not stopped and total <= self._share * queries
        metered = self._per_watt and not (stopped and self._sequences > 1)  # which may be too short
        costs = np.array(self.watts[-len(runs) :] if metered else [self._cost(each)])
        if not costs.all():
            raise SessionError("objective rate_per_watt: a counter of energy was reset or is not read")
        each.watts = float(costs.mean()) if self._per_watt else None
        return Probe(rate_qps, late, odds, kept, stopped, costs)

    def _loaded(
        self, each: Trial, rate_qps: float, bound_ns: int | None, max_late: int | None
    ) -> list[LoadRun]:
        """Sends each sequence of arrivals of the round at a rate, until too many queries are late."""
        runs: list[LoadRun] = []
        for number in range(self._number, self._number + self._sequences):
            sequence = np.random.SeedSequence((self._request.system.session.seed, number))
            seed = int(sequence.generate_state(1)[0])
            schedule = Schedule.drawn(self._process, rate_qps, Extent(0.0, self._queries), seed)
            runs.append(self._sent(each, schedule, bound_ns, max_late))
            if runs[-1].stopped:
                break
            if max_late is not None and bound_ns is not None and self._sequences > 1:
                max_late -= int(self._late(runs[-1:], bound_ns)[0].sum())
                if max_late < 0:
                    break
        return runs

    def _late(self, runs: Sequence[LoadRun], bound_ns: float) -> tuple[Floats, int]:
        """Returns the numbers of late queries in each block after the empty start, and of all queries there.

        Each of several sequences is a block. Queries that a probe did not send before it ended count as on
        time, like those that were not yet late.
        """
        parts = []
        for queries in (run.queries for run in runs):
            late = np.zeros(self._queries, np.bool_)
            end_ns = max(int(queries.sent_ns.max(initial=0)), int(queries.done_ns.max(initial=0)))
            waiting = queries.outcome == Outcome.WAITING
            spent_ns = np.where(waiting, end_ns - queries.scheduled_ns, queries.latency_ns)
            late[: len(queries)] = (spent_ns > bound_ns) & (queries.outcome != Outcome.UNSENT)
            parts.append(late[self._cut :])
        blocks = parts if len(parts) > 1 else np.array_split(parts[0], BLOCKS)
        return np.array([float(each.sum()) for each in blocks]), sum(map(len, parts))

    def _latency(self, each: Trial, best: Figure | None) -> Figure | None:
        """Returns the percentile of the latency at the given rate, on the arrivals of the round.

        The influence of a block is that of its number of queries beyond the percentile, times the slope of
        ln(percentile) against the percentage, from the percentiles on both sides.
        """
        percentile, bound_ns, max_late = self._request.percentile, None, None
        if best is not None:
            bound_ns = round(math.exp(-best.log) / (1 - _MARGINS[self._number - 1]))
            max_late = math.ceil(self._share * self._queries)
        runs = self._loaded(each, self._request.rate_qps or 1.0, bound_ns, max_late)
        if stopped := next((run for run in runs if run.stopped), None):
            above = f"p{percentile:g} is above {(bound_ns or 0) / 1e6:.4g} ms, and that of the best is not"
            each.stopped = above if stopped.stop is Stop.HOPELESS else f"at this rate: {stopped.stopped}"
            return None
        counted = [run.queries.since(int(run.queries.scheduled_ns[self._cut])) for run in runs]
        latency_ns = np.concatenate(
            [np.where(each.outcome == Outcome.ANSWERED, each.latency_ns, math.inf) for each in counted]
        )
        half = 100 * max(self._share / 2, 2 / len(latency_ns))
        percents = (percentile - half, percentile, min(percentile + half, 100.0))
        below, found, above_ns = np.percentile(latency_ns, percents, method="lower").tolist()
        if not math.isfinite(above_ns):
            each.stopped = f"p{percentile:g} falls on queries without an answer"
            return None
        slope = math.log(above_ns / below) / (percents[2] - percents[0]) * 100
        late, count = self._late(runs, found)
        return Figure(-math.log(found), -(late - late.mean()) / count * slope)

    def _remaining(self, left: Sequence[Trial]) -> list[Trial]:
        """Returns those that go on to the next round, the best first: at most half of them."""
        racing = [each for each in left if not each.stopped]
        racing.sort(key=lambda each: -self._figures[each.configuration].log)
        for place, each in enumerate(racing, start=1):
            better = 0.5 if each.better is None else each.better
            if better < _SURELY_WORSE:
                each.stopped = f"it is worse with a probability of {100 * (1 - better):.1f} %"
            elif place > math.ceil(len(racing) / 2) and self._number < _ROUNDS:
                each.stopped = f"it came in place {place} of {len(racing)} in round {self._number}"
        return [each for each in racing if not each.stopped]
