"""The kind of measurement that finds the best serving configuration: job, documents, report and plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any, ClassVar

from inferometer.agent.serving.served_models import release_free_memory
from inferometer.evaluators.documents import Stored, checked, restored, storable
from inferometer.evaluators.drawing.charts import Chosen, Drawing, Plot, PointChart, Rule, Series, label_of
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, JobResources
from inferometer.evaluators.jobs.options import spoken, words
from inferometer.evaluators.kinds.kind import Again, Rows, own_values, system_words, words_of
from inferometer.evaluators.kinds.load.job import LoadJob, load_job
from inferometer.evaluators.kinds.load.kind import RateSearchKind, load_description, options_text
from inferometer.evaluators.kinds.load.measurement import invalid_reason, lag_reason, rate_text
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.kinds.memory.job import read_peak_bytes
from inferometer.evaluators.kinds.tuning.figures import OUT_OF_TIME, Trial, TuningMeasurement, nothing_serves
from inferometer.evaluators.kinds.tuning.race import Race, Replay
from inferometer.evaluators.kinds.tuning.request import Configuration, TuningRequest
from inferometer.evaluators.load.local_target import ReloadedTarget, SwitchedTarget
from inferometer.evaluators.reports.base import (
    INVALID_COLUMN,
    NAME_COLUMNS,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    Report,
    Row,
    describe,
    describe_verdict,
)
from inferometer.manifests.errors import ConfigurationError

_SAME = (
    *("manifest.name", "manifest.version", "manifest.framework.name", "checksums", "weights", "seed"),
    *("precision", "agent", "device", "framework_version", "environment.hostname", "environment.cpu_model"),
    *("environment.usable_cores", "environment.gpu_driver", "environment.inferometer_version"),
)
"""What a tuning and its continuation have in common, of their systems."""
_FREE = "time_budget_s"  # which only decides how far the race goes


class TuningJob(LoadJob):
    """A planned tuning; see ``LoadJob``."""

    def __init__(self, request: TuningRequest) -> None:
        super().__init__(request.load, request.write_config, self._switched)
        self._tuning = request
        self._stored: Evaluation[Any] | None = None

    def run(
        self, resources: JobResources, callbacks: JobCallbacks | None = None
    ) -> Generator[Evaluation, None, None]:
        """Tunes the model; see ``LoadJob``.

        Raises:
            ConfigurationError: The evaluation to resume is no interrupted tuning of this model with these
                options on this machine, or the machine does not report the peak of memory.
            UnknownEvaluationError: There is no such evaluation.
        """
        if self._tuning.max_memory_mib and not read_peak_bytes():
            raise ConfigurationError("max_memory needs the peak of memory from Linux's /proc; leave it out")
        if self._tuning.resume is not None:
            self._stored = resources.stored(self._tuning.resume)
            _check_options(self._tuning, self._stored)
        yield from super().run(resources, callbacks)

    def _switched(self, *opened: Any) -> SwitchedTarget:
        target = ReloadedTarget if self._tuning.system.agents else SwitchedTarget
        self._target = target(*opened)
        return self._target

    def _use(self, c: Configuration) -> str:
        release_free_memory()  # of the configuration before
        return self._target.use(c.threads, c.max_batch_size, c.max_queue_delay_ms, c.instances)

    def _described(self) -> str:
        return f"tuning for at most {self._tuning.time_budget_s:g} s"

    def _measured(self, session: Any, work: Any) -> tuple[TuningMeasurement, bool]:
        """Returns the measurement, whose duration is not yet set, and whether the race was run to its end."""
        request, machine = self._tuning, self._target.description
        space = request.configurations(machine.environment.usable_cores, on_gpu=machine.device.is_gpu)
        limit_qps, options = work.max_rate_qps or math.inf, request.load.load_options()
        before = TuningMeasurement(options, (), 0, limit_qps=limit_qps)
        if self._stored:
            before, theirs = self._stored.measurement, self._stored.system
            if names := [name for name in _SAME if attrgetter(name)(machine) != attrgetter(name)(theirs)]:
                message = f"cannot be resumed with another model or machine; what differs: {', '.join(names)}"
                raise ConfigurationError(f"evaluation {self._stored.id} {message}")
        replay = Replay(session, self._use, read_peak_bytes, before)
        race = Race(request, space, replay, before.limit_qps)
        whole = race.run()
        bound_ns, share = options.latency_bound_ns or 0, 1 - request.percentile / 100
        sought = request.rate_qps is None
        probes = tuple(
            replace(run, invalid=lag_reason(run, bound_ns, share)) if run.rate_qps and sought else run
            for run in session.runs
        )
        answer = race.answer() if whole else None
        resumed = ""
        if self._stored:
            resumed = f"{replay.count} of {len(probes)} probes are those of evaluation {self._stored.id}"
        told = (request.asked, before.limit_qps, tuple(race.ended_s), resumed)
        found = TuningMeasurement(options, probes, 0, answer, race.trials(), *told)
        if whole and race.best is not None:
            self._use(race.best.configuration)  # which the evaluation then describes
            if self._file:
                self._file.create(_configuration_text(race.best.configuration, _answer(found)))
        return found, whole


def _check_options(request: TuningRequest, stored: Evaluation[Any]) -> None:
    """Refuses to resume what is no interrupted tuning, or one with other options."""
    measured, which = stored.measurement, f"evaluation {stored.id}"
    if not isinstance(measured, TuningMeasurement) or stored.status is not Status.INTERRUPTED:
        raise ConfigurationError(f"{which} is no interrupted tuning; only such a one can be resumed")
    mine = storable({**asdict(request.load.load_options()), **request.asked})
    others = storable({**asdict(measured.options), **measured.asked})
    if names := [spoken(n) for n in {**mine, **others} if n != _FREE and mine.get(n) != others.get(n)]:
        raise ConfigurationError(f"{which} cannot be resumed with another {', '.join(names)}")


def _configuration_text(best: Configuration, answer: str) -> str:
    """Returns the best configuration as a configuration file of ``agent serve``."""
    lines = [f"  {name}: {value}" for name, value in asdict(best).items() if value is not None]
    return "\n".join((f"# agent tune: {answer}", "serving:", *lines, ""))


def _question(measured: TuningMeasurement) -> str:
    options, rate_qps = measured.options, measured.asked.get("rate_qps")
    if rate_qps is not None:
        return f"p{options.percentile:g} at {rate_qps:g} queries/s"
    return f"queries/s at p{options.percentile:g} <= {options.latency_bound_ms:g} ms"


def _answer(measured: TuningMeasurement) -> str:
    """Returns a one-line description of the best configuration's figure."""
    best = measured.best
    if best is None:
        known = measured.answer.note if measured.answer else nothing_serves(measured.trials)
        return f"not known: {OUT_OF_TIME}" if measured.another is None else known
    if measured.answer is not None:
        return f"{rate_text(measured.answer)} {_question(measured)}"
    ends = "" if best.low is None else f" [{best.low:.4g}, {best.high:.4g}]"
    if best.latency_ms is not None:
        found = f"{best.latency_ms:.4g}{ends} ms, {_question(measured)}"
    else:
        found = f"{best.rate_qps:.4g} {_question(measured)}"
    return found if ends else f"about {found}; there was too little time for an interval"


