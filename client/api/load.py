"""The Python functions for load tests, and their results: workloads and searches for the highest rate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import Unpack

from inferometer.client.api.arguments import DeclaredLoadArguments
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import dataset_choice, system_request
from inferometer.client.api.results import Result
from inferometer.client.api.runner import measured
from inferometer.evaluators.evaluation import Measurement
from inferometer.evaluators.intervals import PercentileInterval
from inferometer.evaluators.jobs.options import (
    LATENCY_BOUND_MS,
    MODEL,
    PERCENTILE,
    TIME_BUDGET_S,
    TOLERANCE,
)
from inferometer.evaluators.kinds.load.job import load_job
from inferometer.evaluators.kinds.load.measurement import (
    LoadMeasurement,
    RateAnswer,
    RateSearchMeasurement,
    Scenario,
)
from inferometer.evaluators.kinds.load.report import MaxQpsReport, WorkloadReport
from inferometer.evaluators.kinds.load.request import MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.kinds.summary import conditions_rows, trace_rows
from inferometer.evaluators.reports.base import in_ms
from inferometer.manifests.errors import ConfigurationError

_NS_PER_MS = 1_000_000
_NOT_OF_THE_LOAD = {
    "version",
    "weights",
    "seed",
    "gpu",
    "threads",
    "precision",
    "cudnn_benchmark",
    "sample_ids",
}
M = TypeVar("M", bound=Measurement)


@dataclass(frozen=True, slots=True)
class LatencyPercentile:
    """A percentile of query latency, measured from the scheduled arrival to the response.

    Attributes:
        percent: 0…100.
        value_ms: The percentile; infinite if it falls on queries without a right answer.
        low_ms: The lower end of its 95 % interval; None if there are too few queries for one.
        high_ms: The upper end; None if no query was slow enough to determine it, or there is no lower end.
    """

    percent: float
    value_ms: float
    low_ms: float | None
    high_ms: float | None


class _UnderLoad(Result[M]):
    """The properties that results of both kinds of load test share."""

    @property
    def valid(self) -> bool:
        """Whether the figures can be trusted."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why the figures cannot be trusted, in one line; empty if they can."""
        return kind_of(self.evaluation).invalid(self.evaluation.measurement) or (
            "" if self.complete else "it was stopped before its end"
        )

    def _figures(self) -> Sequence[tuple[str, str]]:
        evaluation = self.evaluation
        figures = (
            *kind_of(evaluation).summary(evaluation),
            *conditions_rows(evaluation),
            *trace_rows(evaluation),
        )
        return (*figures, ("evaluation", self.id if self.complete else f"{self.id}  interrupted"))


