"""The commands that serve until they are stopped: ``agent serve`` an agent, ``agent web`` the page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from inferometer.agent.child_process import ChildProcess, start_child
from inferometer.agent.hardware.environment import bound_to, pinned_processors, usable_cores
from inferometer.agent.server.native.call_tracing import ServerTracing, agent_resource
from inferometer.agent.server.native.registry_service import RegistryService
from inferometer.agent.server.server import AgentServer, Group, ServerOptions
from inferometer.agent.server.server import serve as serve_until_stopped
from inferometer.agent.server.tls import ServerTls
from inferometer.agent.server.workers import Workers, run_worker
from inferometer.agent.tracing.exporting import TraceAddress, TraceExport
from inferometer.agent.tracing.recorder import TraceLevel
from inferometer.client.api.configuration import MAX_WORKERS
from inferometer.client.api.invocation import Invocation
from inferometer.client.cli.command import (
    COUNT,
    NOT_NEGATIVE,
    PORT,
    Command,
    FiniteFloatRange,
    boolean,
    current_invocation,
    database_options,
    option,
)
from inferometer.client.cli.command import options as grouped
from inferometer.client.serving.agent import INTERVAL_S, make_agent, make_heartbeat
from inferometer.client.serving.options import (
    model_options,
    safety_options,
    server_tls_options,
    take_safety,
    take_serving,
    telemetry_options,
    use_log_format,
)
from inferometer.manifests.errors import ConfigurationError

_BYTES_PER_MIB = 1024 * 1024
_LOCAL = "127.0.0.1"
_publication_options = grouped(
    database_options,
    option(
        "--advertise",
        metavar="ADDRESS",
        help="Publish this agent in the database so that others find it, as HOST:PORT, as HOST, or as auto; "
        "none does not.  [default: auto where a database is given or configured]",
    ),
    option(
        "--heartbeat_s",
        type=FiniteFloatRange(min=0.1),
        default=INTERVAL_S,
        metavar="S",
        help="Interval of the heartbeat; the agent expires after three missed ones.",
    ),
    heading="Registry",
)


@click.command(cls=Command)
@option("--host", default=_LOCAL, metavar="ADDRESS", help="Address to listen on.")
@option("--port", type=PORT, default=50051, metavar="N", help="Port to listen on; 0 chooses a free port.")
@option(
    "--http_port",
    type=PORT,
    metavar="N",
    help="Port for the Open Inference Protocol over HTTP; 0 chooses a free port.  [default: none]",
)
@option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    metavar="N",
    help="Number of processes that serve the ports, each with its own copy of every model.  [default: 1]",
)
@option(
    "--max_message_mb",
    type=click.IntRange(1, 2047),
    default=64,
    metavar="MIB",
    help="Maximum size of a request.",
)
@option("--max_sessions", type=COUNT, default=16, metavar="N", help="Maximum number of open models.")
@option(
    "--session_idle_s",
    type=FiniteFloatRange(min=1),
    default=600.0,
    metavar="S",
    help="Close models that are idle for this long.",
)
@option(
    "--grace_s",
    type=NOT_NEGATIVE,
    default=30.0,
    metavar="S",
    help="When stopped, finish accepted calls within this time.",
)
@option(
    "--drain_s",
    type=NOT_NEGATIVE,
    default=1.0,
    metavar="S",
    help="When stopped in use, report NOT_SERVING for this long before refusing calls.",
)
@option(
    "--tracer_address",
    metavar="ADDRESS",
    help="Collector for the spans of clients that send a traceparent but do not collect spans themselves.",
)
@option(
    "--trace_level",
    default=TraceLevel.MODEL_TRACE.name,
    metavar="LEVEL",
    help="Trace level of calls with a traceparent.",
)
@model_options
@safety_options
@telemetry_options
@_publication_options
@boolean(
    "--shared_memory",
    help="Let clients of the Open Inference Protocol on this host, run by the same user, pass tensors in "
    "shared memory.",
)
@boolean("--allow_private_urls", help="Also fetch URL inputs from private and local addresses.")
def serve(
    host: str,
    workers: int | None,
    tracer_address: str | None,
    trace_level: str,
    allow_private_urls: bool,
    predict_timeout_s: float,
    log_format: str,
    advertise: str | None,
    heartbeat_s: float,
    **given: Any,
) -> None:
    """Serve models to other hosts over gRPC, until SIGTERM or Ctrl-C.

    Clients run `agent predict dataset --agent HOST:PORT`. A stopping agent accepts no new calls and finishes
    those that it has accepted.
    """
    invocation = current_invocation()
    if given["allowed_hosts"] is not None and given["http_port"] is None:
        raise ConfigurationError("--allowed_hosts requires --http_port; give both")
    workers = workers or invocation.configuration.serving.workers or 1
    serving, safety = take_serving(given, invocation, workers), take_safety(given, invocation)
    if given["metrics_port"] is None and given["metrics_host"] != _LOCAL:
        raise ConfigurationError("--metrics_host requires --metrics_port; give both")
    use_log_format(log_format)
    if invocation.local and host != _LOCAL:
        raise ConfigurationError(f"--local listens only on {_LOCAL}, but --host is {host}; give one of them")
    level = TraceLevel.named(trace_level)
    collector = tracer_address or invocation.configuration.tracer.address
    options = ServerOptions(
        host=host,
        secret=invocation.secret,
        max_message_bytes=given.pop("max_message_mb") * _BYTES_PER_MIB,
        serving=replace(serving, predict_timeout_s=predict_timeout_s or None),
        **safety,
        **given,
    )
    make = partial(_make_agent, invocation, allow_private_urls, collector, level, log_format)
    server: AgentServer | Workers
    if workers == 1:
        server = make(options)
        agent = server.registry_service
    else:
        run = partial(run_worker, make)
        pin = serving.batching.pin
        places = pinned_processors(workers, usable_cores() // workers) if pin else ((),) * workers

        def begin(number: int, each: ServerOptions) -> ChildProcess:
            with bound_to(places[number - 1]):
                return start_child(f"worker {number}", run, each, daemon=False)

        server = Workers(options, workers, begin)
        agent = RegistryService(invocation.catalog, invocation.registry, server.load)
        agent.http_port = server.http_port
    secure = bool(safety["tls"])
    heartbeat = make_heartbeat(invocation, agent, server.address, secure, advertise, heartbeat_s)

    def on_ready(address: str) -> None:
        click.echo(f"serving on {address}")
        if server.http_url:
            click.echo(f"http on {server.http_url}")
        if server.metrics_url:
            click.echo(f"metrics on {server.metrics_url}")
        if heartbeat:
            heartbeat.start()

    serve_until_stopped(server, on_ready, heartbeat.begin_stop if heartbeat else lambda: None)
    if heartbeat:
        heartbeat.stop()


def _make_agent(
    invocation: Invocation,
    allow_private_urls: bool,
    collector: str | None,
    level: TraceLevel,
    log_format: str,
    options: ServerOptions,
    group: Group | None = None,
) -> AgentServer:
    use_log_format(log_format)  # of the process
    resource = agent_resource()
    export = TraceExport.open(TraceAddress.parse(collector), resource) if collector else None
    tracing = ServerTracing(export, level, resource)
    return make_agent(
        invocation, options, allow_private_urls=allow_private_urls, tracing=tracing, group=group
    )


@click.command(cls=Command)
@option("--host", default=_LOCAL, metavar="ADDRESS", help="Address to listen on.")
@option("--port", type=PORT, default=8051, metavar="N", help="Port to listen on; 0 chooses a free port.")
@server_tls_options
@boolean(
    "--insecure",
    help="Allow a page that others can reach to run without TLS or a secret: anyone can read it.",
)
@database_options
def web(
    host: str, port: int, tls_cert: Path | None, tls_key: Path | None, tls_ca: Path | None, insecure: bool
) -> None:
    """Serve the evaluations as a page, live, until SIGTERM or Ctrl-C.

    New evaluations appear as they are published, and running ones show their progress. The page changes
    nothing. With --secret or --secret_file, a browser asks for it, as the password of any user.
    """
    invocation = current_invocation()
    if invocation.local and host != _LOCAL:
        raise ConfigurationError(f"--local listens only on {_LOCAL}, but --host is {host}; give one of them")
    try:
        from inferometer.client.web.server import PageOptions, serve_page
    except ImportError as error:
        raise ConfigurationError(
            f'the page requires {error.name}, which is not installed; pip install "inferometer[web]", or '
            "write it to a file: agent report -o report.html"
        ) from error
    options = PageOptions(
        host=host,
        port=port,
        secret=invocation.secret,
        tls=ServerTls.of(tls_cert, tls_key, tls_ca),
        insecure=insecure,
        data_directory=invocation.data_directory,
    )
    serve_page(options, invocation.open_store, lambda url: click.echo(f"page on {url}"))
