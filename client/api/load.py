"""The Python functions for load tests, and their results: workloads and searches for the highest rate."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from typing_extensions import Unpack

from inferometer.client.api.arguments import MaxQpsArguments, WorkloadArguments
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.client.api.requests import SystemArguments, dataset_choice, inputs_of, refuse_unknown
from inferometer.client.api.results import M, Result
from inferometer.client.api.runner import measured_group
from inferometer.evaluators.jobs.options import MODEL, values_of
from inferometer.evaluators.kinds.load.job import load_job
from inferometer.evaluators.kinds.load.measurement import LoadMeasurement, RateAnswer, RateSearchMeasurement
from inferometer.evaluators.kinds.load.request import LoadRequest, MaxQpsRequest, WorkloadRequest
from inferometer.evaluators.kinds.load.summary import LoadSummary
from inferometer.evaluators.kinds.registry import kind_of
from inferometer.evaluators.reports.base import in_ms
from inferometer.manifests.errors import ConfigurationError

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class LatencyPercentile:
    """A percentile of query latency, measured from the scheduled arrival to the response.

    Attributes:
        percent: The percentage of queries, 0…100.
        value_ms: The latency; infinite if the percentile falls on queries without a successful response.
        low_ms: The lower end of its 95 % interval; None if there are too few queries for one.
        high_ms: The upper end; None if no query was slow enough to determine it, or there is no lower end.
    """

    percent: float
    value_ms: float
    low_ms: float | None
    high_ms: float | None


class _UnderLoad(Result[M]):
    """The properties shared by the results of both kinds of load test."""

    @property
    def valid(self) -> bool:
        """Whether the figures can be trusted."""
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why the figures cannot be trusted, in one line; empty if they can be trusted."""
        return kind_of(self.evaluation).invalid(self.evaluation.measurement) or (
            "" if self.complete else "it was stopped before its end"
        )


class WorkloadRun(_UnderLoad[LoadMeasurement]):
    """One run under load, with the times of every query; in a notebook, a table with its picture."""

    @cached_property
    def summary(self) -> LoadSummary:
        """Every figure, in nanoseconds and queries per second; see ``LoadSummary``."""
        return LoadSummary.of_load(self.evaluation.measurement)

    @property
    def percentiles(self) -> tuple[LatencyPercentile, ...]:
        """The latency percentiles in ascending order: 50, 90, 95, 99, 99.9 and the bound's percentile."""
        return tuple(
            LatencyPercentile(
                each.percent, each.value_ns / _NS_PER_MS, in_ms(each.low_ns), in_ms(each.high_ns)
            )
            for each in self.summary.percentiles
        )

    def percentile(self, percent: float) -> LatencyPercentile:
        """Returns one of ``percentiles``.

        Raises:
            ConfigurationError: ``percentiles`` does not contain it.
        """
        known = self.percentiles
        for each in known:
            if each.percent == percent:
                return each
        there = ", ".join(f"{each.percent:g}" for each in known) or "none, because no query was counted"
        raise ConfigurationError(f"percentile {percent:g} was not computed; available: {there}")

    @property
    def p50_ms(self) -> float | None:
        """The median latency in milliseconds; None if no query was counted."""
        return self._value_ms(50.0)

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile of the latency in milliseconds; None if no query was counted."""
        return self._value_ms(99.0)

    @property
    def achieved_qps(self) -> float | None:
        """Successful responses per second."""
        return self.summary.achieved_qps

    @property
    def goodput_qps(self) -> float | None:
        """Successful responses per second within the bound; if there is no bound, all of them."""
        return self.summary.goodput_qps

    def _value_ms(self, percent: float) -> float | None:
        found = self.summary.percentile(percent)
        return in_ms(None if found is None else found.value_ns)


class RateSearch(_UnderLoad[RateSearchMeasurement]):
    """One search for the highest rate, with the times of every query; in a notebook as ``WorkloadRun``."""

    @property
    def rate_qps(self) -> float | None:
        """The highest rate that stays within the bound; None if none does or the search was stopped."""
        return self._answer.rate_qps if self._answer else None

    @property
    def low_qps(self) -> float | None:
        """The lower end of the 95 % interval of ``rate_qps``; None if there is none."""
        return self._answer.low_qps if self._answer else None

    @property
    def high_qps(self) -> float | None:
        """The upper end of the 95 % interval of ``rate_qps``; None if there is none."""
        return self._answer.high_qps if self._answer else None

    @property
    def method(self) -> str | None:
        """The method that produced the result; None if the search was stopped."""
        return self._answer.method if self._answer else None

    @property
    def note(self) -> str:
        """A remark on the result, in one line; empty if there is none."""
        return self._answer.note if self._answer else ""

    @property
    def _answer(self) -> RateAnswer | None:
        return self.evaluation.measurement.answer


def workload(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    dataset: str | os.PathLike[str] | None = None,
    publish: bool = True,
    **more: Unpack[WorkloadArguments],
) -> WorkloadRun:
    """Sends queries as they arrive in production, like ``agent predict workload``.

    A run whose figures cannot be trusted is also returned and published; see ``WorkloadRun.valid``. Ctrl-C
    ends the run; the measurements up to then are returned but not published. With ``repeat``, the last run
    is returned, and its ``group`` contains all runs.

    Args:
        model: The name in its manifest, or a file or an object as in ``evaluate``.
        dataset: A name or a path, as in ``evaluate``; None means the dataset that the model names.
        publish: Whether to store the evaluation in the configured database.
        more: See ``WorkloadArguments``.

    Raises:
        InferometerError: The model or the inputs cannot be opened, or a value is invalid.
        EvaluationInterrupted: Ctrl-C before a query was sent.
        StoreError: The database cannot be reached, or the evaluation was not published; the message names
            the file that holds it.
    """
    invocation = library_invocation()
    request = WorkloadRequest(**_fields(invocation, "workload", WorkloadRequest, model, dataset, dict(more)))
    return WorkloadRun.last_of(measured_group(invocation, load_job(request), publish=publish))


def max_qps(
    model: str | os.PathLike[str] | object = MODEL,
    *,
    dataset: str | os.PathLike[str] | None = None,
    publish: bool = True,
    **more: Unpack[MaxQpsArguments],
) -> RateSearch:
    """Searches for the highest rate that stays within a latency bound, like ``agent predict max-qps``.

    A result that cannot be trusted is also returned and published; see ``RateSearch.valid``. Ctrl-C ends the
    search; the probes up to then are returned but not published. With ``repeat``, the last search is
    returned, and its ``group`` contains all searches. The arguments and the errors are those of ``workload``,
    and ``more`` is in ``MaxQpsArguments``.
    """
    invocation = library_invocation()
    request = MaxQpsRequest(**_fields(invocation, "max_qps", MaxQpsRequest, model, dataset, dict(more)))
    return RateSearch.last_of(measured_group(invocation, load_job(request), publish=publish))


def _fields(
    invocation: Invocation,
    function: str,
    kind: type[LoadRequest],
    model: str | os.PathLike[str] | object,
    dataset: str | os.PathLike[str] | None,
    given: dict[str, Any],
) -> dict[str, Any]:
    named, inputs = SystemArguments(given), inputs_of(given, arguments=True)
    fields = values_of(kind, given, arguments=True)
    refuse_unknown(function, given)
    choice = dataset_choice(dataset, options=inputs)
    system = named.request(invocation, model, choice)
    synthetic = inputs.synthetic or (system.given is not None and not choice.is_named)
    return {
        "system": system,
        "dataset": choice,
        "seed": system.session.seed,
        "synthetic": synthetic,
        **fields,
    }
