"""Opening models: from the names in a request to a session, which several clients may share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.architectures.sources import Architectures
from inferometer.agent.artifacts.cache import ArtifactCache
from inferometer.agent.inference.predictor import PredictorWatch
from inferometer.agent.inference.preparation import Fetch
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.results import BatchResult, Infer
from inferometer.agent.inference.selection import select_model
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.preprocessing.image_decoder import MAX_PIXELS
from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.protocol.conversion import read_options
from inferometer.agent.server.rpc import CallContext
from inferometer.agent.serving.loaded_models import Lease
from inferometer.agent.serving.served_model import ServedModel
from inferometer.agent.tracing.recorder import TraceScope
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.schema import ModelManifest
from inferometer.protos.inferometer.v1 import predict_pb2


class QueuedSession(Session):
    """A client's session of a model that other clients may have open too. Thread-safe.

    Predictions through ``infer_for`` wait in the model's queue and may be batched with the requests of other
    clients. Other predictions, such as the batches of a stream, run unchanged between the batches of the
    queue. Closing the session releases the model.
    """

    def __init__(self, lease: Lease) -> None:
        shared = lease.model.session
        super().__init__(shared._predictor, shared._pipeline, shared.description)
        self._lease = lease

    @property
    def model(self) -> ServedModel:
        """The loaded model."""
        return self._lease.model

    def infer_for(
        self, call: CallContext, clock: Callable[[], int], trace: TraceScope | None = None
    ) -> Infer:
        """Returns what runs the model from a thread, on a batch that waits no longer than its call.

        ``clock`` is that of the model's deadlines, in nanoseconds. ``trace``, the call's own span, receives
        the spans of the wait and the batch.
        """
        return partial(
            self._lease.model.infer_checked,
            deadline_ns=call.deadline_ns(clock),
            is_active=call.is_active,
            trace=trace,
        )

    async def predict_tensor_async(
        self,
        batch: Tensors | NDArray[Any],
        call: CallContext,
        clock: Callable[[], int],
        trace: TraceScope | None = None,
    ) -> BatchResult:
        """Predicts a batch of preprocessed tensors, without a thread; see ``infer_for``."""
        infer = partial(
            self._lease.model.infer_async,
            deadline_ns=call.deadline_ns(clock),
            is_active=call.is_active,
            trace=trace,
        )
        return await self._pipeline.predict_tensor_async(batch, infer)

    def close(self) -> None:
        """Releases the model; further calls have no effect."""
        self._lease.release()


@dataclass(frozen=True, slots=True, eq=False)
class ModelOpener:
    """Finds and loads the models of an agent, as ``open_session`` does. Thread-safe.

    ``threads`` is the number of threads of an operator for requests that specify none; None means the
    default, which is the same for all frameworks.
    """

    catalog: Catalog
    registry: Registry
    architectures: Architectures
    cache: ArtifactCache | None
    fetch: Fetch
    max_pixels: int = MAX_PIXELS
    watch: PredictorWatch | None = None
    threads: int | None = None

    def find(self, request: predict_pb2.OpenRequest) -> tuple[ModelManifest, SessionOptions]:
        """Returns the model that a request names, and the options to open it with.

        Raises:
            UnknownModelError, UnknownFrameworkError, FrameworkUnavailableError: It cannot be run here.
            ConfigurationError: The request's options are invalid.
            ArtifactError: The request needs pretrained weights, and the model has none.
        """
        options = read_options(request)
        if options.threads is None:
            options = replace(options, threads=self.threads)
        manifest = select_model(
            self.catalog,
            self.registry,
            request.model_name,
            request.model_version or None,
            request.framework_name or None,
            options.weights,
        )
        return manifest, options

    def open(
        self, manifest: ModelManifest, options: SessionOptions, trace: TraceScope | None = None
    ) -> Session:
        """Loads a model; see ``agent.inference.session.open_session``."""
        return open_session(
            manifest,
            options,
            self.registry,
            architectures=self.architectures,
            cache=self.cache,
            fetch=self.fetch,
            max_pixels=self.max_pixels,
            watch=self.watch,
            trace=trace,
        )
