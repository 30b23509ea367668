"""Assembles a served agent from the configuration and the server's options."""

from __future__ import annotations

from functools import partial

from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.api.invocation import Invocation
from inferometer.client.serving.dataset_runner import run_dataset


def make_agent(
    invocation: Invocation,
    options: ServerOptions,
    *,
    allow_private_urls: bool = False,
    tracing: ServerTracing | None = None,
) -> AgentServer:
    """Returns an agent that is bound to its address but not started.

    Args:
        invocation: Has the manifests, the frameworks and the cache.
        options: How it is served.
        allow_private_urls: Whether inputs at private and local addresses are fetched too.
        tracing: Begins the traces of calls; None exports none.

    Raises:
        ConfigurationError: The address cannot be bound, or the options are not safe; see ``AgentServer``.
        UnknownModelError: A version policy is for a model that does not exist.
    """
    for name in options.serving.versions.by_model:
        invocation.catalog.find_models(name)
    return AgentServer(
        invocation.catalog,
        invocation.registry,
        options,
        dataset_runner=partial(run_dataset, invocation.catalog, invocation.cache),
        architectures=invocation.architectures,
        cache=invocation.cache,
        fetch=partial(fetch_image, allow_private=allow_private_urls),
        tracing=tracing,
    )
