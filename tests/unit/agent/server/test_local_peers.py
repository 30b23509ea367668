"""Who made a connection: this user on this host, or another."""

import os
import socket
from contextlib import ExitStack

import pytest

from inferometer.agent.server.security.local_peers import LocalPeers
from inferometer.manifests.errors import ConfigurationError, InputError


@pytest.fixture
def connect():
    """Makes a connection, and returns the peer as gRPC names it."""
    with ExitStack() as stack:

        def make(family=socket.AF_INET, host="127.0.0.1", to=None):
            listener = stack.enter_context(socket.socket(family))
            listener.bind((host, 0))
            listener.listen()
            client = stack.enter_context(socket.socket(socket.AF_INET6 if to else family))
            client.connect((to or host, listener.getsockname()[1]))
            accepted, peer = listener.accept()
            stack.enter_context(accepted)
            name = f"ipv6:%5B{peer[0]}%5D" if family == socket.AF_INET6 else f"ipv4:{peer[0]}"
            return f"{name}:{peer[1]}"

        yield make


def test_a_connection_of_this_user_is_admitted(connect):
    LocalPeers().check(connect())


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_a_connection_over_ipv6_is_admitted(connect):
    try:
        peer = connect(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("no IPv6 loopback")
    LocalPeers().check(peer)


def test_a_socket_of_ipv6_that_speaks_ipv4_is_admitted(connect):
    try:
        peer = connect(to="::ffff:127.0.0.1")
    except OSError:
        pytest.skip("no IPv6")
    LocalPeers().check(peer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_connection_of_another_user_is_refused(connect):
    os.seteuid(65534)
    try:
        peer = connect()
    finally:
        os.seteuid(0)
    with pytest.raises(InputError, match="for clients of the user who runs the agent"):
        LocalPeers().check(peer)


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:192.0.2.1:80",
        "ipv6:%5B2001:db8::1%5D:80",
        "unknown",
        "",
        "unix:/run/x",
        "ipv4:127.0.0.1",
        "127.0.0.1:5",
    ],
)
def test_a_peer_elsewhere_is_refused(peer):
    with pytest.raises(InputError, match="for clients on this host"):
        LocalPeers().check(peer)


def test_a_loopback_address_without_a_connection_is_refused():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="the user who runs the agent"):
            LocalPeers().check(f"ipv4:127.0.0.1:{unused.getsockname()[1]}")


def test_a_peer_is_looked_up_again_after_a_second(tmp_path):
    table, now = tmp_path / "tcp", [0.0]
    row = "  0: 0100007F:{port} 0100007F:0050 01 00000000:00000000 00:00000000 00000000 {uid} 0 1\n"

    def write(uid):
        table.write_text("heads\n" + row.format(port="1F90", uid=uid))

    write(os.geteuid())
    peers = LocalPeers([table], lambda: now[0])
    peers.check("ipv4:127.0.0.1:8080")
    write(os.geteuid() + 1)
    peers.check("ipv4:127.0.0.1:8080")
    now[0] = 1.0
    with pytest.raises(InputError):
        peers.check("ipv4:127.0.0.1:8080")


def test_a_system_without_the_table_offers_nothing(tmp_path):
    with pytest.raises(ConfigurationError, match="needs Linux"):
        LocalPeers([tmp_path / "none"])
