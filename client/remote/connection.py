"""A gRPC connection to a server of either protocol: its channel, TLS, metadata, calls and their failures.

Failed calls are explained in one line, because gRPC's messages do not mention TLS, ports or remedies.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from inferometer.agent.closeable import Closeable
from inferometer.agent.open_inference.codec import v2_version
from inferometer.agent.protocol.pem_files import (
    CERTIFICATE_OPTION,
    KEY_OPTION,
    read_authorities,
    read_identity,
)
from inferometer.agent.protocol.status import AUTHORIZATION_KEY, bearer, one_line
from inferometer.client.remote.address import CANNOT_BE_REACHED, AgentAddress
from inferometer.evaluators.jobs.options import ANSWER_TIMEOUT_S, OPEN_TIMEOUT_S, SharedMemoryUse
from inferometer.manifests.errors import AgentError, ConfigurationError, SessionError
from inferometer.protos.inference.v2 import grpc_service_pb2 as pb

Metadata = tuple[tuple[str, str], ...]
ChannelOptions = tuple[tuple[str, int | str], ...]
_Call = TypeVar("_Call")
_Given = ParamSpec("_Given")
CONNECT_TIMEOUT_S = 10.0
_OPTIONS = (
    # The server limits what it accepts; what it answers is as large as the model's output.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the one that grpcio obeys; its default is 60 s
    # The shortest time that gRPC gives a connection attempt.
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    # Servers are reached directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
    # A connection of its own, which does not wait because another one has just failed.
    ("grpc.use_local_subchannel_pool", 1),
)
_SERVER_NAME_OPTION = "grpc.ssl_target_name_override"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The client's TLS settings for connections to agents.

    ``authorities`` of None are those of gRPC; ``server_name`` is for an agent whose certificate has another
    name than its address.

    Raises:
        ConfigurationError: There is a certificate without a key, or a key without a certificate.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            given, missing = (
                (CERTIFICATE_OPTION, KEY_OPTION) if self.certificate else (KEY_OPTION, CERTIFICATE_OPTION)
            )
            raise ConfigurationError(f"{given} is given without {missing}; an agent needs both or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            ConfigurationError: A file is missing, unreadable or not PEM, or the files do not match.
        """
        roots = read_authorities(self.authorities) if self.authorities else None
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        identity = read_identity(self.certificate, self.key)
        return grpc.ssl_channel_credentials(roots, identity.key, identity.chain)


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The options of calls to an agent or another server.

    Attributes:
        secret: The secret that the server requires, if any.
        tls: How to use TLS; None uses it only if the address requires it.
        open_timeout_s: The timeout of opening the model, in seconds; the server may load it first.
        call_timeout_s: How long the answer to one batch may take, in seconds; None waits indefinitely. A
            server that takes longer is considered lost.
        shared_memory: Whether tensors travel through shared memory, if the server supports it.
        priority: The priority of requests at a server of the Open Inference Protocol; 0 for its default.
    """

    secret: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    open_timeout_s: float = OPEN_TIMEOUT_S
    call_timeout_s: float | None = ANSWER_TIMEOUT_S
    shared_memory: SharedMemoryUse = SharedMemoryUse.AUTO
    priority: int = 0


def with_tls(address: AgentAddress, tls: ClientTls | None) -> AgentAddress:
    """Returns the address, set to use TLS if it leaves that open and ``tls`` is given."""
    return replace(address, secure=True) if address.secure is None and tls is not None else address


def open_channel(
    address: AgentAddress, tls: ClientTls | None, options: ChannelOptions, *, secret: bool = False
) -> grpc.Channel:
    """Makes a channel, which does not connect before the first call.

    Without ``tls``, TLS is used only if the address requires it, and trusts the authorities of gRPC. A
    warning is logged if the secret would go to another machine unencrypted.

    Raises:
        ConfigurationError: A TLS file cannot be used.
    """
    if with_tls(address, tls).secure:
        tls = tls or ClientTls()
        named: ChannelOptions = ((_SERVER_NAME_OPTION, tls.server_name),) if tls.server_name else ()
        return grpc.secure_channel(address.target, tls.credentials(), options=(*options, *named))
    if secret:
        warn_of_clear_secret(address)
    return grpc.insecure_channel(address.target, options=options)


def warn_of_clear_secret(address: AgentAddress, scheme: str = "grpcs") -> None:
    """Logs a warning if a secret goes to another machine unencrypted; ``scheme`` is the scheme with TLS."""
    if not address.is_this_machine:
        _log.warning(
            "INSECURE: the secret goes to %s in the clear, where others can read it; "
            "use TLS: %s://%s:%d, or --tls_ca",
            address,
            scheme,
            address.host,
            address.port,
        )


class ServerConnection(Closeable):
    """A connection to a server. Thread-safe. It does not connect before the first call.

    Errors refer to the server as ``name``. ``options`` are channel options in addition to ``_OPTIONS``.

    Raises:
        ConfigurationError: The secret cannot be sent, or a TLS file cannot be used.
    """

    def __init__(
        self,
        address: AgentAddress,
        name: str,
        options: ChannelOptions,
        secret: str | None,
        tls: ClientTls | None,
    ) -> None:
        self._name = name
        self.metadata: Metadata = ((AUTHORIZATION_KEY, bearer(secret)),) if secret is not None else ()
        """The metadata of every call."""
        self._open = partial(open_channel, address, tls, (*_OPTIONS, *options))
        self._channel = self._open(secret=secret is not None)
        self._load_channel = self._channel
        self._loaded = self._unary(self._load_channel)

    def hold(self) -> Callable[[], object]:
        """Opens a new connection for calls under load; returns a function that closes it.

        It keeps a health watch open, which makes the calls cheaper. gRPC starts a thread with the first call
        of a channel, and ends it with the last one: with few calls in flight, that is more than half of the
        cost of sending a call. While the watch is open, the thread keeps running. A server without
        ``grpc.health.v1`` ends the watch, which then has no benefit.
        """
        channel = self._connect()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        self._loaded, self._load_channel = self._unary(channel), channel

        def release() -> None:
            watch.cancel()
            channel.close()

        return release

    def _connect(self) -> grpc.Channel:
        """Returns a further channel once it is connected."""
        channel = self._open()
        with suppress(grpc.FutureTimeoutError):  # the first call says why
            grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
        return channel

    @abstractmethod
    def _unary(self, channel: grpc.Channel) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        """Returns a channel's method for predictions, whose messages are passed in encoded form."""

    def begin(self, send: Callable[_Given, _Call], *args: _Given.args, **kwargs: _Given.kwargs) -> _Call:
        """Begins a call by calling ``send``.

        Raises:
            SessionError: The connection is closed.
        """
        try:
            return send(*args, **kwargs)
        except ValueError as error:  # what gRPC raises then
            raise SessionError(f"the connection to {self._name} is closed; open another") from error

    def reply(self, call: grpc.Future[bytes]) -> bytes:
        """Returns the reply to a call, and waits for it if necessary.

        Raises:
            grpc.RpcError: The call failed.
            AgentError: The call was cancelled here.
        """
        try:
            return call.result()
        except grpc.FutureCancelledError as error:
            raise AgentError(f"{self._name}: the call was cancelled") from error

    def close(self) -> None:
        """Closes the connection and the one for calls under load; calling it again does nothing."""
        self._load_channel.close()
        self._channel.close()


