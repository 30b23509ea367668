"""The addresses of an agent and of its metrics, and the port passed to gRPC."""

from __future__ import annotations

import errno
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from inferometer.agent.server.admission import Limits, bound, server_options
from inferometer.agent.server.metrics import MetricsServer
from inferometer.agent.tracing import collectors
from inferometer.client.remote import connection
from inferometer.client.remote.kserve import server as kserve
from inferometer.client.remote.native import connection as native
from inferometer.manifests.errors import ConfigurationError

TOO_LONG = "a" * 70
"""No label of a host's name may be so long."""


def test_clients_are_pinged_so_that_one_that_vanishes_is_noticed() -> None:
    options = dict(server_options(1024, Limits()))
    assert options["grpc.keepalive_time_ms"] == 10_000
    assert options["grpc.keepalive_timeout_ms"] == 10_000
    assert options["grpc.http2.ping_timeout_ms"] == 10_000
    assert options["grpc.http2.max_pings_without_data"] == 0
    # a client may ping as often as ours does, and as those of others do
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 10_000


def test_grpc_knows_every_option() -> None:
    # gRPC ignores an option that it does not know, such as one with a spelling mistake
    found = find_spec("grpc._cython.cygrpc")
    assert found is not None
    core = Path(str(found.origin)).read_bytes()
    clients = {*connection._OPTIONS, *native._OPTIONS, *kserve._OPTIONS, *collectors._CHANNEL_OPTIONS}
    named = {name for name, _ in (*server_options(1024, Limits(max_connections=1)), *clients)}
    assert len(named) >= 15
    assert [name for name in sorted(named) if name.encode() not in core] == []


@pytest.mark.parametrize("host", [TOO_LONG, "no-such-host.invalid", "\udcff", "a..b"])
def test_host_that_is_none_is_one_clear_error(host: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot listen on") as error:
        bound(host, 0)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigurationError, match=r"for metrics: .*--metrics_host") as error:
        MetricsServer(CollectorRegistry(), host, 0)
    assert "\n" not in str(error.value)


def test_a_port_on_which_another_program_begins_to_listen_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def listen(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "listen", listen)
    with pytest.raises(ConfigurationError, match=r"for metrics: Address already in use; .*--metrics_port"):
        MetricsServer(CollectorRegistry(), "127.0.0.1", 0)


def test_metrics_do_not_wait_for_a_name_of_the_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_dns(_: str = "") -> str:
        raise AssertionError("the DNS was asked")

    monkeypatch.setattr(socket, "getfqdn", ask_dns)
    server = MetricsServer(CollectorRegistry(), "127.0.0.1", 0)
    try:
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    finally:
        server.close()
