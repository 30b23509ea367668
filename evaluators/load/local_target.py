"""The local target: a session in this process under load, behind a queue like that of a served model."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import Precision
from inferometer.agent.inference.stages import BatchResult, Stage, SystemDescription
from inferometer.agent.preprocessing.inputs import Input, Payload, Tensors
from inferometer.agent.serving.batch_worker import BatchMemory, BatchWorkers, Predicted, open_instances
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.request_queue import WAITING, PredictedBatch, RequestQueue, RequestState
from inferometer.evaluators.evaluation import TensorSystem
from inferometer.evaluators.load.target import (
    Answers,
    LoadableSystem,
    LoadInputs,
    LoadTarget,
    PreparedInputs,
    shapes_of,
)
from inferometer.manifests.errors import (
    ConfigurationError,
    InferometerError,
    PredictionError,
    QueueFullError,
    SessionError,
)

_CLOSE_TIMEOUT_S = 5.0
_SWITCH_INTERVAL_S = 1e-4
"""How long the predicting thread may keep the interpreter while the sending thread needs it.

With Python's default of 5 ms, predictions of 1.5 ms delayed queries that arrived meanwhile: the p99 of the
lag was 0.49 to 0.78 ms; with this value, it is 0.25 to 0.31 ms.
"""
_CLOSED = "the load target was closed while the query waited"
_NO_ANSWER = "the model gave no answer for the query"


class LocalTarget(Closeable):
    """A session under load; satisfies ``target.LoadTarget``.

    ``BatchWorkers`` predict the queries in a ``RequestQueue``, as in a served model. Inputs that were only
    read are preprocessed within the batch, so that this is part of the latency. During a run, the interpreter
    switches threads every 0.1 ms, so that the thread that sends the queries gets its turn in time.

    The session still belongs to its owner: ``close`` only stops the threads, and closes the further
    ``instances`` that the target has opened.

    Query n predicts input n modulo the number of inputs. The fields of ``BatchingOptions`` may be given; a
    query beyond ``max_queue`` fails, and prepared inputs of different shapes never share a batch. The clock
    is that of the run, in nanoseconds.

    Raises:
        ConfigurationError: A number is out of its range, or the system can have only one instance.
        InferometerError: A further instance cannot be opened.
    """

    in_process = True

    def __init__(
        self,
        session: TensorSystem,
        inputs: LoadInputs,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        **batching: Any,
    ) -> None:
        options = BatchingOptions(**batching)
        self._session = session
        self._clock = clock
        self._full = f"the queue is full, {options.max_queue} queries wait"
        self._run: _Run | None = None
        self._interval_s = sys.getswitchinterval()
        self._closed = False
        self._queue = RequestQueue[_Query](options.max_queue, "under load", clock)
        # a system that is not a session has only one
        sessions = open_instances(session, options.instances, getattr(session, "open_another", None))
        size = options.max_batch_size
        predictors = [_Batches(each, inputs, size, owned=each is not session) for each in sessions]
        form_of: Callable[[_Query], object] | None = None
        if isinstance(inputs, PreparedInputs) and not inputs.are_alike:
            forms = [shapes_of(row) for row in inputs.rows]

            def form_of(query: _Query) -> object:
                return forms[query.number % len(forms)]

        self._workers = BatchWorkers(
            predictors,
            self._queue,
            options,
            clock,
            "under load",
            form_of=form_of,
            processors=getattr(session, "processors", ()),
        )

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on."""
        return self._session.description

    def reconnect(self) -> None:
        """Does nothing: a session in this process has no connection."""

    def begin(self, answers: Answers) -> None:
        """Begins a run, and cancels one that has not ended; raises SessionError if the target is closed."""
        if self._closed:
            raise SessionError("the load target is closed; make another")
        if self._run is not None:
            self._cancel(self._run)
        self._run = _Run(answers, self._clock)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)

    def submit(self, query: int) -> None:
        """Queues a query, which fails if the queue is full; raises SessionError if no run has begun."""
        run = self._run
        if run is None:
            raise SessionError("no run has begun; call begin before submit")
        now_ns = self._clock()
        try:
            self._queue.put(_Query(run, query, now_ns))
        except QueueFullError:
            run.answers.failed(query, now_ns, self._full)
            return
        run.accepted += 1

    def end(self, timeout_s: float) -> None:
        """Waits until every query has its outcome, or for ``timeout_s``; then drops the waiting queries.

        A prediction in progress continues: the queries of the next run wait until it ends.
        """
        run, self._run = self._run, None
        if run is not None:
            run.wait(timeout_s)
            self._cancel(run)
            sys.setswitchinterval(self._interval_s)

    def close(self) -> None:
        """Fails the waiting queries, stops the threads, and waits a few seconds for a prediction in progress.

        Calling it again does nothing. A framework that hangs cannot be cancelled.
        """
        if self._closed:
            return
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            sys.setswitchinterval(self._interval_s)
            run.closed = True
            self._queue.clear(SessionError(_CLOSED))
        self._queue.close()
        self._workers.join(_CLOSE_TIMEOUT_S)
        if run is not None:
            run.finish()

    def _cancel(self, run: _Run) -> None:
        """Drops the waiting queries of a run, and discards its outcomes from now on."""
        if run.finish():
            self._queue.clear(SessionError("the run has ended"))