_PROBE_TIMEOUT_S = 2.0
_NOT_CONNECTED = "failed to connect"
_FAILED_VERIFICATION = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<reason>[^:]+)")
_NO_HTTP2 = "Failed parsing HTTP/2"
_UNTRUSTED = (
    "no authority that is trusted here has signed its certificate; give the one that has with --tls_ca"
)
_REASONS = {
    "unable to get local issuer certificate": _UNTRUSTED,
    "self-signed certificate": "its certificate is self-signed; trust it with --tls_ca",
    "self-signed certificate in certificate chain": _UNTRUSTED,
    "certificate has expired": "its certificate has expired; renew it there",
    "certificate is not yet valid": "its certificate is not valid yet; are the clocks right?",
}


def _explain_handshake(details: str) -> str | None:
    """Explains gRPC's ``details`` of a failed handshake; returns None for any other failure."""
    if failed := _FAILED_VERIFICATION.search(details):
        reason = failed["reason"].strip()
        key = reason.casefold().replace("self signed", "self-signed")
        return _REASONS.get(key, f"its certificate is not accepted: {reason}")
    if "Hostname Verification Check failed" in details or "not in peer certificate" in details:
        return "its certificate is for another host; use a name that it has, or --tls_server_name"
    if "WRONG_VERSION_NUMBER" in details:
        return "does not speak TLS; leave out grpcs:// and the --tls options, or serve it with --tls_cert"
    if "missing selected ALPN property" in details:
        return "speaks TLS, but not gRPC; is it the right port?"
    if "andshake failed" in details:
        return f"TLS could not be agreed on: {details.rpartition('SSL routines:')[2] or details}"
    return None


