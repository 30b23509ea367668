"""Who can reach a served agent, and what has to stand before it then."""

from __future__ import annotations

import ipaddress
import socket

from manifests.errors import ConfigurationError

_EVERYWHERE = "0.0.0.0"  # noqa: S104 - what gRPC takes an empty host for


def is_loopback(host: str) -> bool:
    """Whether a host, by its name or address, is this machine as only itself can reach it.

    A name is looked up, and counts if all of its addresses do.

    Raises:
        ConfigurationError: The name is not known.
    """
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or _EVERYWHERE, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot listen on host {host}: {reason}") from error
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def metrics_warning(host: str, port: int) -> str | None:
    """Returns what is to be said loudly of metrics at an address; None where there is nothing.

    Raises:
        ConfigurationError: The host is not known.
    """
    if is_loopback(host):
        return None
    return (
        f"INSECURE: others can read the metrics at {host or '*'}:{port}, which have no TLS and no secret: "
        "names of models, and how much they are used"
    )


def check_exposure(host: str, *, tls: bool, secret: bool, insecure: bool) -> str | None:
    """Sees to it that nobody lets others in without knowing it.

    Args:
        host: Where the agent listens.
        tls: Whether it has a certificate.
        secret: Whether it asks for a secret.
        insecure: Whether the user has said that it may be without.

    Returns:
        What is to be said loudly; None where there is nothing.

    Raises:
        ConfigurationError: Others can reach it, something is missing, and the user has not said so. Or the
            host is not known.
    """
    missing = " and no ".join(name for name, there in (("TLS", tls), ("secret", secret)) if not there)
    if not missing or is_loopback(host):
        return None
    if not insecure:
        raise ConfigurationError(
            f"host {host or '*'} can be reached by others, and the agent has no {missing}; give --tls_cert, "
            "--tls_key and --secret or --secret_file, or accept it with --insecure"
        )
    risks = [
        *(["anybody can use it"] if not secret else []),
        *(["everything travels in clear" + (", the secret too" if secret else "")] if not tls else []),
    ]
    return f"INSECURE: others can reach this agent, which has no {missing}: {', and '.join(risks)}"