def make_load_target(
    system: LoadableSystem | TensorSystem, inputs: LoadInputs, **batching: Any
) -> LoadTarget:
    """Returns a target that puts load on a system; the caller closes it.

    The target is the system's own, which has its own batching and instances, or else a ``LocalTarget``.
    """
    if isinstance(system, LoadableSystem):
        return system.load_target(inputs)
    return LocalTarget(system, inputs, **batching)


class SwitchedTarget(Closeable):
    """A model under load that is served in one way after the other; satisfies ``target.LoadTarget``.

    Args:
        system: The model, which is closed before it is opened with another number of threads.
        inputs: Its inputs.
        reopen: Opens the model with a number of threads per operator and in a precision.
    """

    in_process = True

    def __init__(self, system: TensorSystem, inputs: LoadInputs, reopen: Callable[..., TensorSystem]) -> None:
        self._system, self._inputs, self._reopen = system, inputs, reopen
        self._opened = (system.description.threads, system.description.precision)
        self._serve(make_load_target(system, inputs))

    @property
    def description(self) -> SystemDescription:
        """The model and what it runs on now."""
        return self._system.description

    def use(self, threads: int | None, precision: Precision | None = None, **batching: Any) -> str:
        """Serves the model in another way from the next run on; see ``make_load_target``.

        Args:
            threads: The threads per operator; None keeps them.
            precision: The precision that a model in code is cast to; None keeps it.
            batching: Its ``max_batch_size``, ``max_queue_delay_ms`` and ``instances``.

        Returns:
            Why the model cannot be served like this; empty if it is.
        """
        wanted = (self._opened[0] if threads is None else threads, precision or self._opened[1])
        self._target.close()
        try:
            if wanted != self._opened:
                self._opened = (None, None)  # until it is open
                self._system.close()
                self._system = self._reopen(*wanted)
                found = self._system.description.threads
                if threads is not None and found != threads:
                    return f"the framework keeps to {found} threads per operator"
                self._opened = wanted
            self._serve(make_load_target(self._system, self._inputs, **batching))
        except InferometerError as error:
            return str(error)
        return ""

    def _serve(self, target: LoadTarget) -> None:
        self._target = target
        self.begin, self.submit = target.begin, target.submit
        self.end, self.reconnect = target.end, target.reconnect

    def close(self) -> None:
        """Stops serving, and closes the model."""
        self._target.close()
        self._system.close()


class ModelControl(Protocol):
    """Serves a model of a server in one way after the other."""

    def serve(self, threads: int | None, **batching: Any) -> None:
        """Serves it in another way, for those who open it later; raises InferometerError if it cannot be.

        Raises ConfigurationError if no other way with this kind of value will do either.
        """
        ...

    def close(self) -> None:
        """Serves it as before; calling it again does nothing."""
        ...


class ReloadedTarget(SwitchedTarget):
    """A model of a server under load, which the server loads in one way after the other.

    Its ``control`` serves it as before when the target is closed. The target opens the model anew for each
    way; the given ``system``, which watches the server, remains open and belongs to its owner.
    """

    in_process = False

    def __init__(self, system: Any, inputs: LoadInputs, reopen: Callable[..., TensorSystem]) -> None:
        super().__init__(system, inputs, reopen)
        self._first = system
        self._control: ModelControl = system.control()

    def use(self, threads: int | None, precision: Precision | None = None, **batching: Any) -> str:
        """Serves the model in another way, in the precision that it has; see ``SwitchedTarget``.

        Raises:
            ConfigurationError: The server cannot vary this at all.
        """
        self._leave()
        try:
            self._control.serve(threads, **batching)
            self._system = self._reopen()
            self._serve(make_load_target(self._system, self._inputs))
        except ConfigurationError:
            raise
        except InferometerError as error:
            return str(error)
        return ""

    def _leave(self) -> None:
        self._target.close()
        if self._system is not self._first:
            self._system.close()

    def close(self) -> None:
        """Ends the queries in flight, and has the model served as before."""
        try:
            self._leave()
        finally:
            self._control.close()


