"""The job behind ``measure mix``: several models under load, each alone and all together, in blocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart
from inferometer.evaluators.kinds.load.job import open_target
from inferometer.evaluators.kinds.load.measurement import SIDES, MixMeasurement
from inferometer.evaluators.kinds.load.request import MixRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.issuer import RunLimits, run_together
from inferometer.evaluators.load.load_session import LoadSession, check_load, peak_qps
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop
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
    title = " + ".join(schedules)
    stops = "stopping, without waiting for the answers"
    return Job(partial(_measure, request, schedules), title, f"opening {title}", stops, has_total=False)


_Schedules: TypeAlias = Mapping[str, Sequence[Schedule]]
"""The schedules of each model, one for each pair of blocks."""


def _measure(
    request: MixRequest, schedules: _Schedules, resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[MixMeasurement], None, None]:
    """Opens the models, sends the blocks, and yields an evaluation for each model.

    Raises:
        EvaluationInterrupted: The job was stopped before the first pair of blocks was complete.
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
        began_ns = time.perf_counter_ns()
        pairs = list(_pairs(schedules, {name: target for name, (target, *_) in opened.items()}, limits))
        elapsed_ns = time.perf_counter_ns() - began_ns
        conditions = {name: watch.end() for name, (*_, watch) in opened.items()}
        if not pairs:
            raise EvaluationInterrupted("stopped before a pair of blocks was complete; nothing was published")
        for name, (target, _, dataset, _) in opened.items():
            alone, together = (tuple(runs[side, name] for runs in pairs) for side in SIDES)
            mix = MixMeasurement(
                name=name,
                others=tuple(load for each, load in loads.items() if each != name),
                options=options[name],
                mix=request.given,
                file=request.text,
                alone=alone,
                together=together,
                elapsed_ns=elapsed_ns,
            )
            answered = any(run.queries.count(Outcome.ANSWERED) for run in (*alone, *together))
            yield Evaluation(
                id=str(uuid.uuid4()),
                created_at=created_at,
                status=Status.of(whole=len(pairs) == request.blocks, usable=answered),
                system=target.description,
                dataset=dataset,
                measurement=replace(mix, invalid=_invalid(mix)),
                conditions=conditions[name],
                group_id=group_id,
            )


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
