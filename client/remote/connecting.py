"""Why a connection to an agent did not come about, where gRPC does not say it in words of the user's."""

from __future__ import annotations

import re
import socket
import ssl

from client.remote.address import AgentAddress

_PROBE_TIMEOUT_S = 2.0
_NOT_CONNECTED = "failed to connect"
_FAILED_VERIFICATION = re.compile(r"CERTIFICATE_VERIFY_FAILED: (?P<reason>[^:]+)")
_NO_HTTP2 = "Failed parsing HTTP/2"
_NOBODY = "nobody whom this side trusts vouches for its certificate; name who does with --tls_ca"
_REASONS = {
    "unable to get local issuer certificate": _NOBODY,
    "self signed certificate": "its certificate is self-signed; trust it with --tls_ca",
    "self-signed certificate": "its certificate is self-signed; trust it with --tls_ca",
    "self signed certificate in certificate chain": _NOBODY,
    "certificate has expired": "its certificate has expired; renew it there",
    "certificate is not yet valid": "its certificate is not valid yet; are the clocks right?",
}


def explain_handshake(details: str) -> str | None:
    """Returns what gRPC's ``details`` of a failed handshake mean; None where they are of something else."""
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


def explain_closed(agent: object, details: str) -> str | None:
    """Finds out why a connection ended before it was of any use, with a connection of its own.

    Args:
        agent: The agent; anything but an ``AgentAddress`` is not asked.
        details: What gRPC says of it.

    Returns:
        The reason; None where there is none to be seen, or the connection had been of use.
    """
    if _NOT_CONNECTED not in details or not isinstance(agent, AgentAddress):
        return None
    # What speaks TLS only may answer what is no TLS with an alert, which is no HTTP/2.
    answered = not agent.secure and _NO_HTTP2 in details
    if not (answered or "closed" in details.casefold()) or not _speaks_tls(agent):
        return None
    if agent.secure:
        return (
            "asks for a certificate that it trusts, and was shown "
            "none or another; see --tls_cert and --tls_key"
        )
    return "speaks TLS only; use grpcs://, or --tls_ca with who vouches for it"


def _speaks_tls(address: AgentAddress) -> bool:
    """Whether a server speaks TLS; whom it claims to be is not looked at, and nothing is sent to it."""
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
