"""Who a call comes from, as far as limits are concerned."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

import grpc

_IPV6_NETWORK_BITS = 64


def client_of(context: grpc.ServicerContext) -> str:
    """Returns who a call comes from: whom its certificate names, or else the address of its host.

    Of an IPv6 address it is the network, within which a host takes any address that it likes.
    """
    named = context.peer_identities()
    if named:
        return "certificate " + ", ".join(sorted(name.decode("utf-8", "replace") for name in named))
    return "host " + _host(unquote(context.peer()))


def _host(peer: str) -> str:
    """The host of gRPC's ``ipv4:1.2.3.4:5`` or ``ipv6:[::1]:5``; what is neither stays as it is."""
    kind, _, address = peer.partition(":")
    host = address.rpartition(":")[0].strip("[]").partition("%")[0]
    if kind == "ipv4":
        return host
    if kind != "ipv6":
        return peer
    ip = ipaddress.IPv6Address(host)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((ip, _IPV6_NETWORK_BITS), strict=False))