def _another(measured: TuningMeasurement) -> str:
    """Returns what is known of the chance that another configuration is better."""
    if measured.another is not None:
        return f"is better with a probability of at most {100 * measured.another:.3g} %"
    if any(each.stopped == OUT_OF_TIME for each in measured.trials):
        return "may be better: there was too little time to race them all"
    return "may be better, which is unknown: in the race, the rate of the best was only a lower bound"


class TuningReport(Report[TuningMeasurement]):
    """One row for each configuration of each tuning, the best first; see ``Trial`` and ``race``.

    ``better`` is the probability that the configuration is better than the best, from the round in which it
    was raced last.
    """

    name = "tuning"
    summary = "serving configurations: the rate or latency of each, and why it was not raced any further"
    takes = (TuningMeasurement,)
    columns = (
        *(column for column in NAME_COLUMNS if column.key != "batch_size"),
        VERDICT_COLUMN,
        Column("place", "place"),
        Column("instances", "instances", stays=True),
        Column("threads", "threads", stays=True),
        Column("max_batch_size", "batch", stays=True),
        Column("max_queue_delay_ms", "delay (ms)"),
        Column("rate_qps", "rate (queries/s)", decimals=1, stays=True),
        Column("latency_ms", "latency (ms)"),
        Column("low", "low", detail=1),
        Column("high", "high", detail=1),
        Column("better", "P(better)"),
        Column("memory_mib", "memory (MiB)", decimals=1, detail=1),
        Column("capacity_qps", "burst (queries/s)", decimals=1, detail=1),
        Column("rounds", "rounds", detail=1),
        Column("probes", "probes", detail=2),
        Column("spent_s", "time (s)", decimals=1, detail=1),
        Column("stopped", "stopped", wraps=True),
        INVALID_COLUMN,
        STATUS_COLUMN,
    )

    def rows(self, evaluations: Sequence[Evaluation[TuningMeasurement]]) -> Iterator[Row]:
        """Yields the configurations of each tuning."""
        for evaluation in evaluations:
            described = describe(evaluation)
            named = {key: described[key] for key in ("id", "model_name", "framework_name", "status")}
            named |= describe_verdict(evaluation, _invalid(evaluation.measurement))
            for place, trial in enumerate(evaluation.measurement.trials, start=1):
                values = asdict(trial)
                peak_bytes = values.pop("memory_bytes")
                values["memory_mib"] = None if peak_bytes is None else peak_bytes / 2**20
                figures = {"place": place, "probes": len(trial.probes), "stopped": trial.stopped or None}
                yield {**named, **values.pop("configuration"), **values, **figures}


