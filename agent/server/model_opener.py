"""Opening the model that a request names: from names to a manifest to a session."""

from __future__ import annotations

from collections.abc import Callable

from agent.artifact_cache import ArtifactCache
from agent.models.sources import Architectures
from agent.preparation import Fetch
from agent.registry import Registry
from agent.selection import select_model
from agent.server.conversion import read_options
from agent.session import Session, open_session
from agent.tracing.scope import TraceScope
from manifests.catalog import Catalog
from protos.inferscope.v1 import predict_pb2


class ModelOpener:
    """Finds and loads the models of an agent. Thread-safe.

    Args:
        catalog: The models.
        registry: The frameworks.
        architectures: What models that are built in code may name.
        cache: Gets the models' files that are at URLs; with None, all are on this machine.
        fetch: Gets what a URL of an input names.
    """

    def __init__(
        self,
        catalog: Catalog,
        registry: Registry,
        architectures: Architectures,
        cache: ArtifactCache | None,
        fetch: Fetch,
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._architectures = architectures
        self._cache = cache
        self._fetch = fetch

    def __call__(
        self, request: predict_pb2.OpenRequest, trace: TraceScope | None = None
    ) -> Callable[[], Session]:
        """Finds what a request names, and returns what loads it.

        Args:
            request: What the client asks for.
            trace: Where the span of the loading goes; None records none.

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
        return lambda: open_session(
            manifest,
            options,
            self._registry,
            architectures=self._architectures,
            cache=self._cache,
            fetch=self._fetch,
            trace=trace,
        )
