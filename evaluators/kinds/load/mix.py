"""The job behind ``measure mix``: several models under load, each alone and all together, in blocks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import Job, JobCallbacks, JobResources, JobStart
from inferometer.evaluators.kinds.load.job import open_target
from inferometer.evaluators.kinds.load.measurement import MixMeasurement, pooled
from inferometer.evaluators.kinds.load.request import MixRequest, WorkloadRequest
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.issuer import RunLimits, run_together
from inferometer.evaluators.load.load_session import (
    ALLOWED_SHARE,
    LEAST_QPS,
    LoadSession,
    calibrate,
    check_load,
    peak_qps,
)
from inferometer.evaluators.load.queries import LoadRun, Outcome, Stop
from inferometer.evaluators.load.target import LoadTarget
from inferometer.evaluators.load.validity import lag_in_percentiles
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted


@dataclass(eq=False)
class _Model:
    """A model of the mix: its load, its schedule in each pair of blocks, and its runs so far."""

    name: str
    load: WorkloadRequest
    schedules: Sequence[Schedule]
    alone: list[LoadRun] = field(default_factory=list)
    together: list[LoadRun] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}, {self.load.process} at {self.load.rate_qps:g} queries/s"

    def invalid(self) -> str:
        """Returns why the lag makes a percentile invalid; empty if it does not."""
        options = self.load.load_options()
        for side, runs in (("alone", self.alone), ("together", self.together)):
            if reason := lag_in_percentiles(pooled(runs), 0, options.percentile, options.latency_bound_ns):
                return f"{side}: {reason}"
        return ""


def mix_job(request: MixRequest) -> Job[Evaluation[MixMeasurement]]:
    """Returns the job, which yields an evaluation for each model, all with one group id.

    The schedules are drawn here. Those of a model in one pair of blocks are the same alone and together.

    Raises:
        ConfigurationError: A block has no query of a model, or all loads together are more than this machine
            can send on time.
    """
    models = []
    for place, (name, load) in enumerate(request.models.items()):
        seeds = np.random.SeedSequence((request.seed, place)).generate_state(request.blocks).tolist()
        try:
            drawn = [Schedule.drawn(load.process, load.rate_qps, load.extent, seed) for seed in seeds]
        except ConfigurationError as error:
            raise ConfigurationError(f"mix: {name}: {error}") from error
        models.append(_Model(name, load, drawn))
    peak = sum(max(map(peak_qps, each.schedules)) for each in models)
    if not request.force and peak > LEAST_QPS * ALLOWED_SHARE:
        check_load(peak, calibrate())
    title = " + ".join(request.models)
    stops = "stopping, without waiting for the answers"
    return Job(partial(_measure, request, models), title, f"opening {title}", stops, has_total=False)


def _measure(
    request: MixRequest, models: Sequence[_Model], resources: JobResources, callbacks: JobCallbacks
) -> Generator[Evaluation[MixMeasurement], None, None]:
    """Opens the models, sends the blocks, and yields an evaluation for each model.

    Raises:
        EvaluationInterrupted: The job was stopped before the first pair of blocks was complete.
        InferometerError: A model or its inputs cannot be opened.
    """
    created_at, group_id = utc_now(), str(uuid.uuid4())
    limits = RunLimits(
        request.timeout_ms, stop_requested=callbacks.stop_requested, on_progress=callbacks.on_progress
    )
    with ExitStack() as stack:
        opened = [stack.enter_context(open_target(each.load, resources, callbacks)) for each in models]
        for (target, inputs, *_), each in zip(opened, models, strict=True):
            callbacks.on_start(JobStart(target.description, inputs.source, len(inputs), str(each)))
            LoadSession(target, limits).warm_up(request.warm_up_queries)
        for *_, watch in opened:
            watch.begin()
        began_ns = time.perf_counter_ns()
        whole = _send(models, [target for target, *_ in opened], limits)
        elapsed_ns = time.perf_counter_ns() - began_ns
        conditions = [watch.end() for *_, watch in opened]
        pairs = min(len(runs) for each in models for runs in (each.alone, each.together))
        if not pairs:
            raise EvaluationInterrupted("stopped before a pair of blocks was complete; nothing was published")
        for place, model in enumerate(models):
            del model.alone[pairs:], model.together[pairs:]
            target, _, dataset, _ = opened[place]
            runs = (*model.alone, *model.together)
            yield Evaluation(
                id=str(uuid.uuid4()),
                created_at=created_at,
                status=Status.of(
                    whole=whole, usable=any(run.queries.count(Outcome.ANSWERED) for run in runs)
                ),
                system=target.description,
                dataset=dataset,
                measurement=MixMeasurement(
                    name=model.name,
                    others=tuple(str(each) for each in models if each is not model),
                    options=model.load.load_options(),
                    mix=request.given,
                    file=request.text,
                    alone=tuple(model.alone),
                    together=tuple(model.together),
                    elapsed_ns=elapsed_ns,
                    invalid=model.invalid(),
                ),
                conditions=conditions[place],
                group_id=group_id,
            )


def _send(models: Sequence[_Model], targets: Sequence[LoadTarget], limits: RunLimits) -> bool:
    """Sends the blocks; returns whether none was interrupted.

    Each model alone comes first, in turn, and then all together. Every second pair has the reverse order:
    over two pairs, a drift of the machine that is linear in time affects both sides alike.
    """
    places = range(len(models))
    blocks = [*(("alone", (place,)) for place in places), ("together", tuple(places))]
    bounds_ns = [bound for each in models if (bound := each.load.load_options().latency_bound_ns) is not None]
    total = len(blocks) * len(models[0].schedules)
    for number in range(total):
        pair, step = divmod(number, len(blocks))
        side, chosen = blocks[::-1][step] if pair % 2 else blocks[step]
        what = models[chosen[0]].name + " alone" if side == "alone" else side
        runs = run_together(
            [targets[place] for place in chosen],
            [models[place].schedules[pair] for place in chosen],
            replace(
                limits, bound_ns=min(bounds_ns, default=None), name=f"block {number + 1} of {total}, {what}"
            ),
        )
        if runs[0].stop is Stop.INTERRUPTED:
            return False
        for place, run in zip(chosen, runs, strict=True):
            getattr(models[place], side).append(run)
    return True