def _explain_closed(agent: object, details: str) -> str | None:
    """Returns why a connection ended before its first call; None if a separate connection shows no reason."""
    if _NOT_CONNECTED not in details or not isinstance(agent, AgentAddress):
        return None
    # A server that speaks only TLS may answer plain bytes with a TLS alert, which is no HTTP/2.
    answered = not agent.secure and _NO_HTTP2 in details
    if not (answered or "closed" in details.casefold()) or not _speaks_tls(agent):
        return None
    if agent.secure:
        return (
            "requires a certificate that it trusts, but received "
            "none or another one; see --tls_cert and --tls_key"
        )
    return "speaks TLS only; use grpcs://, or --tls_ca with the authority that signed its certificate"


def _speaks_tls(address: AgentAddress) -> bool:
    """Returns whether a server speaks TLS; its certificate is not checked, and nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host = address.host.strip("[]")
    try:
        with (
            socket.create_connection((host, address.port), _PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Hints:
    """The explanations of failures in one protocol.

    Attributes:
        refused: What to check if nobody listens at the address.
        no_grpc: The explanation if the server does not speak gRPC.
        unauthenticated: What to do if the server requires a secret; ``{}`` is its message.
        unimplemented: The explanation if a method is missing; ``{}`` is gRPC's message.
        crashed: What may have crashed.
        secure_scheme: The scheme of addresses with TLS.
        unreached: The beginning of the message about a server that cannot be connected to.
    """

    refused: str
    no_grpc: str
    unauthenticated: str
    unimplemented: str
    crashed: str
    secure_scheme: str = "grpcs:"
    unreached: str = CANNOT_BE_REACHED


def explain(code: grpc.StatusCode, details: str, server: object, hints: Hints) -> str:
    """Explains the status of a failed call.

    ``details`` is the message of gRPC or the server. A server with an ``AgentAddress`` may be contacted to
    find out more.
    """
    details = one_line(details)
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            about_tls = _explain_handshake(details) or _explain_closed(server, details)
            if about_tls:
                return about_tls.replace("grpcs:", hints.secure_scheme)
            lowered = details.casefold()
            for signs, text in _UNAVAILABLE.items():
                if any(sign in lowered for sign in signs):
                    return text.format(hints=hints)
            return f"is not available: {details}"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "did not answer in time"
        case grpc.StatusCode.CANCELLED:
            return "cancelled the call"
        case grpc.StatusCode.UNAUTHENTICATED:
            return hints.unauthenticated.format(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return hints.unimplemented.format(details or "unimplemented")
    return f"{code.name.lower().replace('_', ' ')}: {details}"


_UNAVAILABLE = {
    ("connection refused",): "{hints.unreached} connection refused; {hints.refused}",
    ("http1", "http/2"): "{hints.no_grpc}",
    ("dns", "name resolution", "domain name"): "{hints.unreached} the host's name is not known",
    ("timed out", "timeout", "unreachable"): "{hints.unreached} no connection within the time allowed",
    ("shutting down", "goaway", "cancelling all calls"): "is stopping, and did not finish the call",
    ("reset", "closed", "broken pipe"): "the connection was lost; {hints.crashed} was stopped or has crashed",
}
"""Explanations of gRPC's details about an unavailable server, by substring; the first match applies."""
_TOTALS = {
    "success_ns": "success",
    "queue_ns": "queue",
    "input_ns": "compute_input",
    "infer_ns": "compute_infer",
    "output_ns": "compute_output",
}
"""The fields of ``InferStatistics`` with the total times of figures."""


def statistics_method(channel: grpc.Channel) -> Callable[..., pb.ModelStatisticsResponse]:
    """Returns the method that reads the statistics of all models; its request is empty."""
    encode, decode = pb.ModelStatisticsRequest.SerializeToString, pb.ModelStatisticsResponse.FromString
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    method = channel.unary_unary(f"/{service}/ModelStatistics", encode, decode)
    return partial(method, pb.ModelStatisticsRequest())


def statistics_of(
    response: pb.ModelStatisticsResponse, where: str, *names: str, version: str | None = None
) -> Mapping[str, float]:
    """Returns the statistics of a model as figures of ``evaluators.load.server_statistics``.

    With the ``version`` of a manifest, they are those of the model of one of the ``names``; otherwise the
    sums over all of the response. ``where`` names the server in errors.

    Raises:
        AgentError: There are none.
    """
    found = Counter[str]()
    for model in response.model_stats:
        if version is not None and not (model.name in names and model.version == v2_version(version)):
            continue
        stats = model.inference_stats
        found.update({figure: getattr(stats, name).ns for figure, name in _TOTALS.items()})
        found.update(inferences=model.inference_count, executions=model.execution_count)
        found.update(requests=stats.success.count)
    if not found:
        raise AgentError(f"{where}: has no statistics of {names[0]}")
    return found