_BEST, _OTHERS, _FRONT = "the best configuration", "others", "Pareto front"


class TuningPlot(Plot[TuningMeasurement]):
    """For each tuning, the latency percentile against the rate of every probe that was not stopped."""

    def drawing(self, chosen: Chosen[TuningMeasurement], notes: Sequence[str]) -> Drawing | None:
        """Returns the charts."""
        charts = [chart for evaluation, _ in chosen if (chart := _chart(evaluation))]
        told = ("The front has the probes that no other one beats in both rate and latency.", *notes)
        return (
            Drawing("Rate against latency", tuple(charts), (_BEST, _OTHERS, _FRONT), told) if charts else None
        )


def _chart(evaluation: Evaluation[TuningMeasurement]) -> PointChart | None:
    measured, options = evaluation.measurement, evaluation.measurement.options
    found: dict[str, list[tuple[float, float]]] = {}
    for trial in measured.trials:
        for run in (measured.probes[number] for number in trial.probes):
            summary = LoadSummary.of_probe(run, options)
            if run.rate_qps and not run.stopped and (judged := summary.percentile(options.percentile)):
                group = _BEST if trial is measured.best else _OTHERS
                found.setdefault(group, []).append((run.rate_qps, judged.value_ns / 1e6))
    front: list[tuple[float, float]] = []
    for point in sorted((each for points in found.values() for each in points), key=lambda p: (-p[0], p[1])):
        if math.isfinite(point[1]) and (not front or point[1] < front[-1][1]):
            front.append(point)
    if not front:
        return None
    series = []
    for group, points in ((_FRONT, front[::-1]), *found.items()):
        x, y = zip(*points, strict=True)
        series.append(Series(group, x, y, line=group == _FRONT, tooltip=f"{evaluation.id}: {group}"))
    bound = options.latency_bound_ms or 0.0
    return PointChart(
        label_of(evaluation, _answer(measured)),
        "rate (queries/s)",
        f"p{options.percentile:g} (ms)",
        tuple(series),
        (Rule(bound, f"bound {bound:g} ms"),) if "rate_qps" not in measured.asked else (),
        y_logarithmic=True,
        tall=True,
    )


def _invalid(measured: TuningMeasurement) -> str:
    """Returns why the answer cannot be trusted, judged by the probes of the best configuration."""
    if measured.best is None:
        return ""
    return invalid_reason(replace(measured, probes=[measured.probes[n] for n in measured.best.probes]))


def _trials(stored: Any) -> tuple[Trial, ...]:
    return tuple(
        checked(Trial(checked(Configuration(**each.pop("configuration"))), **each))
        for each in restored(stored)
    )


