"""The kind of measurement that finds the best serving configuration: job, documents, report and plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any, ClassVar

from inferometer.agent.hardware.conditions import EnergyMeter
from inferometer.agent.serving.served_models import release_free_memory
from inferometer.evaluators.documents import Stored, checked, restored, storable
from inferometer.evaluators.drawing.charts import Chosen, Drawing, Plot, PointChart, Rule, Series, label_of
from inferometer.evaluators.evaluation import Evaluation, Status
from inferometer.evaluators.jobs.job import JobCallbacks, JobResources, default_batch_size
from inferometer.evaluators.jobs.options import spoken, words
from inferometer.evaluators.jobs.request import read_precision
from inferometer.evaluators.kinds.batches.job import evaluate
from inferometer.evaluators.kinds.batches.request import BatchOptions, EvaluationRequest
from inferometer.evaluators.kinds.kind import Again, Rows, own_values, system_words, words_of
from inferometer.evaluators.kinds.load.job import LoadJob, load_job
from inferometer.evaluators.kinds.load.kind import RateSearchKind, load_description, options_text
from inferometer.evaluators.kinds.load.measurement import invalid_reason, lag_reason, rate_text
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.kinds.memory.job import read_peak_bytes
from inferometer.evaluators.kinds.tuning.figures import (
    NOT_POSSIBLE,
    OUT_OF_SCORE,
    OUT_OF_TIME,
    Trial,
    TuningMeasurement,
    nothing_serves,
)
from inferometer.evaluators.kinds.tuning.race import Race, Replay
from inferometer.evaluators.kinds.tuning.request import RATE_PER_WATT, Configuration, TuningRequest
from inferometer.evaluators.load.local_target import ReloadedTarget, SwitchedTarget
from inferometer.evaluators.reports.base import (
    INVALID_COLUMN,
    NAME_COLUMNS,
    SCORE_COLUMNS,
    STATUS_COLUMN,
    VERDICT_COLUMN,
    Column,
    Report,
    Row,
    describe,
    describe_verdict,
)
from inferometer.manifests.errors import ConfigurationError, InferometerError

_SAME = (
    *("manifest.name", "manifest.version", "manifest.framework.name", "checksums", "weights", "seed"),
    *("agent", "device", "framework_version", "environment.hostname", "environment.cpu_model"),
    *("environment.usable_cores", "environment.gpu_driver", "environment.inferometer_version"),
)
"""What a tuning and its continuation have in common, of their systems."""
_FREE = "time_budget_s"  # which only decides how far the race goes
_NO_POWER = (
    f"objective {RATE_PER_WATT} needs a counter of energy: of an NVIDIA GPU (Volta or later), or of the "
    "CPU packages, in /sys/class/powercap/intel-rapl:*/energy_uj, which often only root may read"
)


class TuningJob(LoadJob):
    """A planned tuning; see ``LoadJob``."""

    def __init__(self, request: TuningRequest) -> None:
        super().__init__(request.load, request.write_config, self._switched)
        self._tuning = request
        self._stored: Evaluation[Any] | None = None
        self._score_name, self._scores = "", dict[str | None, dict[str, Any]]()

    def run(
        self, resources: JobResources, callbacks: JobCallbacks | None = None
    ) -> Generator[Evaluation, None, None]:
        """Tunes the model; see ``LoadJob``.

        Raises:
            ConfigurationError: The evaluation to resume is no interrupted tuning of this model with these
                options on this machine, the machine does not report the peak of memory or the energy, or no
                precision has the least score.
            UnknownEvaluationError: There is no such evaluation.
        """
        with EnergyMeter(self._tuning.system.session.device) as self._meter:
            if self._tuning.objective == RATE_PER_WATT and not self._meter.metered:
                raise ConfigurationError(_NO_POWER)
            if self._tuning.max_memory_mib and not read_peak_bytes():
                raise ConfigurationError(
                    "max_memory needs the peak of memory from Linux's /proc; leave it out"
                )
            if self._tuning.resume is not None:
                self._stored = resources.stored(self._tuning.resume)
                _check_options(self._tuning, self._stored)
            for precision in self._tuning.dtype or ():
                resources.check_system(self._tuning.system_in(precision))
            if self._tuning.min_score is not None:
                self._score_name, self._scores = (
                    _stored_scores(self._stored.measurement)
                    if self._stored
                    else _scores(self._tuning, resources, callbacks or JobCallbacks())
                )
                _leave_out(self._tuning.min_score, self._score_name, self._scores)
            yield from super().run(resources, callbacks)

    def _switched(self, *opened: Any) -> SwitchedTarget:
        target = ReloadedTarget if self._tuning.system.agents else SwitchedTarget
        self._target = target(*opened)
        return self._target

    def _use(self, c: Configuration) -> str:
        release_free_memory()  # of the configuration before
        precision = None if c.precision is None else read_precision(c.precision)
        return self._target.use(**asdict(c) | {"precision": precision})

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
        replay = Replay(session, self._use, read_peak_bytes, before, self._meter.read_watts)
        trials = [Trial(each, **self._scores.get(each.precision, {})) for each in space]
        race = Race(request, trials, replay, before.limit_qps)
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
        told = (request.asked, before.limit_qps, tuple(race.ended_s), resumed, self._score_name)
        power = (race.watts, self._meter.metered) if request.objective == RATE_PER_WATT else ()
        found = TuningMeasurement(options, probes, 0, answer, race.trials(), *told, *power)
        if whole and race.best is not None:
            self._use(race.best.configuration)  # which the evaluation then describes
            if self._file:
                self._file.create(_configuration_text(race.best.configuration, _answer(found)))
        return found, whole


_SCORE = ("score", "score_low", "score_high")
_SMALLER_IS_BETTER = "MAE"  # of the first scores of tasks


def _scores(
    request: TuningRequest, resources: JobResources, callbacks: JobCallbacks
) -> tuple[str, dict[str | None, dict[str, Any]]]:
    """Evaluates the model in each precision, once over the whole dataset, as ``predict dataset`` does.

    Returns:
        The name of the first score, and for each precision, fields of a ``Trial``.

    Raises:
        ConfigurationError: There is no score, or it is an error.
        InferometerError: The model can be evaluated in no precision.
    """
    name, found, dataset = "", dict[str | None, dict[str, Any]](), request.load.dataset
    failure: InferometerError | None = None
    for precision in request.precisions:
        system = request.system_in(precision)
        size = default_batch_size(system, dataset, resources.catalog)
        options = BatchOptions(size, size)
        once = EvaluationRequest(system=system, dataset=dataset, options=options, measure_enough=False)
        try:
            [evaluation] = evaluate(once, resources, JobCallbacks(on_warning=callbacks.on_warning))
        except InferometerError as error:
            failure, found[precision] = failure or error, {"stopped": f"{NOT_POSSIBLE}: {error}"}
            continue
        result = evaluation.measurement.task_result
        first = result.first if result else None
        if first is None:
            which = f"{request.system.model_name} has no score on {evaluation.dataset.name}"
            needs = "it needs labels, and weights that are not random"
            raise ConfigurationError(f"min_score: {which}; {needs}")
        if first.name == _SMALLER_IS_BETTER:
            raise ConfigurationError(f"min_score: {first.name} is an error: less is better; leave it out")
        name = f"{first.name} ({first.unit})" if first.unit else first.name
        found[precision] = dict(zip(_SCORE, (first.value, *(first.interval or (None, None))), strict=True))
    if failure and not name:
        raise failure
    return name, found


def _stored_scores(measured: TuningMeasurement) -> tuple[str, dict[str | None, dict[str, Any]]]:
    """Returns what ``_scores`` returned for an interrupted tuning."""
    trials = {each.configuration.precision: each for each in measured.trials}
    return measured.score_name, {p: {n: getattr(each, n) for n in _SCORE} for p, each in trials.items()}


def _leave_out(least: float, name: str, scores: Mapping[str | None, dict[str, Any]]) -> None:
    """Stops the trials of precisions with too low a score; raises ConfigurationError if no other is left."""
    for fields in scores.values():
        if (score := fields.get("score")) is not None and score < least:
            fields["stopped"] = f"{OUT_OF_SCORE} a {name} of {score:.4g}, below {least:g}"
    if all("stopped" in fields for fields in scores.values()):
        highest = max(fields["score"] for fields in scores.values() if "score" in fields)
        raise ConfigurationError(f"min_score is {least:g}, but the highest {name} is {highest:.4g}")


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
    values = {name: value for name, value in asdict(best).items() if value is not None}
    precision = values.pop("precision", None)  # which clients ask for
    notes = [f"# agent tune: {answer}", *[f"# for clients with --dtype={precision}"] * bool(precision)]
    return "\n".join((*notes, "serving:", *(f"  {name}: {value}" for name, value in values.items()), ""))


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


def _divided(measured: TuningMeasurement, best: Trial) -> str:
    """Returns a one-line description of the rate per core or per watt."""
    cost, low, high = best.cost(measured.objective), best.queries_per_joule_low, best.queries_per_joule_high
    text = f"about {(best.rate_qps or 0.0) / cost:.4g}"
    if measured.answer:
        rate = measured.answer.times(1 / cost)
        text = rate_text(replace(rate, low_qps=low, high_qps=high) if best.watts else rate)
    unit = f"queries/J, at {best.watts:.4g} W ({measured.metered})" if best.watts else "queries/s"
    return f"{text} {unit}"


def _another(measured: TuningMeasurement) -> str:
    """Returns what is known of the chance that another configuration is better."""
    if measured.another is not None:
        return f"is better with a probability of at most {100 * measured.another:.3g} %"
    if any(each.stopped == OUT_OF_TIME for each in measured.trials):
        return "may be better: there was too little time to race them all"
    return "may be better, which is unknown: in the race, a rate was only a lower bound"


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
        Column("precision", "precision"),
        Column("max_batch_size", "batch", stays=True),
        Column("max_queue_delay_ms", "delay (ms)"),
        Column("rate_qps", "rate (queries/s)", decimals=1, stays=True),
        Column("rate_per_core_qps", "per core (queries/s)", decimals=1),
        Column("queries_per_joule", "per watt (queries/J)"),
        Column("queries_per_joule_low", "per watt low", detail=1),
        Column("queries_per_joule_high", "per watt high", detail=1),
        Column("watts", "power (W)", decimals=1),
        Column("metered", "power of", detail=1),
        Column("latency_ms", "latency (ms)"),
        Column("low", "low", detail=1),
        Column("high", "high", detail=1),
        Column("better", "P(better)"),
        *SCORE_COLUMNS,
        Column("score_low", "score low", decimals=4, detail=1),
        Column("score_high", "score high", decimals=4, detail=1),
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
            described, measured = describe(evaluation), evaluation.measurement
            named = {key: described[key] for key in ("id", "model_name", "framework_name", "status")}
            named |= describe_verdict(evaluation, _invalid(evaluation.measurement))
            for place, trial in enumerate(evaluation.measurement.trials, start=1):
                values = asdict(trial)
                peak_bytes = values.pop("memory_bytes")
                values["memory_mib"] = None if peak_bytes is None else peak_bytes / 2**20
                values["score_name"] = None if trial.score is None else evaluation.measurement.score_name
                rate = trial.rate_qps and trial.rate_qps / (trial.cost(measured.objective) or 1.0)
                per_core = rate if "objective" in measured.asked and not measured.metered else None
                per_watt = rate if measured.metered else None
                values |= {"rate_per_core_qps": per_core, "queries_per_joule": per_watt}
                values["metered"] = measured.metered or None
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

    Instances, threads, batch sizes, delays and precisions race on the same arrivals: in this process, or on
    an agent or a server such as Triton, which loads the model anew for each and at the end as before. Losers
    are stopped early. The answer has an interval, and the probability that another configuration is better.
    """

    name = "tuning"
    title = "tuning"
    phrase = "a tuning"
    reports = {TuningReport: TuningPlot}
    headlines = ("rate_qps",)
    case_columns = ("instances", "threads", "max_batch_size", "max_queue_delay_ms", "precision")
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
        if best and whole and "objective" in measured.asked:
            yield measured.objective.removeprefix("rate_").replace("_", " "), _divided(measured, best)
        if invalid:
            yield "", invalid
        if best and whole:
            yield "another", _another(measured)
        if measured.answer and measured.answer.note not in {"", answer}:
            yield "", measured.answer.note
        if measured.resumed:
            yield "resumed", measured.resumed
        if best and best.score is not None:
            ends = "" if best.score_low is None else f" [{best.score_low:.4g}, {best.score_high:.4g}]"
            yield "score", f"{measured.score_name} {best.score:.4g}{ends}"
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
            if each.rate_qps and each.watts:
                found += f", {each.rate_qps / each.watts:.4g} queries/J"
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
        own = ("--threads=", "--dtype=")
        system = [word for word in system_words(evaluation) if not word.startswith(own)]
        given = words(asked, TuningRequest)
        return Again(("measure", self.name, *system, *words_of("seed", seed, 0), *given))

    def unfit(self, measurement: Any) -> str:
        given = "rate_qps" in measurement.asked
        return (
            "has a latency at a given rate, which cannot be compared" if given else super().unfit(measurement)
        )
