"""Who made a connection: this user on this host, or another."""

import os
import socket
from contextlib import ExitStack, closing

import pytest

from inferometer.agent.server.v2.shared_memory import LocalPeers
from inferometer.manifests.errors import ConfigurationError, InputError


@pytest.fixture
def peers():
    with closing(LocalPeers()) as found:
        yield found


@pytest.fixture
def connect(peers):
    """Makes a connection, and returns the peer as gRPC names it."""
    with ExitStack() as stack:

        def make(family=socket.AF_INET, host="127.0.0.1", to=None, listening=None):
            listener = stack.enter_context(socket.socket(family))
            listener.bind((host, 0))
            listener.listen()
            client = stack.enter_context(socket.socket(socket.AF_INET6 if to else family))
            client.connect((to or host, listener.getsockname()[1]))
            accepted, peer = listener.accept()
            stack.enter_context(accepted)
            name = f"ipv6:%5B{peer[0]}%5D" if family == socket.AF_INET6 else f"ipv4:{peer[0]}"
            peers.listen(listening or host, listener.getsockname()[1])
            return f"{name}:{peer[1]}"

        yield make


def test_a_connection_of_this_user_is_admitted(peers, connect):
    peers.check(connect())


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_a_connection_over_ipv6_is_admitted(peers, connect):
    try:
        peer = connect(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("no IPv6 loopback")
    peers.check(peer)


def test_a_socket_of_ipv6_that_speaks_ipv4_is_admitted(peers, connect):
    try:
        peer = connect(to="::ffff:127.0.0.1")
    except OSError:
        pytest.skip("no IPv6")
    peers.check(peer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_connection_of_another_user_is_refused(peers, connect):
    os.seteuid(65534)
    try:
        peer = connect()
    finally:
        os.seteuid(0)
    with pytest.raises(InputError, match="for clients of the user who runs the agent"):
        peers.check(peer)


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
def test_a_peer_elsewhere_is_refused(peers, peer):
    with pytest.raises(InputError, match="for clients on this host"):
        peers.check(peer)


def test_a_loopback_address_without_a_connection_is_refused(peers):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="the user who runs the agent"):
            peers.check(f"ipv4:127.0.0.1:{unused.getsockname()[1]}")


@pytest.mark.parametrize(("host", "listening"), [("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "localhost")])
def test_an_agent_may_listen_everywhere_or_at_a_name(peers, connect, host, listening):
    peers.check(connect(host=host, listening=listening))


def test_a_connection_to_another_server_is_none_to_this_agent(peers, connect):
    peer = connect()
    with closing(LocalPeers()) as others, pytest.raises(InputError, match="the user who runs the agent"):
        others.check(peer)


def test_a_connection_that_has_ended_is_refused(peers):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers.listen(*listener.getsockname())
        with socket.create_connection(listener.getsockname()):
            accepted, peer = listener.accept()
            accepted.close()
    with pytest.raises(InputError, match="the user who runs the agent"):
        peers.check(f"ipv4:{peer[0]}:{peer[1]}")


def test_a_system_that_cannot_tell_offers_nothing(monkeypatch):
    def fail(*_):
        raise OSError("Protocol not supported")

    monkeypatch.setattr(socket, "socket", fail)
    with pytest.raises(ConfigurationError, match=r"needs Linux, .*Protocol not supported"):
        LocalPeers()