class TuningKind(RateSearchKind):
    """Find the serving configuration with the highest rate within a latency bound.

    Instances, threads, batch sizes and delays of a model race on the same arrivals: in this process, or on an
    agent or a server such as Triton, which loads the model anew for each and at the end as before. Losers are
    stopped early. The answer has an interval, and the probability that another configuration is better.
    """

    name = "tuning"
    title = "tuning"
    phrase = "a tuning"
    reports = {TuningReport: TuningPlot}
    headlines = ("rate_qps",)
    case_columns = ("instances", "threads", "max_batch_size", "max_queue_delay_ms")
    tabled = ()  # type: ignore[assignment] # a kind may have none
    keeps_interrupted = True
    request = TuningRequest
    measurement = TuningMeasurement
    readers: ClassVar = {"trials": _trials}

    def from_documents(self, head: Stored, parts: Mapping[str, Sequence[Stored]]) -> Any:
        found: Any = super().from_documents(head, parts)
        if {number for each in found.trials for number in each.probes} - set(range(len(found.probes))):
            raise ValueError("the probes of its configurations are not all present")
        return found

    def job(self, request: TuningRequest) -> Any:
        return load_job(request.load, TuningJob(request))

    def invalid(self, measurement: Any) -> str:
        return _invalid(measurement)

    def measured(self, measurement: Any) -> str:
        return f"{len(measurement.probes)} probes"

    def overview(self, measurement: Any) -> Row:
        return {"rate_per_s": measurement.best.rate_qps if measurement.best else None}

    def summary(self, evaluation: Evaluation[Any]) -> Rows:
        measured: TuningMeasurement = evaluation.measurement
        invalid, best = _invalid(measured), measured.best
        yield "best", str(best.configuration) if best else "none"
        whole = evaluation.status is not Status.INTERRUPTED
        answer = _answer(measured) if whole else f"none: stopped; --resume={evaluation.id} continues it"
        yield "answer", ("INVALID: " * bool(invalid)) + answer
        if invalid:
            yield "", invalid
        if best and whole:
            yield "another", _another(measured)
        if measured.answer and measured.answer.note not in {"", answer}:
            yield "", measured.answer.note
        if measured.resumed:
            yield "resumed", measured.resumed
        raced = [each for each in measured.trials if each.rounds]
        tried = sum(bool(each.probes) for each in measured.trials)
        if best and best.memory_bytes is not None:
            yield (
                "memory",
                f"{best.memory_bytes / 2**20:.1f} MiB at its peak, in this process and its instances",
            )
        yield "raced", f"{len(raced)} of {len(measured.trials)} configurations; {tried} answered a burst"
        for each in raced:
            found = "no figure" if each.rate_qps is None else f"{each.rate_qps:.1f} queries/s"
            if each.latency_ms is not None:
                found = f"p{measured.options.percentile:g} {each.latency_ms:.4g} ms"
            yield "", "  ".join(filter(None, (str(each.configuration), found, each.stopped)))
        for reason, count in Counter(each.stopped for each in measured.trials if not each.rounds).items():
            yield "", f"{count} not raced: {reason}"

    def description(self, evaluation: Evaluation[Any]) -> Rows:
        options = evaluation.measurement.options
        yield from load_description(evaluation, options)
        yield "load", f"{_question(evaluation.measurement)}, {options.arrival}, seed {options.seed}"
        yield "", ", ".join(options_text(options))

    def document(self, evaluation: Evaluation[Any], *_: object) -> dict[str, Any]:
        rows = TuningReport().rows([evaluation])
        found = {"asked": dict(evaluation.measurement.asked), "another": evaluation.measurement.another}
        return {"tuning": found | {"trials": [own_values(TuningReport(), row) for row in rows]}}

    def again(self, evaluation: Evaluation[Any]) -> Again:
        asked, seed = evaluation.measurement.asked, evaluation.measurement.options.seed
        system = [word for word in system_words(evaluation) if not word.startswith("--threads=")]
        given = words(asked, TuningRequest)
        return Again(("measure", self.name, *system, *words_of("seed", seed, 0), *given))

    def unfit(self, measurement: Any) -> str:
        given = "rate_qps" in measurement.asked
        return (
            "has a latency at a given rate, which cannot be compared" if given else super().unfit(measurement)
        )
