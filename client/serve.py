"""``agent serve``: models for other hosts, over gRPC."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import click

from agent.fetching import fetch_image
from agent.server.call_tracing import ServerTracing
from agent.server.models.served_models import ServingOptions
from agent.server.server import AgentServer, ServerOptions
from agent.server.server import serve as serve_until_stopped
from agent.trace_level import TraceLevel
from agent.tracing.address import TraceAddress
from agent.tracing.exporting import TraceExport
from client.command import Command, boolean
from client.evaluating.dataset_runner import CatalogDatasetRunner
from client.finite_float import FiniteFloatRange
from client.invocation import current_invocation
from client.serving.model_options import model_options
from client.serving.observing_options import ObservingOptions, observing_options, use_log_format
from client.serving.publication import Publication, publication_options
from client.serving.safety_options import SafetyOptions, safety_options
from manifests.errors import ConfigurationError

_BYTES_PER_MIB = 1024 * 1024
_LOCAL = "127.0.0.1"


@click.command(cls=Command)
@click.option("--host", default=_LOCAL, show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=50051,
    show_default=True,
    metavar="N",
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--max_message_mb",
    type=click.IntRange(1, 2047),
    default=64,
    show_default=True,
    metavar="MIB",
    help="Largest request that is accepted.",
)
@click.option(
    "--max_sessions",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    metavar="N",
    help="Open models.",
)
@click.option(
    "--session_idle_s",
    type=FiniteFloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="S",
    help="A model that nobody uses for so long is closed.",
)
@click.option(
    "--grace_s",
    type=FiniteFloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="When stopped, work so long on what was accepted.",
)
@click.option(
    "--tracer_address",
    metavar="ADDRESS",
    help="Where spans are sent of clients that send a traceparent and do not take their spans themselves.",
)
@click.option(
    "--trace_level",
    default=TraceLevel.MODEL_TRACE.name,
    show_default=True,
    metavar="LEVEL",
    help="How deep those look.",
)
@model_options
@safety_options
@observing_options
@publication_options
@boolean("--allow_private_urls", help="Fetch URL inputs from private and local addresses, too.")
def serve(
    host: str,
    port: int,
    max_message_mb: int,
    max_sessions: int,
    session_idle_s: float,
    grace_s: float,
    tracer_address: str | None,
    trace_level: str,
    allow_private_urls: bool,
    serving: ServingOptions,
    safety: SafetyOptions,
    observing: ObservingOptions,
    **publication: Any,
) -> None:
    """Serve models to other hosts over gRPC, until SIGTERM or Ctrl-C.

    A stopping agent accepts nothing more and finishes what it has accepted. Others then run
    `agent predict dataset --agent HOST:PORT`.
    """
    invocation = current_invocation()
    use_log_format(observing.log_format)
    if invocation.local and host != _LOCAL:
        raise ConfigurationError(f"--local listens on {_LOCAL} only, --host says {host}; give one of them")
    server = AgentServer(
        invocation.catalog,
        invocation.registry,
        ServerOptions(
            host=host,
            port=port,
            secret=invocation.secret,
            max_message_bytes=max_message_mb * _BYTES_PER_MIB,
            max_sessions=max_sessions,
            session_idle_s=session_idle_s,
            grace_s=grace_s,
            serving=replace(serving, predict_timeout_s=observing.predict_timeout_s),
            metrics_port=observing.metrics_port,
            metrics_host=observing.metrics_host,
            tls=safety.tls,
            insecure=safety.insecure,
            limits=safety.limits,
        ),
        dataset_runner=CatalogDatasetRunner(invocation.catalog, invocation.cache),
        architectures=invocation.architectures,
        cache=invocation.cache,
        fetch=partial(fetch_image, allow_private=allow_private_urls),
        tracing=_tracing(tracer_address or invocation.configuration.tracer.address, trace_level),
    )
    published = Publication(
        invocation, server.registry_service, server.address, secure=bool(safety.tls), **publication
    )

    def on_ready(address: str) -> None:
        click.echo(f"serving on {address}")
        if server.metrics_url:
            click.echo(f"metrics on {server.metrics_url}")
        published.start()

    serve_until_stopped(server, on_ready, published.begin_stop)
    published.stop()


def _tracing(address: str | None, level: str) -> ServerTracing:
    """What begins the traces of calls.

    Raises:
        ConfigurationError: The address or the level is none.
    """
    chosen = TraceLevel.named(level)
    return ServerTracing(TraceExport.open(TraceAddress.parse(address)) if address else None, chosen)
