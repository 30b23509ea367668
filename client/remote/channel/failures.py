"""Explains failed calls in one line, because gRPC's messages do not mention TLS, ports or remedies."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass

import grpc

from inferometer.client.remote.channel.address import CANNOT_BE_REACHED, AgentAddress

_PROBE_TIMEOUT_S = 2.0
_NOT_CONNECTED = "failed to connect"
_FAILED_VERIFICATION = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<reason>[^:]+)")
_NO_HTTP2 = "Failed parsing HTTP/2"
_UNTRUSTED = (
    "no authority that is trusted here has signed its certificate; give the one that has with --tls_ca"
)
_REASONS = {
    "unable to get local issuer certificate": _UNTRUSTED,
    "self signed certificate": "its certificate is self-signed; trust it with --tls_ca",
    "self-signed certificate": "its certificate is self-signed; trust it with --tls_ca",
    "self signed certificate in certificate chain": _UNTRUSTED,
    "self-signed certificate in certificate chain": _UNTRUSTED,
    "certificate has expired": "its certificate has expired; renew it there",
    "certificate is not yet valid": "its certificate is not valid yet; are the clocks right?",
}


def _explain_handshake(details: str) -> str | None:
    """Explains gRPC's ``details`` of a failed handshake; returns None for any other failure."""
    if failed := _FAILED_VERIFICATION.search(details):
        reason = failed["reason"].strip()
        return _REASONS.get(reason.casefold(), f"its certificate is not accepted: {reason}")
    if "Hostname Verification Check failed" in details or "not in peer certificate" in details:
        return "its certificate is for another host; use a name that it has, or --tls_server_name"
    if "WRONG_VERSION_NUMBER" in details:
        return "speaks no TLS; leave out grpcs:// and the --tls options, or serve it with --tls_cert"
    if "missing selected ALPN property" in details:
        return "speaks TLS, but no gRPC; is it the right port?"
    if "andshake failed" in details:
        return f"TLS could not be agreed on: {details.rpartition('SSL routines:')[2] or details}"
    return None


def _explain_closed(agent: object, details: str) -> str | None:
    """Returns why a connection ended before its first call, or None; makes a connection of its own."""
    if _NOT_CONNECTED not in details or not isinstance(agent, AgentAddress):
        return None
    # A server that speaks only TLS may answer plain bytes with a TLS alert, which is no HTTP/2.
    answered = not agent.secure and _NO_HTTP2 in details
    if not (answered or "closed" in details.casefold()) or not _speaks_tls(agent):
        return None
    if agent.secure:
        return (
            "requires a certificate that it trusts, and received "
            "none or another; see --tls_cert and --tls_key"
        )
    return "speaks TLS only; use grpcs://, or --tls_ca with who vouches for it"


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
        refused: What to check if nobody listens.
        no_grpc: What it means that the server speaks no gRPC.
        unauthenticated: What to do if the server requires a secret; ``{}`` is what it says.
        unimplemented: What it means that a method is missing; ``{}`` is what gRPC says.
        crashed: Who may have crashed.
        secure_scheme: The scheme of addresses with TLS.
        unreached: What the message about a server that cannot be connected to begins with.
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

    ``details`` is what gRPC, or the server, says. A server with an ``AgentAddress`` may be contacted to find
    out more.
    """
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            about_tls = _explain_handshake(details) or _explain_closed(server, details)
            if about_tls:
                return about_tls.replace("grpcs:", hints.secure_scheme)
            return _explain_unavailable(details, hints)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "did not answer in time"
        case grpc.StatusCode.CANCELLED:
            return "cancelled the call"
        case grpc.StatusCode.UNAUTHENTICATED:
            return hints.unauthenticated.format(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return hints.unimplemented.format(details or "unimplemented")
    return f"{code.name.lower().replace('_', ' ')}: {details}"


def _explain_unavailable(details: str, hints: Hints) -> str:
    lowered = details.casefold()
    for signs, text in _UNAVAILABLE.items():
        if any(sign in lowered for sign in signs):
            return text.format(hints=hints)
    return f"is not available: {details}"


_UNAVAILABLE = {
    ("connection refused",): "{hints.unreached} connection refused; {hints.refused}",
    ("http1", "http/2"): "{hints.no_grpc}",
    ("dns", "name resolution", "domain name"): "{hints.unreached} the host's name is not known",
    ("timed out", "timeout", "unreachable"): "{hints.unreached} no connection within the time allowed",
    ("shutting down", "goaway", "cancelling all calls"): "is stopping, and did not finish the call",
    ("reset", "closed", "broken pipe"): "the connection was lost; {hints.crashed} was stopped or has crashed",
}
"""Explanations of gRPC's details of an unavailable server, by substring; the first match applies."""