class _Run:
    """The queries of one run. The thread that submits writes ``accepted``; ``settled`` guards the rest."""

    def __init__(self, answers: Answers, clock: Callable[[], int]) -> None:
        self.answers = answers
        self.clock = clock
        self.accepted = 0
        self.closed = False
        """Whether the target is closed, so that queries whose batch has not begun fail."""
        self.finished = False
        """Whether outcomes are discarded from now on."""
        self.settled = threading.Condition()
        self._count = 0

    def settle(self, count: int) -> None:
        """Counts further outcomes; the caller holds ``settled``."""
        self._count += count
        self.settled.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Waits until each accepted query has its outcome, or for the given time."""
        with self.settled:
            self.settled.wait_for(lambda: self._count == self.accepted, timeout_s)

    def finish(self) -> bool:
        """Discards outcomes from now on; returns whether any outcome is missing."""
        with self.settled:
            self.finished = True
            return self._count != self.accepted


class _Query:
    """A query that waits for its prediction; satisfies ``QueuedRequest``."""

    __slots__ = ("came_ns", "number", "run", "state")
    deadline_ns: int | None = None
    inputs = 1
    is_active: Callable[[], bool] | None = None
    nbytes = 0  # the inputs of the target are in memory anyway

    def __init__(self, run: _Run, number: int, came_ns: int) -> None:
        self.run = run
        self.number = number
        self.came_ns = came_ns
        self.state: RequestState = WAITING

    def fail(self, error: BaseException) -> None:
        """Reports the query as failed, with the reason why there is no answer."""
        run, reason = self.run, " ".join(str(error).split())
        if not isinstance(error, InferometerError):
            reason = f"{type(error).__name__}: {reason}".rstrip(": ")
        with run.settled:
            if not run.finished:
                run.answers.failed(self.number, run.clock(), reason)
                run.settle(1)


class _Batches:
    """Predicts the queries of a batch, all of one run; satisfies ``BatchPredictor``.

    ``close`` closes the session if it is ``owned``; otherwise, its owner does. Inputs that were only read are
    preprocessed with the batch.
    """

    def __init__(
        self, session: TensorSystem, inputs: LoadInputs, max_batch_size: int, *, owned: bool
    ) -> None:
        self._session = session
        self._owned = owned
        self._rows: Sequence[Tensors] = inputs.rows if isinstance(inputs, PreparedInputs) else ()
        self._payloads: Sequence[Payload] = () if isinstance(inputs, PreparedInputs) else inputs.payloads
        self._ids = tuple(map(str, range(max_batch_size)))
        """The ids of a batch's inputs: their indices within the batch."""
        self._memory = BatchMemory(max_batch_size)

    def predict(self, requests: Sequence[_Query]) -> Predicted:
        """Predicts a batch.

        Raises:
            PredictionError: The model failed on a batch of several queries.
            SessionError: The run has ended, or the target was closed.
        """
        run, count = requests[0].run, len(requests)
        if run.finished or run.closed:
            raise SessionError(_CLOSED)
        if rows := self._rows:
            tensors = [rows[query.number % len(rows)] for query in requests]
            result = self._session.predict_tensor(self._memory.assemble(tensors))
        else:
            payloads = self._payloads
            named = zip(self._ids[:count], requests, strict=True)
            result = self._session.predict(
                [Input(place, payloads[query.number % len(payloads)]) for place, query in named]
            )
        failures = result.failures
        if len(failures) == count > 1 and all(failure.stage is Stage.PREDICT for failure in failures):
            raise PredictionError(failures[0].message)
        return Predicted(result, result.times.predict_ns, result.times.postprocess_ns)

    def split(self, requests: Sequence[_Query], outputs: BatchResult) -> BatchResult:
        """Returns the result unchanged: the queries do not need its outputs."""
        return outputs

    def answer(self, requests: Sequence[_Query], answers: BatchResult, batch: PredictedBatch) -> None:
        """Reports each query's answer (only one, unless the session misbehaves), or why there is none."""
        run, ids = requests[0].run, self._ids[: len(requests)]
        right: Sequence[_Query] = requests
        wrong: dict[_Query, str] = {}
        if answers.input_ids != ids:
            queries = dict(zip(ids, requests, strict=True))
            right = [queries[place] for place in answers.input_ids if place in queries]
            reasons = {failure.input_id: failure.message for failure in answers.failures}
            wrong = {
                queries[place]: reasons.get(place, _NO_ANSWER)
                for place in ids
                if place not in answers.input_ids
            }
        with run.settled:
            if run.finished:
                return
            answered, predict_ns, batch_size = run.answers.answered, batch.predict_ns, batch.inputs
            done_ns, begun_ns, batch_ns = batch.done_ns, batch.begun_ns, batch.batch_ns
            for query in right:
                answered(
                    query.number,
                    done_ns,
                    queue_ns=begun_ns - query.came_ns,
                    batch_ns=batch_ns,
                    predict_ns=predict_ns,
                    batch_size=batch_size,
                )
            for query, reason in wrong.items():
                run.answers.failed(query.number, done_ns, reason)
            run.settle(len(requests))

    def recover(self) -> None:
        """Does nothing: a session that has lost its instance reports failures, and recovers by itself."""

    def close(self) -> None:
        """Closes the session if it is the target's own."""
        if self._owned:
            self._session.close()
