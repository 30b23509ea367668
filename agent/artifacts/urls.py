"""Checks of IP addresses, and URLs in messages."""

from __future__ import annotations

import ipaddress
import re

from inferometer.manifests.errors import printable

_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")  # RFC 9637
_SHOWN_CHARACTERS = 200
_USER = re.compile(r"//[^/?#\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&][^=?&#\s]*(key|token|secret|sig|signature|credential|password|passwd|auth)=)[^&#\s]*",
    re.IGNORECASE,
)


def is_public(address: str) -> bool:
    """Returns whether an IP address is public; an IPv4 address that IPv6 wraps is checked itself.

    IANA has allocated 2000::/3 alone for public IPv6 addresses (registry "Internet Protocol Version 6 Address
    Space"); within it, and in IPv4, its registries of special-purpose addresses say what is not public, which
    ``ipaddress`` knows but for the newest.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is None and (ip not in _PUBLIC_IPV6 or ip in _DOCUMENTATION):
            return False
        ip = wrapped or ip
    return ip.is_global and not ip.is_multicast


def without_credentials(text: str) -> str:
    """Masks user names, passwords, and parameters that are keys or signatures in URLs."""
    return _SECRET_PARAMETER.sub(r"\g<name>***", _USER.sub("//***@", text))


def shown(text: str) -> str:
    """Returns a URL or another external text for a message: printable, on one line and of limited length.

    Credentials are masked; see ``without_credentials``.
    """
    text = printable(without_credentials(text).encode("ascii", "backslashreplace").decode())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
