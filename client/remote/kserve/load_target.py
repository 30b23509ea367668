"""The target of a server of the Open Inference Protocol: its model under load, with many calls in flight."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc

from agent.environment import usable_cores
from agent.input_types import preprocessor_of
from agent.inputs import Payload
from agent.session import MAX_PREPROCESS_THREADS
from client.remote.call_target import CallFlight, CallTarget, Outcome
from client.remote.kserve.session import KServeSession
from evaluators.loadgen.prepared_inputs import LoadInputs, PreparedInputs
from manifests.errors import InferscopeError, InputError


class KServeTarget(CallTarget):
    """A model of a server under load; satisfies ``evaluators.loadgen.target.LoadTarget``.

    Each query is a ``ModelInfer`` of its own, of one input. Requests of inputs that are preprocessed are
    encoded when the target is made. Inputs that are only read are preprocessed by threads here, which counts
    to the latency. An answer is right where it is one prediction, as the manifest describes it; reading it is
    not in the latency. The session stays its owner's.

    Args:
        session: The open model.
        inputs: Query n predicts input n modulo their number.
        max_in_flight: See ``CallTarget``.
        clock: The clock of the run, in nanoseconds.

    Raises:
        ConfigurationError: ``max_in_flight`` is too small, or the server takes no single input.
    """

    def __init__(
        self,
        session: KServeSession,
        inputs: LoadInputs,
        *,
        max_in_flight: int | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._predictor = session.predictor
        self._postprocessor = session.postprocessor
        self._predictor.check_batch(1)
        parameters = session.description.manifest.inputs[0].parameters
        self._preprocessor = preprocessor_of(parameters)
        self._requests: list[bytes] = []
        self._payloads: tuple[Payload, ...] = ()
        self._pool: ThreadPoolExecutor | None = None
        if isinstance(inputs, PreparedInputs):
            tensors, encode = inputs.tensors, self._predictor.form.encode
            self._requests = [encode(tensors[n : n + 1]) for n in range(len(tensors))]
        else:
            self._payloads = inputs.payloads
            threads = min(usable_cores(), MAX_PREPROCESS_THREADS)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="preprocess-query")
        size = self._preprocessor.tensor_bytes
        hold = self._predictor.connection.hold
        super().__init__(session.description, size, hold, max_in_flight=max_in_flight, clock=clock)

    def send(self, query: int, run: CallFlight) -> None:
        """Sends a query, or has it preprocessed and sent; see ``CallTarget``."""
        if self._pool is None:
            run.send(query, self._requests[query % len(self._requests)], self._begin)
            return
        run.announce(query)
        self._pool.submit(self._preprocess_and_send, query, run)

    def outcome(self, call: grpc.Future[bytes]) -> Outcome:
        """Reads a reply; see ``CallTarget``."""
        try:
            reply = self._predictor.read(self._predictor.connection.end_infer(call))
            _, usable = self._postprocessor(reply.outputs, 1)
        except InferscopeError as error:
            return Outcome(0, str(error))
        if not usable.all():
            return Outcome(0, "the model's output is not a finite number")
        times = reply.times
        return Outcome(1, "", times.predict_ns, times.queue_ns, times.batch_size, times.batch_ns)

    def close(self) -> None:
        """Cancels what is in flight, which has failed then; calling it again does nothing."""
        super().close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _preprocess_and_send(self, query: int, run: CallFlight) -> None:
        if not run.wants(query):
            return
        try:
            tensor = self._preprocessor(self._payloads[query % len(self._payloads)])
        except InputError as error:
            run.fail(query, str(error))
            return
        if run.wants(query):
            run.send(query, self._predictor.form.encode(tensor[None]), self._begin)

    @property
    def _begin(self) -> Callable[[bytes], grpc.Future[bytes]]:
        return partial(self._predictor.connection.begin_infer, timeout_s=self._predictor.timeout_s)
