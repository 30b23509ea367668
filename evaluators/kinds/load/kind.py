"""The kinds of measurement under load: a workload, a search for the highest rate, and a mix of models.

All present the options of a load in the same way, as text and as values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import TypeVar

from inferometer.evaluators.datasets.base import short_checksum
from inferometer.evaluators.drawing.charts import Drawing
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.jobs.options import words
from inferometer.evaluators.kinds.kind import (
    Again,
    Kind,
    Rows,
    apart,
    dataset_words,
    drawn,
    own_values,
    system_words,
    top_figures,
    words_of,
)
from inferometer.evaluators.kinds.load.documents import RunsKind
from inferometer.evaluators.kinds.load.measurement import (
    SIDES,
    LoadMeasurement,
    LoadOptions,
    MixMeasurement,
    MixSearchMeasurement,
    RateAnswer,
    RateSearchMeasurement,
    invalid_reason,
)
from inferometer.evaluators.kinds.load.mix_request import MixRequest, MixSearchRequest
from inferometer.evaluators.kinds.load.plot import MaxQpsPlot, MixPlot, PartsPlot, WorkloadPlot
from inferometer.evaluators.kinds.load.report import (
    MaxQpsReport,
    MixReport,
    MixSearchReport,
    PartsReport,
    ProbesReport,
    WorkloadReport,
)
from inferometer.evaluators.kinds.load.request import BATCHING, LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.load.summary import (
    LoadSummary,
    mix_rows,
    mix_search_rows,
    run_rows,
    search_rows,
)
from inferometer.evaluators.reports.base import Row
from inferometer.evaluators.verdict import FIGURES, MAX_QPS, THROUGHPUT, RunTimes

if TYPE_CHECKING:
    from inferometer.evaluators.jobs.job import Job


def option_values(kind: str, options: LoadOptions) -> dict[str, Any]:
    """Returns the options as JSON values."""
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    given |= given.pop("further")
    return {"kind": kind} | {n: v.value if isinstance(v, Enum) else v for n, v in given.items()}


def option_conditions(options: LoadOptions) -> dict[str, str]:
    """Returns the options in the form of conditions for a comparison."""
    conditions = {
        "max batch size": str(options.max_batch_size),
        "max queue delay": f"{options.max_queue_delay_ms:g} ms",
        "instances": str(options.instances),
        "preprocessing": "under load" if options.include_preprocess else "before",
        "timeout": f"{options.timeout_ms:g} ms",
    }
    if options.concurrency is not None:
        conditions["concurrency"] = str(options.concurrency)
    return conditions | {name.replace("_", " "): str(value) for name, value in options.further.items()}


def load_description(evaluation: Evaluation, options: LoadOptions) -> Iterator[tuple[str, str]]:
    """Yields rows of text that describe the inputs."""
    dataset = evaluation.dataset
    prepared = "preprocessed under load" if options.include_preprocess else "preprocessed before"
    yield "inputs", f"{dataset.name}, {dataset.size} of them, {prepared}"
    if dataset.chosen_samples is not None:
        yield "samples", dataset.chosen_samples


def options_text(options: LoadOptions, *, bound: bool = False) -> Iterator[str]:
    """Yields a short text for each option; with ``bound``, also for the latency bound."""
    yield f"timeout {options.timeout_ms:g} ms"
    if bound:
        yield "no bound" if options.latency_bound_ms is None else f"bound {options.latency_bound_ms:g} ms"
    yield f"batches of up to {options.max_batch_size}"
    if options.max_queue_delay_ms:
        yield f"which wait {options.max_queue_delay_ms:g} ms"
    if options.instances > 1:
        yield f"{options.instances} instances"
    if options.further.get("pin"):
        yield "pinned to cores"
    yield f"{options.warm_up_queries} queries to warm up"


_REPEATED = ("percentile", "timeout_ms", "warm_up_queries", *BATCHING, "include_preprocess")


def load_words(evaluation: Evaluation, options: LoadOptions, request: type[LoadRequest]) -> Iterator[str]:
    """Yields the words of the command that repeats a load, except for the queries and their duration."""
    yield from dataset_words(evaluation)
    yield from words_of("seed", options.seed, 0)
    yield from words({name: getattr(options, name) for name in _REPEATED}, request)


_NS_PER_S = 1_000_000_000
_OF_THE_SCHEDULE = ("load", "duration", "queries")
"""The conditions that are equal for equal schedules, whatever their source."""
CHANGES_WITH_TIME = ("ramp", "bursts")
"""The arrival processes whose load depends on the duration."""


class LoadKind(RunsKind[LoadMeasurement]):
    """The measurement of a model under load."""

    name = "load"
    title = "workload"
    phrase = "a workload"
    reports = {WorkloadReport: WorkloadPlot}
    further_reports = {PartsReport: PartsPlot}
    headlines = ("latency_ms_p50", "latency_ms_p99", "achieved_qps", "goodput_qps", "late_share")

    measurement = LoadMeasurement
    keeps_interrupted = False

    def overview(self, measurement: LoadMeasurement) -> Row:
        load = LoadSummary.of_load(measurement)
        median = load.percentile(50.0)
        return top_figures(median.value_ns if median else None, load.achieved_qps)

    def summary(self, evaluation: Evaluation[LoadMeasurement]) -> Rows:
        return run_rows(evaluation.measurement)

    def description(self, evaluation: Evaluation[LoadMeasurement]) -> Rows:
        options, run = evaluation.measurement.options, evaluation.measurement.run
        yield from load_description(evaluation, options)
        rate = f" at {run.rate_qps:g} queries/s" if run.rate_qps else ""
        seed = f", seed {run.seed}" if run.seed is not None else ""
        yield "load", f"{run.source}{rate}{seed}"
        if run.checksum:
            yield "", f"schedule {run.checksum}"
        yield "", ", ".join(options_text(options, bound=True))

    def document(self, evaluation: Evaluation[LoadMeasurement], *_: object) -> dict[str, Any]:
        load, run = evaluation.measurement, evaluation.measurement.run
        [row] = WorkloadReport().rows([evaluation])
        summary = LoadSummary.of_load(load)
        figures = {
            "options": option_values("workload", load.options),
            "workload": own_values(WorkloadReport(), row),
            "empty_start_s": run.cut_ns / _NS_PER_S,
            "empty_start_queries": summary.cut_queries,
            "queries_by_batch_size": {str(size): n for size, n in sorted(summary.batch_sizes.items())},
            "failure_reasons": dict(run.reasons),
            "mlperf": asdict(load.mlperf) if load.mlperf else None,
        }
        if run.server:
            rows = PartsReport().rows([evaluation])
            figures["parts"] = [own_values(PartsReport(), each) for each in rows]
        return {"load": figures}

    def facts(self, evaluation: Evaluation[LoadMeasurement], *_: object) -> Iterator[tuple[str, Any]]:
        yield "schedule", evaluation.measurement.run.checksum or None

    def drawings(self, evaluation: Evaluation[LoadMeasurement], most_points: int) -> Iterator[Drawing]:
        for each in drawn(WorkloadPlot(), WorkloadReport(), evaluation):
            yield from apart(each)

    def again(self, evaluation: Evaluation[LoadMeasurement]) -> Again:
        run = evaluation.measurement.run
        if _of_a_file(evaluation.measurement):
            reason = f"Its schedule came from the file {run.source}, which the evaluation does not keep."
            return Again((), (reason,))
        options = evaluation.measurement.options
        load = load_words(evaluation, options, WorkloadRequest)
        sent = words({**_sent(options), **options.further}, WorkloadRequest)
        return Again(("predict", "workload", *system_words(evaluation), *load, *sent))

    def conditions(self, evaluation: Evaluation[LoadMeasurement]) -> Mapping[str, str]:
        """Returns the options, the load that was sent, its duration, and the number of queries."""
        options, run = evaluation.measurement.options, evaluation.measurement.run
        conditions = option_conditions(options)
        if _of_a_file(evaluation.measurement):
            # a file, which is identified by its checksum and determines the duration
            file = f"{run.source} ({short_checksum(run.checksum)})"
            return conditions | {"load": f"{file} at {run.rate_qps:g} queries/s"}
        if options.max_duration_s is not None:
            duration, queries = f"{options.max_duration_s:g} s", "as many as are due"
        else:
            duration, queries = f"at least {options.min_duration_s:g} s", f"at least {options.min_queries}"
        length = {"duration": duration, "queries": queries}
        if options.concurrency is not None:
            return conditions | length
        load_text = options.arrival + (f" at {options.rate_qps:g} queries/s" if options.rate_qps else "")
        if options.arrival.partition(":")[0] in CHANGES_WITH_TIME:
            more = "" if options.max_duration_s is not None else f" and {queries} queries"
            return conditions | {"load": f"{load_text} for {duration}{more}"}
        return conditions | {"load": load_text, **length}

    def equal_conditions(self, one: LoadMeasurement, other: LoadMeasurement) -> Collection[str]:
        """Returns the conditions of the schedule, if the queries of both were due at the same times."""
        return _OF_THE_SCHEDULE if one.run.checksum == other.run.checksum != "" else ()

    def run_times(self, evaluation: Evaluation[LoadMeasurement]) -> RunTimes:
        run = evaluation.measurement.run
        try:
            return RunTimes.of_queries(run.queries.since(run.cut_ns))
        except ValueError as error:
            raise ValueError("query that counts") from error

    def figures(self, a: Sequence[LoadMeasurement], b: Sequence[LoadMeasurement]) -> tuple[str, ...]:
        """Returns only the throughput if all queries were due at once; see ``Queries.due_at_once``."""
        return (THROUGHPUT,) if any(each.run.queries.due_at_once for each in (*a, *b)) else FIGURES


def _of_a_file(load: LoadMeasurement) -> bool:
    """Returns whether the schedule came from a file, which is identified by its checksum."""
    return load.options.concurrency is None and load.options.scenario is None and load.run.seed is None


def _sent(options: LoadOptions) -> dict[str, Any]:
    """Returns the options for the queries that are sent, and for how long."""
    rate: dict[str, Any] = {"initial_qps": options.rate_qps or None}
    if options.scenario is not None:
        sent = {"scenario": options.scenario, **rate}
    elif options.concurrency is not None:
        sent = {"concurrency": options.concurrency}
    else:
        sent = {**rate, "arrival": options.arrival}
    if options.max_duration_s is not None:
        length = {"duration_s": options.max_duration_s}
    else:
        length = {"min_duration_s": options.min_duration_s, "min_queries": options.min_queries}
    return {"latency_bound_ms": options.latency_bound_ms, **sent, **length}


S = TypeVar("S", bound=RateSearchMeasurement, default=RateSearchMeasurement)


class RateSearchKind(RunsKind[S]):
    """The measurement by a search for the highest rate."""

    name = "rate_search"
    title = "max QPS"
    phrase = "a search for the highest rate"
    reports = {MaxQpsReport: MaxQpsPlot}
    headlines: ClassVar[tuple[str, ...]] = ("max_qps",)
    tabled = (ProbesReport,)

    measurement: ClassVar[type[Any] | None] = RateSearchMeasurement
    keeps_interrupted = False

    def invalid(self, measurement: S) -> str:
        return invalid_reason(measurement)

    def overview(self, measurement: S) -> Row:
        return top_figures(None, measurement.answer.rate_qps if measurement.answer else None)

    def summary(self, evaluation: Evaluation[S]) -> Rows:
        return search_rows(evaluation.measurement)

    def description(self, evaluation: Evaluation[S]) -> Rows:
        options = evaluation.measurement.options
        yield from load_description(evaluation, options)
        bound = f"p{options.percentile:g} <= {options.latency_bound_ms:g} ms"
        yield "load", f"search for the highest rate with {bound}, from {options.rate_qps:g} queries/s"
        budget = "" if options.time_budget_s is None else f"budget {options.time_budget_s:g} s"
        yield "", f"{options.arrival}, seed {options.seed}, {budget}"
        probes = f"probes of {options.min_duration_s:g} s and {options.min_queries} queries at the least"
        yield "", f"{probes}; each schedule: agent info evaluation max-qps --probes --id={evaluation.id}"
        yield "", ", ".join(options_text(options))

    def document(self, evaluation: Evaluation[S], *_: object) -> dict[str, Any]:
        report = next(iter(self.reports))()
        [found] = report.rows([evaluation])
        figures = {
            "options": option_values(report.name, evaluation.measurement.options),
            "search": own_values(report, found),
            "probes": [own_values(ProbesReport(), row) for row in ProbesReport().rows([evaluation])],
        }
        return {"load": figures}

    def again(self, evaluation: Evaluation[S]) -> Again:
        options = evaluation.measurement.options
        names = ("min_duration_s", "min_queries", "tolerance", "time_budget_s")
        searched = {
            "latency_bound_ms": options.latency_bound_ms,
            "initial_qps": options.rate_qps,
            "arrival": options.arrival,
            **{name: getattr(options, name) for name in names},
        }
        load = load_words(evaluation, options, MaxQpsRequest)
        search = words(searched, MaxQpsRequest, whole=True)
        more = words(options.further, MaxQpsRequest)
        return Again(("predict", "max-qps", *system_words(evaluation), *load, *search, *more))

    def unfit(self, measurement: S) -> str:
        if measurement.answer is None:
            return "has no answer; leave it out"
        reason = invalid_reason(measurement)
        return f"is INVALID: {reason}; its answer is not to be trusted, run it again" if reason else ""

    def conditions(self, evaluation: Evaluation[S]) -> Mapping[str, str]:
        options = evaluation.measurement.options
        bound = "none" if options.latency_bound_ms is None else f"{options.latency_bound_ms:g} ms"
        question = {"load": options.arrival, "percentile": f"{options.percentile:g}", "latency bound": bound}
        return option_conditions(options) | question

    def figures(self, *_: Sequence[S]) -> tuple[str, ...]:
        return (MAX_QPS,)

    def rates(self, measurement: S) -> Mapping[str, RateAnswer]:
        return {} if measurement.answer is None else {MAX_QPS: measurement.answer}


class MixKind(RunsKind[MixMeasurement]):
    """Put several models under load, each alone and all together, and measure how much they interfere.

    Blocks alternate: each model alone, then all together, and in reverse order every second time. A model's
    arrivals are the same in both blocks of a pair. There is one evaluation for each model; a mix of one model
    shows how much two equal blocks differ.
    """

    name = "mix"
    title = "mix"
    phrase = "a mix of models"
    reports = {MixReport: MixPlot}
    headlines = ("ratio_p50", "ratio_judged", "together_ms_p50", "together_ms_judged", "kept_bound_together")
    measurement = MixMeasurement
    request = MixRequest

    def job(self, request: MixRequest) -> Job[Evaluation[MixMeasurement]]:
        from inferometer.evaluators.kinds.load.mix import mix_job  # opens models, which reports do not

        return mix_job(request)

    def measured(self, measurement: MixMeasurement) -> str:
        return f"{len(measurement.alone)} pairs of blocks"

    def overview(self, measurement: MixMeasurement) -> Row:
        return LoadKind().overview(measurement.side("together"))

    def summary(self, evaluation: Evaluation[MixMeasurement]) -> Rows:
        return mix_rows(evaluation.measurement)

    def description(self, evaluation: Evaluation[MixMeasurement]) -> Rows:
        mix = evaluation.measurement
        yield from load_description(evaluation, mix.options)
        yield "blocks", f"{len(mix.alone)} pairs of {mix.options.max_duration_s:g} s, seed {mix.options.seed}"
        yield "", ", ".join(options_text(mix.options, bound=True))

    def document(self, evaluation: Evaluation[MixMeasurement], *_: object) -> dict[str, Any]:
        mix, [row] = evaluation.measurement, MixReport().rows([evaluation])
        figures = {
            "options": option_values("mix", mix.options),
            "mix": own_values(MixReport(), row),
            "file": mix.file,
            "failure_reasons": {side: dict(mix.side(side).run.reasons) for side in SIDES},
        }
        return {"load": figures}

    def again(self, evaluation: Evaluation[MixMeasurement]) -> Again:
        return again_of(self.name, evaluation.measurement.mix, MixRequest, _FILE)


class MixSearchKind(RateSearchKind[MixSearchMeasurement]):
    """Search for the largest factor by which all rates of a mix can grow while every model keeps its bound.

    Each probe sends the whole mix with all rates times a factor. Each model needs a latency bound, and is
    judged at its own percentile. There is one evaluation for each model, with the answer of the mix.
    """

    name = "mix_search"
    title = "max QPS of a mix"
    phrase = "a search for the largest factor of a mix"
    reports = {MixSearchReport: MaxQpsPlot}
    headlines = ("factor", "factor_low", "factor_high", "own_factor", "max_qps")
    measurement = MixSearchMeasurement
    request = MixSearchRequest
    keeps_interrupted = True

    def job(self, request: MixSearchRequest) -> Job[Evaluation[MixSearchMeasurement]]:
        from inferometer.evaluators.kinds.load.mix import mix_search_job  # opens models, which reports do not

        return mix_search_job(request)

    def measured(self, measurement: MixSearchMeasurement) -> str:
        return f"{len(measurement.probes)} probes"

    def summary(self, evaluation: Evaluation[MixSearchMeasurement]) -> Rows:
        return mix_search_rows(evaluation.measurement)

    def document(self, evaluation: Evaluation[MixSearchMeasurement], *_: object) -> dict[str, Any]:
        found = super().document(evaluation)["load"]
        return {"load": found | {"file": evaluation.measurement.file}}

    def facts(self, evaluation: Evaluation[MixSearchMeasurement], *_: object) -> Iterator[tuple[str, Any]]:
        yield "limited by", evaluation.measurement.limited_by or None

    def again(self, evaluation: Evaluation[MixSearchMeasurement]) -> Again:
        return again_of(self.name, evaluation.measurement.mix, MixSearchRequest, _FILE)

    def unfit(self, measurement: MixSearchMeasurement) -> str:
        return Kind.unfit(self, measurement)


_FILE = "The evaluation keeps the content of the file: agent info evaluation show -f json."


def again_of(kind: str, given: Mapping[str, Any], request: type[Any], *notes: str) -> Again:
    """Returns the command that measures a kind again with the options given."""
    return Again(("measure", kind, *words(given, request)), notes)
