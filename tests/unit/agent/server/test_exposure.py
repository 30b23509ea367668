"""Who can reach an agent, and how it identifies a client."""

from __future__ import annotations

from unittest.mock import Mock

import grpc
import pytest

from inferometer.agent.server.admission import check_exposure, client_of, is_loopback, metrics_warning
from inferometer.manifests.errors import ConfigurationError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1"])
def test_own_address_is_reached_by_nobody_else(host: str) -> None:
    assert is_loopback(host)
    assert check_exposure(host, tls=False, secret=False, insecure=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "10.1.2.3", "192.0.2.1", "2001:db8::1"])
def test_other_addresses_are_reached_by_others(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigurationError, match="can be reached by others"):
        check_exposure(host, tls=False, secret=False, insecure=False)


def test_name_that_only_looks_like_the_own_address_is_looked_up() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on host 127\.0\.0\.1\.invalid"):
        is_loopback("127.0.0.1.invalid")


@pytest.mark.parametrize(
    ("tls", "secret", "missing", "risk"),
    [
        (False, False, "no TLS and no secret", "anybody can use it, and everything travels in clear"),
        (False, True, "no TLS", "everything travels in clear, the secret too"),
        (True, False, "no secret", "anybody can use it"),
    ],
)
def test_what_is_missing_has_to_be_accepted_and_is_said(
    tls: bool, secret: bool, missing: str, risk: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"has {missing};"):
        check_exposure("0.0.0.0", tls=tls, secret=secret, insecure=False)
    said = check_exposure("0.0.0.0", tls=tls, secret=secret, insecure=True)
    assert said == f"INSECURE: others can reach this agent, which has {missing}: {risk}"


def test_metrics_that_others_can_read_are_said() -> None:
    assert metrics_warning("127.0.0.1", 9464) is None
    assert metrics_warning("::1", 9464) is None
    said = metrics_warning("0.0.0.0", 9464)
    assert said is not None
    assert said.startswith(
        "INSECURE: others can read the metrics at 0.0.0.0:9464, which have no TLS and no secret"
    )
    assert "metrics at *:1," in str(metrics_warning("", 1))


def test_safe_agent_says_nothing() -> None:
    assert check_exposure("0.0.0.0", tls=True, secret=True, insecure=False) is None


@pytest.mark.parametrize(
    ("peer", "named", "client"),
    [
        ("ipv4:192.0.2.1:5000", None, "host 192.0.2.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", None, "host 2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::7%5D:5000", None, "host 2001:db8:1:2::/64"),
        ("ipv6:[::ffff:192.0.2.1]:5000", None, "host 192.0.2.1"),
        ("ipv6:[fe80::1%25eth0]:5000", None, "host fe80::/64"),
        ("unix:/run/agent", None, "host unix:/run/agent"),
        ("ipv4:192.0.2.1:5000", [b"b@x.org", b"a@x.org"], "certificate a@x.org, b@x.org"),
        ("ipv4:192.0.2.1:5000", [b"\xff"], "certificate \ufffd"),
    ],
)
def test_client_is_its_certificate_or_else_its_host_whatever_its_port(
    peer: str, named: list[bytes] | None, client: str
) -> None:
    context = Mock(grpc.ServicerContext)
    context.peer.return_value = peer
    context.peer_identities.return_value = named
    assert client_of(context) == client
