"""The function that serves models from this Python process, and the agent that it returns."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferometer.agent.closeable import Closeable
from inferometer.client.api.invocation import Invocation, library_invocation
from inferometer.evaluators.jobs.options import COUNT, NOT_NEGATIVE, Range, check_number, values_of
from inferometer.evaluators.jobs.request import SystemOptions
from inferometer.manifests.errors import InferometerError

if TYPE_CHECKING:
    from inferometer.agent.inference.session import SessionOptions
    from inferometer.agent.server.server import AgentServer
    from inferometer.client.serving.agent import Heartbeat

_LOCAL = "127.0.0.1"
_log = logging.getLogger(__name__)
_PORT = Range(0, 65_535)
_RANGES = {
    "port": _PORT,
    "metrics_port": _PORT,
    "http_port": _PORT,
    "grace_s": NOT_NEGATIVE,
    "max_batch_size": COUNT,
    "max_queue_delay_ms": NOT_NEGATIVE,
    "max_queue": COUNT,
    "instances": COUNT,
}


class ServedAgent(Closeable):
    """An agent in this process, which serves models until it is closed.

    ``with im.serve() as agent`` closes it at the end, as does the end of the program. Thread-safe.
    """

    def __init__(self, server: AgentServer, heartbeat: Heartbeat | None) -> None:
        self._server: AgentServer | None = server
        self._heartbeat = heartbeat
        self.address = server.address
        """The agent's address, as ``host:port``; pass it as ``agent=`` to the other functions."""
        self.metrics_url = server.metrics_url
        """The URL of the metrics for Prometheus; None if they are not served."""
        self.http_url = server.http_url
        """The URL of the Open Inference Protocol over HTTP; None if it is not served."""
        atexit.register(self.close)

    def close(self) -> None:
        """Rejects new calls, finishes accepted ones, and stops; calling it again does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        atexit.unregister(self.close)
        if self._heartbeat is not None:
            self._heartbeat.begin_stop()
        if not server.stop():
            _log.warning("agent %s was closed; the predictions under way continue", self.address)
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def __repr__(self) -> str:
        return f"<agent {'closed' if self._server is None else f'serving on {self.address}'}>"


def serve(
    *,
    host: str = _LOCAL,
    port: int = 0,
    secret: str | None = None,
    gpu: bool = False,
    threads: int | None = None,
    weights: str = "pretrained",
    seed: int = 0,
    max_batch_size: int | None = None,
    max_queue_delay_ms: float | None = None,
    max_queue: int | None = None,
    instances: int | None = None,
    pin: bool | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    advertise: str | None = None,
    metrics_port: int | None = None,
    http_port: int | None = None,
    allowed_hosts: Sequence[str] | None = None,
    grace_s: float = 30.0,
) -> ServedAgent:
    """Serves the models of this machine over gRPC in threads of this process, like ``agent serve``.

    Args:
        host: The address to listen on.
        port: The port; 0 chooses a free one.
        secret: The secret that clients must send; None means the configured one, if any.
        gpu: Whether models run on the GPU if a client names no device.
        threads: CPU threads per operator if a client specifies no number.
        weights: The weights of models that no client has loaded differently: ``pretrained`` or ``random``.
        seed: The seed of random weights.
        max_batch_size: The maximum number of inputs in a batch of several requests; 1 disables batching.
        max_queue_delay_ms: How long the first request of a batch waits for others.
        max_queue: The maximum number of requests that wait for a model.
        instances: How many instances of each model predict batches at the same time.
        pin: Whether each instance is bound to cores of its own, as many as it has threads.
        models: The settings of single models by name, instead of ``serving.models`` of the configuration.
        tls_cert: A certificate; enables TLS.
        tls_key: The key of the certificate.
        tls_ca: The authorities that must have signed the certificates of clients.
        insecure: Whether others may reach the agent without TLS or a secret.
        advertise: ``host:port`` or ``auto`` publishes the agent in the database, ``none`` does not; None
            publishes it if the configuration names a database.
        metrics_port: A port for Prometheus; 0 chooses a free one, None serves no metrics.
        http_port: A port for the Open Inference Protocol over HTTP; 0 chooses a free one, None serves none.
        allowed_hosts: The accepted names in ``Host`` over HTTP, besides IP addresses and ``localhost``; ``*``
            allows every name. None allows every name or, on a loopback address without a secret, no others.
        grace_s: How long closing waits for accepted calls.

    Raises:
        ConfigurationError: A value is invalid, the address is taken, or others could reach an unsafe agent.
        UnknownModelError: ``models`` names a model that does not exist.
    """
    given: dict[str, Any] = {
        "max_batch_size": max_batch_size,
        "max_queue_delay_ms": max_queue_delay_ms,
        "max_queue": max_queue,
        "instances": instances,
        "pin": pin,
        "models": models,
        "tls_cert": None if tls_cert is None else Path(tls_cert),
        "tls_key": None if tls_key is None else Path(tls_key),
        "tls_ca": None if tls_ca is None else Path(tls_ca),
        "insecure": insecure or None,
        "allowed_hosts": None if allowed_hosts is None else tuple(allowed_hosts),
    }
    bound: dict[str, Any] = {"host": host, "port": port, "metrics_port": metrics_port}
    bound |= {"http_port": http_port, "grace_s": grace_s}
    for name, allowed in _RANGES.items():
        check_number(name, (given | bound)[name], allowed)
    chosen = {"weights": weights, "seed": seed, "gpu": gpu, "threads": threads}
    session = SystemOptions(**values_of(SystemOptions, chosen)).session()
    invocation = library_invocation(secret=secret)
    # gRPC makes an event loop of its own, which a thread that runs one already, as a notebook's, refuses
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_started, invocation, session, given, bound, advertise).result()


def _started(
    invocation: Invocation,
    session: SessionOptions,
    given: dict[str, Any],
    bound: dict[str, Any],
    advertise: str | None,
) -> ServedAgent:
    """Returns a started agent. gRPC is imported only here."""
    from inferometer.agent.server.server import ServerOptions
    from inferometer.client.serving.agent import INTERVAL_S, make_agent, make_heartbeat
    from inferometer.client.serving.options import BATCHING, chosen_safety, serving_options

    configured = invocation.configuration.serving
    if given["models"] is not None:
        configured = configured.with_models(given["models"])
    safety = chosen_safety(given, configured)
    options = ServerOptions(
        secret=invocation.secret,
        serving=serving_options({name: given.get(name) for name in BATCHING}, configured, session),
        **safety,
        **bound,
    )
    server = make_agent(invocation, options)
    try:
        heartbeat = make_heartbeat(
            invocation,
            server.registry_service,
            server.address,
            safety["tls"] is not None,
            advertise,
            INTERVAL_S,
        )
    except InferometerError:
        server.stop()
        raise
    server.start()
    if heartbeat is not None:
        heartbeat.start()
    return ServedAgent(server, heartbeat)
