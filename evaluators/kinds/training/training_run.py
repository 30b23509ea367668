"""The training loop: batches pass from a loader through a trainer, and each part of every step is timed.

It records the spans of the steps, of their parts, and of the layers in the forward and backward pass, and
exchanges losses and failures between the ranks.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.inference.stages import InputFailure, Stage, SystemDescription
from inferometer.agent.tracing.recorder import (
    AttributeValue,
    PredictWindow,
    Profiler,
    SpanKind,
    SpanRecorder,
    TraceLevel,
    TraceScope,
    traced,
)
from inferometer.agent.training.trainer import PlacedBatch, StepParts, Trainer, TrainingBatch
from inferometer.evaluators.datasets.base import DatasetIdentity
from inferometer.evaluators.evaluation import Evaluation, Status, utc_now
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.batches.run import MEASURE, as_generator
from inferometer.evaluators.kinds.training.measurement import StepTimes, TrainingMeasurement
from inferometer.evaluators.kinds.training.request import TrainingOptions
from inferometer.evaluators.loading.loader import LoadedBatch, Loader
from inferometer.evaluators.loading.options import DataOptions
from inferometer.manifests.errors import (
    ConfigurationError,
    EvaluationFailed,
    EvaluationInterrupted,
    InferometerError,
    one_line,
)
from inferometer.manifests.schema import Loss

_WAIT = SpanKind("wait", TraceLevel.APPLICATION_TRACE)
_COPY = SpanKind("copy", TraceLevel.APPLICATION_TRACE)
_PARTS = ("forward", "backward", "communicate", "update")


@dataclass(eq=False)
class StepTracing:
    """Records the spans of a run's steps; the loop calls it outside the timed parts of a step.

    For each step it records ``train_step`` with ``wait`` and ``copy``, and from MODEL_TRACE on ``train``
    (exactly the timed region) with its parts, one after the other. The layers of a profiler are below
    ``train``. The profiler is not closed here.

    Attributes:
        scope: The parent of the steps; a scope without layers discards the layers of its steps.
        profiler: Records the layers; None records none.
        attributes: Attributes of every ``train_step`` and ``train``.
    """

    scope: TraceScope
    profiler: Profiler | None
    attributes: Mapping[str, AttributeValue]
    _profiled: int = 0

    def before_step(self) -> None:
        """Starts the profiler; called before a step is timed."""
        if self.profiler is not None and not self._profiled:
            self.profiler.start()

    def after_step(
        self, step: int, samples: int, times_ns: tuple[int, int, int, int, int], parts: StepParts | None
    ) -> None:
        """Records a step.

        Args:
            step: The number of the step, from 0.
            samples: The number of its samples on this rank.
            times_ns: On the recorder's clock: when its batch was requested, when it had arrived, when it was
                on the devices, and when the timed region began and ended.
            parts: The times of its parts, if known.
        """
        asked_ns, loaded_ns, placed_ns, begun_ns, ended_ns = times_ns
        given = {**self.attributes, "batch_size": samples}
        whole = SpanKind.of("train_step", TraceLevel.APPLICATION_TRACE, **given)
        step_scope = self.scope.add(whole, asked_ns, ended_ns, batch=step)
        step_scope.add(_WAIT, asked_ns, loaded_ns, batch=step)
        step_scope.add(_COPY, loaded_ns, placed_ns, batch=step)
        if not self.scope.recorder.wants(TraceLevel.MODEL_TRACE):
            return
        train = SpanKind.of("train", TraceLevel.MODEL_TRACE, **given)
        inner = step_scope.add(train, begun_ns, ended_ns, batch=step)
        part_ns = begun_ns
        for name in _PARTS if parts is not None else ():
            duration_ns: int = getattr(parts, f"{name}_ns")
            inner.add(SpanKind(name, TraceLevel.MODEL_TRACE), part_ns, part_ns + duration_ns, batch=step)
            part_ns += duration_ns
        if self.profiler is not None:
            self._profiled += 1
            self.profiler.predicted(PredictWindow(inner.parent_id, begun_ns, ended_ns, step))
            if self._profiled >= self.profiler.round_batches:
                self.collect()

    def collect(self) -> None:
        """Collects the layers of the last steps; called when the run ends.

        If that fails, for example because the disk is full, the trace lacks layers; step times are complete.
        """
        if self.profiler is None or not self._profiled:
            return
        lost, self._profiled = self._profiled, 0
        recorder = self.scope.recorder
        if not self.scope.layers:  # one that keeps nothing, on the same clock
            recorder = SpanRecorder(recorder.context, recorder.level, limit=0, clock=recorder.clock)
        try:
            self.profiler.collect(recorder)
        except (InferometerError, OSError) as error:
            self.scope.recorder.note(f"no layers of {lost} steps: {one_line(error)}")
            self.profiler.close()


_MOST_FAILURES = 10_000
"""The maximum number of failures that a rank sends to the others."""


def gathered_failures(trainer: Trainer, failures: Sequence[InputFailure]) -> tuple[InputFailure, ...]:
    """Returns the failures of all ranks, those of rank 0 first, with each input only once."""
    if trainer.options.rank.count == 1:
        return tuple(failures)
    told = [(each.input_id, each.stage.value, each.message) for each in failures[:_MOST_FAILURES]]
    mine = np.frombuffer(json.dumps(told).encode(), np.uint8).astype(np.int64)
    longest = int(trainer.gather(np.array([len(mine)], np.int64)).max())
    padded = np.full(longest, ord(" "), np.int64)
    padded[: len(mine)] = mine
    found: dict[str, InputFailure] = {}
    for row in trainer.gather(padded):
        for input_id, stage, message in json.loads(row.astype(np.uint8).tobytes()):
            found.setdefault(input_id, InputFailure(input_id, Stage(stage), message))
    return tuple(found.values())


STOP_EVERY = 10
"""Ranks not launched here agree on stopping every so many steps, as each may learn of a stop at another."""
_TIMES = ("samples", "wait_ns", "copy_ns", "compute_ns", "whole_ns")


@dataclass(eq=False)
class TrainingRun:
    """One run of a trainer over the epochs of a loader.

    A step lasts from the end of the previous step to its own end: the wait for its batch, the copy to the
    devices, and the step itself, synchronised. The step times add up to the elapsed time. Warm-up steps train
    but are not measured; their losses are kept.

    ``num_batches`` counts across epochs; if it is not set, ``num_epochs`` ends the run. Data that stays on
    the device is copied there once, before the first step.

    Several ranks run this at once, each on its own samples; rank 0 has the times of all. From MODEL_TRACE on,
    all of them time each step in parts. Time that a profiler takes between steps is not included.

    Attributes:
        trainer: The loaded trainer.
        system: The model and what it runs on.
        loader: The batches of this rank.
        dataset: The identity of the dataset that it loads.
        options: The length of the run, and the training options that the evaluation stores.
        data: How the batches are loaded.
        fail_on_error: Whether the first failed sample stops the run.
        callbacks: Of these, ``on_progress`` and ``stop_requested`` are called after every step; the run ends
            as interrupted once the latter returns True. See ``STOP_EVERY`` for ranks without ``agreed``.
        on_measure: Called after the warm-up, before the measured part.
        trace_level: The trace level, which is the same on every rank.
        trace: The scope of the spans of the warm-up and of the measured part; None records none.
        clock: A monotonic clock in nanoseconds; that of the scope's recorder, if there is a scope.

    Raises:
        ConfigurationError: Neither ``num_batches`` nor ``num_epochs`` ends the run, or all steps are warm-up.
    """

    trainer: Trainer
    system: SystemDescription
    loader: Loader
    dataset: DatasetIdentity
    options: TrainingOptions
    data: DataOptions
    fail_on_error: bool = False
    callbacks: JobCallbacks = JobCallbacks()  # noqa: RUF009 - frozen
    on_measure: Callable[[], None] = lambda: None
    trace_level: TraceLevel = TraceLevel.NO_TRACE
    trace: TraceScope | None = None
    clock: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        self._ranks = self.trainer.options.rank.count
        self._record = _Record()
        self._total = _steps(self.options, self.loader.batches)

    def run(self) -> Evaluation[TrainingMeasurement] | None:
        """Trains the model.

        Returns:
            The evaluation; if it was stopped, its status is interrupted and it contains the finished steps.
            None on ranks other than 0.

        Raises:
            EvaluationFailed: A sample failed, and ``fail_on_error`` is set; or no sample of an epoch could be
                used.
            EvaluationInterrupted: The run was stopped before a step was measured.
            TrainingError: The framework failed.
        """
        created_at, record = utc_now(), self._record
        warm_up = self.options.num_warmup_batches
        going = True
        with closing(self._batches()) as batches, self._open_profiler() as profiler:
            if warm_up:
                with self._traced("warm_up", warm_up, profiler) as tracing:
                    going = self._run_steps(batches, range(warm_up), tracing)
            if going:
                self.on_measure()
                with self._traced(MEASURE, self._total - warm_up, profiler) as tracing:
                    self._run_steps(batches, range(warm_up, self._total), tracing)
        if not record.steps:
            raise EvaluationInterrupted("stopped before a step was measured; nothing was published")
        measurement = self._measurement()
        if self.trainer.options.rank.number:
            return None
        return Evaluation(
            id=str(uuid.uuid4()),
            created_at=created_at,
            status=Status.INTERRUPTED if record.stopped else Status.COMPLETE,
            system=self.system,
            dataset=self.dataset,
            measurement=measurement,
            trace_level=self.trace_level,
        )

    @contextmanager
    def _open_profiler(self) -> Iterator[Profiler | None]:
        """Opens the steps' profiler, and closes it at the end; yields None if no layers are recorded."""
        if self.trace is None or not self.trace.recorder.wants(TraceLevel.FRAMEWORK_TRACE):
            yield None
            return
        profiler = self.trainer.profiler(self.trace.recorder.level)
        if profiler is None:
            framework = self.system.manifest.framework.name
            self.trace.recorder.note(f"no layers: {framework} has no profiler for training")
            yield None
            return
        with closing(profiler):
            yield profiler

    @contextmanager
    def _traced(self, name: str, steps: int, profiler: Profiler | None) -> Iterator[StepTracing | None]:
        """Records a span around some steps; the layers of warm-up steps are not kept."""
        given = {"batch_size": self.options.batch_size, "steps": steps}
        kind = SpanKind.of(name, TraceLevel.APPLICATION_TRACE, **given)
        with traced(self.trace, kind) as scope:
            if scope is None:
                yield None
                return
            manifest = self.system.manifest
            named = {"model_name": manifest.name, "model_version": manifest.version}
            tracing = StepTracing(scope if name == MEASURE else scope.without_layers(), profiler, named)
            yield tracing
            tracing.collect()

    def _run_steps(
        self, batches: Iterator[LoadedBatch | PlacedBatch], numbers: range, tracing: StepTracing | None
    ) -> bool:
        """Runs the steps with these numbers; returns whether it ran all of them."""
        warm_up = self.options.num_warmup_batches
        begun_ns = self.clock()
        for number in numbers:
            if self._stops(number):
                self._record.stopped = True
                return False
            step = self._step(batches, number - numbers.start, number >= warm_up, tracing)
            if step is None:  # an epoch was shorter than it said, because samples failed
                return False
            ended_ns = self.clock()
            if number >= warm_up:
                self._record.steps.append((*step, ended_ns - begun_ns))
            begun_ns = ended_ns
            if tracing is not None:
                tracing.after_step(*self._record.last)
                # a profiler takes time between the steps
                begun_ns = ended_ns if tracing.profiler is None else self.clock()
            self.callbacks.on_progress(Progress(number + 1, self._total))
        return True

    def _stops(self, number: int) -> bool:
        """Returns whether to stop before a step; all ranks get the same result."""
        if self.callbacks.agreed or self._ranks == 1:
            return self.callbacks.stop_requested()
        if number % STOP_EVERY:
            return False
        mine = np.array([self.callbacks.stop_requested()], np.int64)
        return bool(self.trainer.gather(mine).any())

    def _step(
        self,
        batches: Iterator[LoadedBatch | PlacedBatch],
        number: int,
        measured: bool,
        tracing: StepTracing | None,
    ) -> tuple[int, int, int, int] | None:
        """Runs a step, and returns its sample count and part times; None if there is no batch.

        ``number`` is the index of the step among the warm-up steps, or among the measured ones.
        """
        clock, every = self.clock, self.options.parts_every
        if tracing is not None:
            tracing.before_step()
        asked_ns = clock()
        batch = next(batches, None)
        loaded_ns = clock()
        if batch is None:
            return None
        placed = batch if not isinstance(batch, LoadedBatch) else self._place(batch)
        placed_ns = clock() if isinstance(batch, LoadedBatch) else loaded_ns
        parts = bool(every) and measured and number % every == 0
        begun_ns = clock()
        result = self.trainer.step(placed, parts=parts or self.trace_level >= TraceLevel.MODEL_TRACE)
        ended_ns = clock()
        self._record.losses.append(result.loss)
        if result.parts is not None and measured:
            self._record.parts[number] = result.parts
        times_ns = (asked_ns, loaded_ns, placed_ns, begun_ns, ended_ns)
        self._record.last = (number, len(placed), times_ns, result.parts)
        return len(placed), loaded_ns - asked_ns, placed_ns - loaded_ns, ended_ns - begun_ns

    def _place(self, batch: LoadedBatch) -> PlacedBatch:
        return self.trainer.place(TrainingBatch(batch.inputs, self._targets(batch)))

    def _targets(self, batch: LoadedBatch) -> NDArray[np.int64]:
        """Returns the labels in the loss's form: for CTC, a sequence, even if there is only one label."""
        labels = batch.labels
        if self.trainer.loss is Loss.CTC and labels.ndim == 1:
            classes = self.trainer.output_shape[-1]
            return 1 + (labels % (classes - 1))[:, np.newaxis]
        return labels

    def _batches(self) -> Generator[LoadedBatch | PlacedBatch, None, None]:
        """Yields the batches of one epoch after another, or repeatedly the one that stays on the device."""
        if self.data.place == "device":
            with closing(as_generator(self.loader.epoch(0))) as epoch:
                resident = self._place(next(epoch))
            self._record.epochs = -(-self._total // max(1, self.loader.batches))
            while True:
                yield resident
        number = 0
        while self.options.num_epochs is None or number < self.options.num_epochs:
            self._record.epochs = number + 1
            usable = 0
            with closing(as_generator(self.loader.epoch(number))) as epoch:
                for batch in epoch:
                    self._take_failures(batch)
                    if len(batch.inputs):
                        usable += 1
                        yield batch
            if not usable:
                first = next(iter(self._record.failures.values()), None)
                why = f"; the first: {first.input_id}: {first.message}" if first else ""
                raise EvaluationFailed(f"no sample of epoch {number + 1} could be used{why}")
            number += 1

    def _take_failures(self, batch: LoadedBatch) -> None:
        for failure in batch.failures:
            if self.fail_on_error:
                raise EvaluationFailed(
                    f"input {failure.input_id} failed in {failure.stage.value}: {failure.message}; stopped "
                    f"after {len(self._record.losses)} steps because of fail_on_error; nothing was published"
                )
            self._record.failures.setdefault(failure.input_id, failure)
        if self._ranks > 1 and not len(batch.inputs):
            raise EvaluationFailed(
                f"rank {self.trainer.options.rank.number}: every sample of a batch failed, and the other "
                f"ranks wait for it; the first was {batch.failures[0].input_id}: {batch.failures[0].message}"
                if batch.failures
                else f"rank {self.trainer.options.rank.number}: a batch was empty; give a smaller batch_size"
            )

    def _measurement(self) -> TrainingMeasurement:
        """Returns the measurements of all ranks; every rank must call this."""
        record, gather = self._record, self.trainer.gather
        columns = np.asarray(record.steps, np.int64).T
        every = gather(columns)  # (ranks, columns, steps)
        at = np.array(sorted(record.parts), np.int64)
        parts = gather(
            np.array(
                [[getattr(record.parts[step], f"{name}_ns") for step in at.tolist()] for name in _PARTS],
                np.int64,
            )
        )  # (ranks, parts, sampled)
        losses = gather(np.array(record.losses, np.float64).view(np.int64))  # bit for bit
        times = StepTimes(
            **{name: every[:, place] for place, name in enumerate(_TIMES)},
            parts_at=at,
            **{f"{name}_ns": parts[:, place] for place, name in enumerate(_PARTS)},
        )
        return TrainingMeasurement(
            options=self.options,
            data=self.data,
            times=times,
            losses=np.ascontiguousarray(losses).view(np.float64),
            elapsed_ns=int(times.whole_ns.sum(axis=1).max()),
            failures=gathered_failures(self.trainer, tuple(record.failures.values())),
            epochs=record.epochs,
        )


@dataclass(slots=True)
class _Record:
    """The measurements of this rank so far."""

    steps: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    parts: dict[int, StepParts] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    failures: dict[str, InputFailure] = field(default_factory=dict)
    epochs: int = 0
    stopped: bool = False
    last: tuple[int, int, tuple[int, int, int, int, int], StepParts | None] = (0, 0, (0, 0, 0, 0, 0), None)


def _steps(options: TrainingOptions, batches: int) -> int:
    """Returns the number of steps in a run, warm-up included."""
    if options.num_batches is not None:
        return options.num_warmup_batches + options.num_batches
    if options.num_epochs is None:
        raise ConfigurationError("neither num_batches nor num_epochs ends the training; give one of them")
    total = options.num_epochs * batches
    if total <= options.num_warmup_batches:
        raise ConfigurationError(
            f"num_epochs {options.num_epochs} of {batches} batches are all within num_warmup_batches "
            f"{options.num_warmup_batches}; give more epochs, or fewer batches to warm up"
        )
    return total
