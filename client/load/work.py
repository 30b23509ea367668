"""What is put on a system: a schedule, a closed loop, a scenario or a search, as this machine can send it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from client.load.defaults import LATENCY_BOUND_MS, TIME_BUDGET_S, TOLERANCE
from client.load.mlperf import MlperfWork
from client.load.request import LoadRequest
from evaluators.loadgen.calibration import (
    ALLOWED_SHARE,
    LEAST_QPS,
    Ceiling,
    calibrate,
    check_load,
    peak_qps,
)
from evaluators.loadgen.closed_loop import ClosedLoop
from evaluators.loadgen.max_qps_options import MaxQpsOptions
from evaluators.loadgen.mlperf_result import Scenario
from evaluators.loadgen.record import LoadKind
from evaluators.loadgen.schedule import Schedule

Work: TypeAlias = Schedule | ClosedLoop | MlperfWork | MaxQpsOptions
"""What is put on the system."""


def work_of(request: LoadRequest) -> Work:
    """Returns what a request puts on the system.

    Raises:
        ConfigurationError: It makes no sense.
    """
    if request.kind is LoadKind.MAX_QPS:
        return _search_options(request)
    if request.scenario is not None:
        return MlperfWork.of(request, Scenario(request.scenario))
    return request.workload()


def ceiling_for_mean(request: LoadRequest) -> Ceiling | None:
    """Refuses, before any is drawn, a schedule whose mean rate is above what this machine can send.

    Returns:
        What this machine can send, where it had to be measured.

    Raises:
        ConfigurationError: It is above that, or the numbers make no sense.
    """
    if request.force or request.kind is LoadKind.MAX_QPS or not request.draws:
        return None
    mean_qps = request.process.mean_qps(request.rate_qps, request.extent.min_duration_s)
    if mean_qps <= LEAST_QPS * ALLOWED_SHARE:
        return None
    ceiling = calibrate()
    check_load(mean_qps, ceiling)
    return ceiling


def within_ceiling(work: Work, force: bool, ceiling: Ceiling | None) -> Work:
    """Returns the load with the limit of what this machine can send, which is measured where it matters.

    Args:
        work: The load.
        force: Whether there is no limit.
        ceiling: What this machine can send, where that was measured already.

    Raises:
        ConfigurationError: The load is above the limit.
    """
    if force or isinstance(work, ClosedLoop | MlperfWork):
        return work
    if isinstance(work, Schedule):
        if (peak := peak_qps(work)) > LEAST_QPS * ALLOWED_SHARE:
            check_load(peak, ceiling or calibrate())
        return work
    ceiling = ceiling or calibrate()
    check_load(work.initial_qps, ceiling)
    return replace(work, max_rate_qps=ceiling.rate_qps * ALLOWED_SHARE)


def _search_options(request: LoadRequest) -> MaxQpsOptions:
    """What a search is asked for.

    Raises:
        ConfigurationError: A number makes no sense.
    """
    options = request.load_options(None)
    return MaxQpsOptions(
        latency_bound_ms=options.latency_bound_ms or LATENCY_BOUND_MS,
        initial_qps=request.rate_qps,
        percentile=options.percentile,
        tolerance=options.tolerance or TOLERANCE,
        time_budget_s=options.time_budget_s or TIME_BUDGET_S,
        min_duration_s=options.min_duration_s,
        min_queries=options.min_queries,
        process=request.process,
        seed=request.seed,
    )
