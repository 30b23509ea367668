"""What an address of the web leads to, and how it is shown."""

from __future__ import annotations

import ipaddress
import re

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SHOWN_CHARACTERS = 200
_USER = re.compile(r"//[^/?#\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&][^=?&#\s]*(key|token|secret|sig|signature|credential|password|passwd|auth)=)[^&#\s]*",
    re.IGNORECASE,
)


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also where IPv6 wraps an IPv4 address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            ip = wrapped
    return ip.is_global and not ip.is_multicast


def without_credentials(text: str) -> str:
    """A text in which URLs have no user name and password, and no parameter that is a key or a signature."""
    return _SECRET_PARAMETER.sub(r"\g<name>***", _USER.sub("//***@", text))


def shown(text: str) -> str:
    """A URL, or another text from outside, as it can be shown: printable, on one line and of some length.

    Of a URL no credentials are shown; see ``without_credentials``.
    """
    text = without_credentials(text)
    text = text.encode("ascii", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