class WorkloadRun(_UnderLoad[LoadMeasurement]):
    """One run under load; in a notebook it displays as a table with its picture.

    Attributes:
        evaluation: The complete evaluation, with the times of every query.
    """

    _pictured = WorkloadReport

    @cached_property
    def summary(self) -> LoadSummary:
        """Every figure, in nanoseconds and queries per second; see ``LoadSummary``."""
        options, run = self.evaluation.measurement.options, self.evaluation.measurement.run
        return LoadSummary.of(run.queries, options.latency_bound_ns, run.cut_ns, options.percentile)

    @property
    def percentiles(self) -> tuple[LatencyPercentile, ...]:
        """The percentiles of the latency, ascending: 50, 90, 95, 99, 99.9 and the one of the bound."""
        return tuple(map(_in_ms, self.summary.percentiles))

    def percentile(self, percent: float) -> LatencyPercentile:
        """Returns one of ``percentiles``.

        Raises:
            ConfigurationError: ``percentiles`` does not contain it.
        """
        known = self.percentiles
        for each in known:
            if each.percent == percent:
                return each
        there = ", ".join(f"{each.percent:g}" for each in known) or "none, as no query counts"
        raise ConfigurationError(f"percentile {percent:g} was not computed; there are {there}")

    @property
    def p50_ms(self) -> float | None:
        """The median latency; None if no query counts."""
        return self._value_ms(50.0)

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile of the latency; None if no query counts."""
        return self._value_ms(99.0)

    @property
    def achieved_qps(self) -> float | None:
        """Right answers per second."""
        return self.summary.achieved_qps

    @property
    def goodput_qps(self) -> float | None:
        """Right answers within the bound per second; all of them without a bound."""
        return self.summary.goodput_qps

    def _value_ms(self, percent: float) -> float | None:
        found = self.summary.percentile(percent)
        return in_ms(None if found is None else found.value_ns)


class RateSearch(_UnderLoad[RateSearchMeasurement]):
    """One search for the highest rate; in a notebook it displays as a table with its picture.

    Attributes:
        evaluation: The complete evaluation, with the times of every query of each probe.
    """

    _pictured = MaxQpsReport

    @property
    def rate_qps(self) -> float | None:
        """The highest rate that keeps the bound; None if no rate does, or the search was stopped."""
        return self._answer.rate_qps if self._answer else None

    @property
    def low_qps(self) -> float | None:
        """The lower end of its 95 % interval; None if there is none."""
        return self._answer.low_qps if self._answer else None

    @property
    def high_qps(self) -> float | None:
        """The upper end of its 95 % interval; None if there is none."""
        return self._answer.high_qps if self._answer else None

    @property
    def method(self) -> str | None:
        """The method that produced the result; None if the search was stopped."""
        return self._answer.method if self._answer else None

    @property
    def note(self) -> str:
        """A remark on the answer in one line; empty for none."""
        return self._answer.note if self._answer else ""

    @property
    def _answer(self) -> RateAnswer | None:
        return self.evaluation.measurement.answer


class LoadArguments(DeclaredLoadArguments, total=False):
    """Further arguments of ``workload`` and ``max_qps``, beside those of ``DeclaredLoadArguments``.

    Attributes:
        version: A version of the model, or a constraint; by default the highest that has the weights.
        weights: ``pretrained``, or ``random`` for speed only.
        seed: The seed of random weights and of the schedule.
        synthetic: Whether the inputs are random tensors instead of a dataset's.
        sample_ids: The ids of the samples of the dataset to send; by default all.
        gpu: Whether to run on the GPU.
        threads: CPU threads of an operator.
        precision: ``float32``, ``float16`` or ``bfloat16``, for a model in code; by default the model's own.
        cudnn_benchmark: Whether cuDNN times its algorithms; by default as the framework does.
    """

    version: str | None
    weights: str
    seed: int
    synthetic: bool
    sample_ids: Sequence[str] | None
    gpu: bool
    threads: int | None
    precision: str | None
    cudnn_benchmark: bool | None


def workload(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    framework: str | None = None,
    dataset: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    initial_qps: float | None = None,
    arrival: str | None = None,
    latency_bound_ms: float | None = None,
    percentile: float = PERCENTILE,
    duration_s: float | None = None,
    schedule: str | os.PathLike[str] | None = None,
    concurrency: int | None = None,
    scenario: str | None = None,
    publish: bool = True,
    **more: Unpack[LoadArguments],
) -> WorkloadRun:
    """Sends queries as they arrive in production, as ``agent predict workload`` does.

    A run whose figures cannot be trusted is also returned and published; see ``WorkloadRun.valid``. Ctrl-C
    ends the run; the measurements up to then are returned and not published.

    Args:
        model: The name in its manifest, or a file or an object as in ``evaluate``.
        framework: The framework; None means the first installed one that has the model.
        dataset: A name or a path, as in ``evaluate``; None means the dataset that the model names.
        agent: The address of a served agent; None means this process.
        initial_qps: Queries per second; None means 16.
        arrival: The arrival process, such as ``constant`` or ``gamma:cv=2``; None means ``poisson``.
        latency_bound_ms: The bound for goodput; None for none.
        percentile: The percentile of the latency that the bound applies to.
        duration_s: The exact duration in seconds, instead of the minimum duration and number of queries.
        schedule: A file with the offset of each query, instead of ``initial_qps`` and ``arrival``.
        concurrency: The number of queries to keep in flight instead.
        scenario: A scenario of MLPerf that LoadGen sends instead: ``single_stream``, ``multi_stream``,
            ``server`` or ``offline``.
        publish: Whether to store the evaluation in the configured database.
        more: See ``LoadArguments``.

    Raises:
        InferometerError: The model or the inputs cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a query was sent.
        StoreError: The database cannot be reached, or lost the evaluation; the message names the file that
            keeps it.
    """
    invocation = library_invocation()
    request = WorkloadRequest(
        **_shared(invocation, model, framework, dataset, agent, more),
        initial_qps=initial_qps,
        arrival=arrival,
        latency_bound_ms=latency_bound_ms,
        percentile=percentile,
        duration_s=duration_s,
        schedule=None if schedule is None else Path(schedule),
        concurrency=concurrency,
        scenario=None if scenario is None else _scenario(scenario),
    )
    return WorkloadRun(measured(invocation, load_job(request), publish=publish))


def max_qps(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    framework: str | None = None,
    dataset: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    initial_qps: float | None = None,
    arrival: str | None = None,
    latency_bound_ms: float = LATENCY_BOUND_MS,
    percentile: float = PERCENTILE,
    tolerance: float = TOLERANCE,
    time_budget_s: float = TIME_BUDGET_S,
    publish: bool = True,
    **more: Unpack[LoadArguments],
) -> RateSearch:
    """Searches for the highest rate that keeps a latency bound, as ``agent predict max-qps`` does.

    A result that cannot be trusted is also returned and published; see ``RateSearch.valid``. Ctrl-C ends the
    search; the probes up to then are returned and not published.

    Args:
        model: The name in its manifest, or a file or an object as in ``evaluate``.
        framework: The framework; None means the first installed one that has the model.
        dataset: A name or a path, as in ``evaluate``; None means the dataset that the model names.
        agent: The address of a served agent; None means this process.
        initial_qps: The first rate, in queries per second; None means 16.
        arrival: The arrival process, such as ``constant`` or ``gamma:cv=2``; None means ``poisson``.
        latency_bound_ms: The bound for the percentile.
        percentile: The percentile of the latency that the bound applies to.
        tolerance: The half-width to reach of the interval that this search alone gives, as a fraction of the
            rate.
        time_budget_s: The time, in seconds, after which the search ends even if the interval is wider.
        publish: Whether to store the evaluation in the configured database.
        more: See ``LoadArguments``.

    Raises:
        InferometerError: The model or the inputs cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a query was sent.
        StoreError: The database cannot be reached, or lost the evaluation; the message names the file that
            keeps it.
    """
    invocation = library_invocation()
    request = MaxQpsRequest(
        **_shared(invocation, model, framework, dataset, agent, more),
        initial_qps=initial_qps,
        arrival=arrival,
        latency_bound_ms=latency_bound_ms,
        percentile=percentile,
        tolerance=tolerance,
        time_budget_s=time_budget_s,
    )
    return RateSearch(measured(invocation, load_job(request), publish=publish))


def _shared(
    invocation: Invocation,
    model: str | os.PathLike[str] | object,
    framework: str | None,
    dataset: str | os.PathLike[str] | None,
    agent: str | None,
    more: LoadArguments,
) -> dict[str, Any]:
    """Returns the fields of a request that both kinds of load test share."""
    seed, rest = more.get("seed", 0), {k: v for k, v in more.items() if k not in _NOT_OF_THE_LOAD}
    choice = dataset_choice(dataset, sample_ids=more.get("sample_ids"))
    system = system_request(
        invocation,
        model,
        dataset=choice,
        version=more.get("version"),
        framework=framework,
        weights=more.get("weights", "pretrained"),
        seed=seed,
        gpu=more.get("gpu", False),
        threads=more.get("threads"),
        precision=more.get("precision"),
        cudnn_benchmark=more.get("cudnn_benchmark"),
        agent=agent,
    )
    if system.given is not None and not choice.is_named:
        rest["synthetic"] = True
    return {"system": system, "dataset": choice, "seed": seed, **rest}


def _scenario(name: str) -> Scenario:
    try:
        return Scenario(name.strip().lower())
    except ValueError as error:
        known = ", ".join(each.value for each in Scenario)
        raise ConfigurationError(f'unknown scenario "{name}"; known: {known}') from error


def _in_ms(each: PercentileInterval) -> LatencyPercentile:
    return LatencyPercentile(
        each.percent, each.value_ns / _NS_PER_MS, in_ms(each.low_ns), in_ms(each.high_ns)
    )
