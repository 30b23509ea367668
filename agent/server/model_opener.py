"""Opening the model that a request names: from names to a manifest to a session."""

from __future__ import annotations

from collections.abc import Callable

from agent.artifact_cache import ArtifactCache
from agent.image_fit import MAX_PIXELS
from agent.models.sources import Architectures
from agent.predictor_watch import PredictorWatch
from agent.preparation import Fetch
from agent.registry import Registry
from agent.selection import select_model
from agent.server.conversion import read_options
from agent.session import UNWATCHED, Session, SessionOptions, open_session
from agent.tracing.scope import TraceScope
from manifests.catalog import Catalog
from manifests.schema import ModelManifest
from protos.inferscope.v1 import predict_pb2


class ModelOpener:
    """Finds and loads the models of an agent. Thread-safe.

    Args:
        catalog: The models.
        registry: The frameworks.
        architectures: What models that are built in code may name.
        cache: Gets the models' files that are at URLs; with None, all are on this machine.
        fetch: Gets what a URL of an input names.
        max_pixels: The largest image that is decoded.
        watch: Watches their predictions.
    """

    def __init__(
        self,
        catalog: Catalog,
        registry: Registry,
        architectures: Architectures,
        cache: ArtifactCache | None,
        fetch: Fetch,
        max_pixels: int = MAX_PIXELS,
        watch: PredictorWatch = UNWATCHED,
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._architectures = architectures
        self._cache = cache
        self._fetch = fetch
        self._max_pixels = max_pixels
        self._watch = watch

    def __call__(
        self, request: predict_pb2.OpenRequest, trace: TraceScope | None = None
    ) -> Callable[[], Session]:
        """Finds what a request names, and returns what loads it.

        Args:
            request: What the client asks for.
            trace: Where the span of the loading goes; None records none.

        Raises:
            InferscopeError: See ``find``.
        """
        manifest, options = self.find(request)
        return lambda: self.open(manifest, options, trace)

    def find(self, request: predict_pb2.OpenRequest) -> tuple[ModelManifest, SessionOptions]:
        """Finds what a request names, and what it is to be opened with.

        Raises:
            UnknownModelError, UnknownFrameworkError, FrameworkUnavailableError: It cannot be run here.
            ConfigurationError: The request's options make no sense.
            ArtifactError: Pretrained weights are wanted, and it has none.
        """
        options = read_options(request)
        manifest = select_model(
            self._catalog,
            self._registry,
            request.model_name,
            request.model_version or None,
            request.framework_name or None,
            options.weights,
        )
        return manifest, options

    def open(
        self, manifest: ModelManifest, options: SessionOptions, trace: TraceScope | None = None
    ) -> Session:
        """Loads a model; see ``agent.session.open_session``."""
        return open_session(
            manifest,
            options,
            self._registry,
            architectures=self._architectures,
            cache=self._cache,
            fetch=self._fetch,
            max_pixels=self._max_pixels,
            watch=self._watch,
            trace=trace,
        )
