"""The jobs of mixes: several models under load, alone and together in blocks, or all at growing rates."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from inferometer.evaluators.evaluation import Evaluation, M, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart
from inferometer.evaluators.kinds.load.job import open_target
from inferometer.evaluators.kinds.load.measurement import (
    SIDES,
    MixMeasurement,
    MixSearchMeasurement,
    RateAnswer,
    invalid_reason,
    lag_reason,
)
from inferometer.evaluators.kinds.load.mix_request import MixOfModels, MixRequest, MixSearchRequest
from inferometer.evaluators.kinds.load.request import MaxQpsRequest
from inferometer.evaluators.kinds.load.search import search_factor
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.issuer import RunLimits, run_together
from inferometer.evaluators.load.load_session import (
    ALLOWED_SHARE,
    LoadSession,
    MixSession,
    calibrate,
    check_load,
    peak_qps,
)
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop, bound_ns_of
from inferometer.evaluators.load.target import LoadTarget
from inferometer.evaluators.load.validity import lag_in_percentiles
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted


def mix_job(request: MixRequest) -> Job[Evaluation[MixMeasurement]]:
    """Returns the job, which yields an evaluation for each model, all with one group id.

    The schedules are drawn here. Those of a model in one pair of blocks are the same alone and together.

    Raises:
        ConfigurationError: A block has no query of a model, or all loads together are more than this machine
            can send on time.
    """
    schedules: dict[str, list[Schedule]] = {}
    for place, (name, load) in enumerate(request.models.items()):
        seeds = np.random.SeedSequence((request.seed, place)).generate_state(request.blocks).tolist()
        try:
            schedules[name] = [
                Schedule.drawn(load.process, load.rate_qps, load.extent, seed) for seed in seeds
            ]
        except ConfigurationError as error:
            raise ConfigurationError(f"mix: {name}: {error}") from error
    peak = sum(max(map(peak_qps, each)) for each in schedules.values())
    if not request.force:
        check_load(peak)
    return _job(request, partial(_measure_blocks, schedules))


S = TypeVar("S", bound=MixSearchMeasurement)
_Schedules: TypeAlias = Mapping[str, Sequence[Schedule]]
"""The schedules of each model, one for each pair of blocks."""
_Measured: TypeAlias = tuple[Mapping[str, tuple[M, Sequence[LoadRun]]], bool]
"""The measurement of each model and its runs, and whether all of them are complete."""
_Measure: TypeAlias = Callable[[Mapping[str, LoadTarget], RunLimits, Mapping[str, Any]], _Measured[M]]
"""Measures open models; the last argument has the fields that the measurements of each have in common."""


def _job(request: MixOfModels, measure: _Measure[M]) -> Job[Evaluation[M]]:
    title, stops = " + ".join(request.models), "stopping, without waiting for the answers"
    return Job(partial(_evaluations, request, measure), title, f"opening {title}", stops, has_total=False)


def _evaluations(
    request: MixOfModels, measure: _Measure[M], resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[M], None, None]:
    """Opens the models, measures them, and yields an evaluation for each.

    Raises:
        EvaluationInterrupted: The job was stopped before anything was complete.
        InferometerError: A model or its inputs cannot be opened.
    """
    created_at, group_id = utc_now(), str(uuid.uuid4())
    options = {name: load.load_options() for name, load in request.models.items()}
    loads = {name: f"{name}, {each.arrival} at {each.rate_qps:g} queries/s" for name, each in options.items()}
    bounds_ns = [each.latency_bound_ns for each in options.values() if each.latency_bound_ns is not None]
    limits = RunLimits(
        request.timeout_ms,
        bound_ns=min(bounds_ns, default=None),
        stop_requested=callbacks.stop_requested,
        on_progress=callbacks.on_progress,
    )
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(open_target(load, resources, callbacks))
            for name, load in request.models.items()
        }
        for name, (target, inputs, *_) in opened.items():
            callbacks.on_start(JobStart(target.description, inputs.source, len(inputs), loads[name]))
            LoadSession(target, limits).warm_up(request.warm_up_queries)
        for *_, watch in opened.values():
            watch.begin()
        common = {
            name: {
                "name": name,
                "others": tuple(load for each, load in loads.items() if each != name),
                "options": options[name],
                "mix": request.given,
                "file": request.text,
            }
            for name in opened
        }
        measured, whole = measure({name: target for name, (target, *_) in opened.items()}, limits, common)
        conditions = {name: watch.end() for name, (*_, watch) in opened.items()}
        for name, (target, _, dataset, _) in opened.items():
            measurement, runs = measured[name]
            yield Evaluation(
                id=str(uuid.uuid4()),
                created_at=created_at,
                status=Status.of(
                    whole=whole, usable=any(run.queries.count(Outcome.ANSWERED) for run in runs)
                ),
                system=target.description,
                dataset=dataset,
                measurement=measurement,
                conditions=conditions[name],
                group_id=group_id,
            )


def _measure_blocks(
    schedules: _Schedules, targets: Mapping[str, LoadTarget], limits: RunLimits, common: Mapping[str, Any]
) -> _Measured[MixMeasurement]:
    began_ns = time.perf_counter_ns()
    pairs = list(_pairs(schedules, targets, limits))
    elapsed_ns = time.perf_counter_ns() - began_ns
    if not pairs:
        raise EvaluationInterrupted("stopped before a pair of blocks was complete; nothing was published")
    measured = {}
    for name, fields in common.items():
        alone, together = (tuple(runs[side, name] for runs in pairs) for side in SIDES)
        mix = MixMeasurement(**fields, alone=alone, together=together, elapsed_ns=elapsed_ns)
        measured[name] = (replace(mix, invalid=_invalid(mix)), (*alone, *together))
    return measured, all(len(pairs) == len(each) for each in schedules.values())


def _invalid(mix: MixMeasurement) -> str:
    """Returns why the lag makes a percentile invalid; empty if it does not."""
    judged = mix.options.percentile, mix.options.latency_bound_ns
    reasons = ((side, lag_in_percentiles(mix.side(side).run.queries, 0, *judged)) for side in SIDES)
    return next((f"{side}: {reason}" for side, reason in reasons if reason), "")


def _pairs(
    schedules: _Schedules, targets: Mapping[str, LoadTarget], limits: RunLimits
) -> Iterator[Mapping[tuple[str, str], LoadRun]]:
    """Sends the blocks, and yields the runs of each pair by side and model, until one is interrupted.

    Each model alone comes first, in turn, and then all together. Every second pair has the reverse order:
    over two pairs, a drift of the machine that is linear in time affects both sides alike.
    """
    blocks = [*(("alone", (name,)) for name in schedules), ("together", tuple(schedules))]
    pairs = list(zip(*schedules.values(), strict=True))
    for pair, drawn in enumerate(pairs):
        due = dict(zip(schedules, drawn, strict=True))
        runs: dict[tuple[str, str], LoadRun] = {}
        for step, (side, names) in enumerate(blocks[::-1] if pair % 2 else blocks, 1):
            what = side if side == "together" else f"{names[0]} alone"
            name = f"block {pair * len(blocks) + step} of {len(pairs) * len(blocks)}, {what}"
            sent = [targets[each] for each in names], [due[each] for each in names]
            found = run_together(*sent, replace(limits, name=name))
            if found[0].stop is Stop.INTERRUPTED:
                return
            runs |= {(side, each): run for each, run in zip(names, found, strict=True)}
        yield runs


def mix_search_job(request: MixSearchRequest) -> Job[Evaluation[MixSearchMeasurement]]:
    """Returns the job of a search, which yields an evaluation for each model, all with one group id.

    Unless ``force`` is set, the rate that this machine can send is measured, which takes about a second.

    Raises:
        ConfigurationError: The rates at the factor 1 are together more than this machine can send on time.
    """
    limit = None
    if not request.force:
        rate_qps, ceiling_qps = sum(load.rate_qps for load in request.models.values()), calibrate()
        check_load(rate_qps, ceiling_qps)
        limit = ceiling_qps * ALLOWED_SHARE / rate_qps

    def search(
        targets: Mapping[str, LoadTarget], limits: RunLimits, common: Mapping[str, Any]
    ) -> _Measured[MixSearchMeasurement]:
        session = MixSession(list(targets.values()), limits)
        return searched(request.models, session, MixSearchMeasurement, common, limit)

    return _job(request, search)


def searched(
    models: Mapping[str, MaxQpsRequest],
    session: MixSession,
    kind: type[S],
    common: Mapping[str, Any],
    limit: float | None = None,
    busy_ms: float = 0.0,
) -> _Measured[S]:
    """Searches for the largest factor, and returns a measurement of a ``kind`` for each model.

    See ``search_factor`` for the other arguments; ``common`` has the fields that the search does not set.

    Raises:
        EvaluationInterrupted: The job was stopped before a probe was complete.
    """
    answer, limiting = None, ""
    own: Mapping[str, RateAnswer] = {}
    with suppress(EvaluationInterrupted):
        answer, own, limiting = search_factor(models, session, limit, busy_ms)
    if not session.probes:
        raise EvaluationInterrupted("stopped before a probe was complete; nothing was published")
    measured, invalid = {}, ""
    for (name, load), runs in zip(models.items(), zip(*session.probes, strict=True), strict=True):
        judged = bound_ns_of(load.latency_bound_ms), load.late_fraction
        search = kind(
            **common[name],
            probes=tuple(replace(run, invalid=lag_reason(run, *judged)) for run in runs),
            elapsed_ns=round(session.elapsed_s * 1e9),
            answer=answer and answer.times(load.rate_qps),
            own=own[name].times(load.rate_qps) if own else None,
            limited_by=limiting,
        )
        invalid = invalid or (f"{name}: {reason}" if (reason := invalid_reason(search)) else "")
        measured[name] = (search, search.probes)
    return {n: (replace(e, invalid=invalid), runs) for n, (e, runs) in measured.items()}, answer is not None
