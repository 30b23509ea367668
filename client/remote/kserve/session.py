"""The session: a model on a server of the Open Inference Protocol, with everything around it done here."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from agent.description import SystemDescription
from agent.inputs import Input
from agent.pipeline import Pipeline
from agent.postprocessing import Postprocessor
from agent.results import BatchResult, Infer
from agent.server.call_tracing import TRACEPARENT_KEY
from agent.session import Session
from agent.trace_level import TraceLevel
from agent.tracing.scope import TraceScope
from client.remote.kserve.predictor import KServePredictor


class KServeSession(Session):
    """A model of a server; see ``agent.session.Session``. What is read and preprocessed is so here.

    Made by ``client.remote.kserve.opening.open_kserve``.

    Args:
        predictor: Sends batches.
        pipeline: Prepares them, and reads the outputs.
        postprocessor: Reads the outputs of a query under load.
        description: The model and the server.
    """

    def __init__(
        self,
        predictor: KServePredictor,
        pipeline: Pipeline,
        postprocessor: Postprocessor,
        description: SystemDescription,
    ) -> None:
        super().__init__(predictor, pipeline, description)
        self.predictor = predictor
        self.postprocessor = postprocessor

    def predict_tensor(
        self, batch: NDArray[Any], trace: TraceScope | None = None, infer: Infer | None = None
    ) -> BatchResult:
        """Predicts a batch that is one preprocessed tensor; see ``Pipeline.predict_tensor``."""
        with self._told_of(trace):
            return super().predict_tensor(batch, trace, infer)

    def predict_batches(
        self, batches: Iterable[Sequence[Input]], trace: TraceScope | None = None
    ) -> Iterator[BatchResult]:
        """Predicts batch after batch; see ``Pipeline.predict_batches``. The server is told of the trace."""
        return self._within(trace, super().predict_batches(batches, trace))

    def close(self) -> None:
        """Closes the connection; the model stays at the server. Calling it again does nothing."""
        super().close()
        self.predictor.connection.close()

    def _within(
        self, trace: TraceScope | None, results: Iterator[BatchResult]
    ) -> Generator[BatchResult, None, None]:
        with self._told_of(trace):
            try:
                yield from results
            finally:
                if isinstance(results, Generator):
                    results.close()

    @contextmanager
    def _sampled(self, trace: TraceScope) -> Iterator[None]:
        """Samples no hardware: the model does not run on this machine."""
        if trace.recorder.wants(TraceLevel.HARDWARE_TRACE):
            trace.recorder.note("no hardware samples: the model runs on a server")
        yield

    @contextmanager
    def _told_of(self, trace: TraceScope | None) -> Iterator[None]:
        """Sends the place in the trace with each request."""
        if trace is not None:
            self.predictor.metadata = ((TRACEPARENT_KEY, trace.context.traceparent),)
        try:
            yield
        finally:
            self.predictor.metadata = ()
