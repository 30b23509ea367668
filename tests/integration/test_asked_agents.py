"""Agents that are queried for their state: busy ones, odd ones, and those in the database."""

import socket
import ssl
import threading
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone

import grpc
import pytest
from certificates import Authority
from half_agent import Seen, aborting, half_agent, whole_registry

from inferometer.agent.protocol.agent_info import AgentInfo
from inferometer.client.api.discovery import KnownAgent, Source, ask_agents
from inferometer.client.remote.connection import ClientTls
from inferometer.client.remote.native.connection import ask_status, probe_agent
from inferometer.manifests.errors import AgentError, ConfigurationError
from inferometer.protos.inferometer.v1 import registry_pb2

AGENT_INFO = AgentInfo(
    socket.gethostname(), "x86_64", "EPYC", (), {}, (), "0.1", datetime(2026, 1, 1, tzinfo=timezone.utc)
)
BUSY = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE")
TOO_LATE_MS = (2**63 - 1, -(2**63), 10**15)
SECRET = "open sesame"


def published(address):
    return KnownAgent(address, Source.DATABASE, AGENT_INFO, 3)


def configured(address):
    return KnownAgent(address, Source.CONFIGURATION, None)


@contextmanager
def hanging():
    """An answer that does not come while the context is open."""
    released = threading.Event()

    def answer(*_):
        released.wait(30)
        return registry_pb2.StatusResponse()

    try:
        yield answer
    finally:
        released.set()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.mark.parametrize("health", ["SERVING", "NOT_SERVING"])
@pytest.mark.parametrize("code", BUSY)
def test_status_of_an_agent_that_is_too_busy_for_more_is_its_health(code, health):
    with half_agent(health, Status=aborting(grpc.StatusCode[code], "full")) as address:
        status = ask_status(address, 20)
    assert (status.health, status.details, status.refused) == (health, None, False)
    assert status.problem.startswith("its status is unknown; it may be too busy: ")


def test_status_of_an_agent_whose_queue_is_full_comes_within_the_time():
    with hanging() as answer, half_agent(Status=answer) as address:
        status = ask_status(address, 1.0)
    assert status.health == "SERVING"
    assert status.problem == "its status is unknown; it may be too busy: did not answer in time"


def test_status_that_fails_at_the_agent_is_an_error():
    with (
        half_agent(Status=aborting(grpc.StatusCode.INTERNAL, "broken")) as address,
        pytest.raises(AgentError, match="internal: broken"),
    ):
        ask_status(address, 20)


@pytest.mark.parametrize(
    ("secret", "reason"), [(None, "it requires its secret"), (SECRET, "this is not its secret")]
)
def test_status_says_whether_a_secret_is_missing_or_wrong(secret, reason):
    with half_agent(Status=aborting(grpc.StatusCode.UNAUTHENTICATED)) as address:
        status = ask_status(address, 20, secret)
    assert status.refused
    assert reason in status.problem


def test_busy_agent_is_alive_as_published_and_its_load_is_not_known():
    with hanging() as answer, half_agent(Describe=answer) as address:
        probe = probe_agent(address, timeout_s=0.5)
        assert (probe.agent_info, probe.open_sessions) == (None, None)
        (known,) = ask_agents([published(address)], None)
        (unknown,) = ask_agents([configured(address)], None)
    assert known.usable
    assert (known.agent_info, known.open_sessions) == (AGENT_INFO, None)
    assert unknown.problem.startswith(f"agent {address}: responds, but gives no description: did not answer")


def test_agent_that_refuses_is_a_problem_of_its_own():
    odd = {
        "limited": {"Describe": aborting(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests")},
        "broken": {"Describe": aborting(grpc.StatusCode.INTERNAL, "broken")},
        "named": {"Describe": _named_error},
        "sound": whole_registry(hostname="sound", open_sessions=2),
    }
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(half_agent(**answers)) for name, answers in odd.items()}
        agents = ask_agents([configured(address) for address in addresses.values()], None)
    by_name = dict(zip(addresses, agents, strict=True))
    assert (by_name["sound"].agent_info.hostname, by_name["sound"].open_sessions) == ("sound", 2)
    assert "too many requests" in by_name["limited"].problem
    assert by_name["broken"].problem == f"agent {addresses['broken']}: internal: broken"
    assert by_name["named"].problem == f"agent {addresses['named']}: the model's file is missing"


def _named_error(_, context):
    context.set_trailing_metadata((("inferometer-error", "ArtifactError"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the model's file is missing")


@pytest.mark.parametrize("address", ["kserve://somewhere:1", "no port", "http://x:1", "host:99999", ""])
def test_address_of_the_database_that_is_none_is_a_problem_of_that_agent(address):
    with half_agent(**whole_registry()) as sound:
        odd, other = ask_agents([published(address), published(sound)], None)
    assert odd.problem == f"agent {address}: published with an address that is not host:port"
    assert other.usable


@pytest.mark.parametrize("access", ["secret", "authorities"])
def test_what_the_user_got_wrong_is_an_error_and_no_problem_of_each_agent(access, tmp_path):
    secret = "größe" if access == "secret" else None
    tls = ClientTls(authorities=tmp_path / "none.pem") if access == "authorities" else None
    with pytest.raises(ConfigurationError, match=r"the secret is empty|tls_ca .*none\.pem"):
        ask_agents([published("127.0.0.1:1")], secret, tls)


def test_database_cannot_switch_tls_off_and_gets_no_secret(authority):
    seen = Seen()
    tls = ClientTls(authorities=authority.ca)
    with half_agent(seen=seen, **whole_registry()) as address:
        (downgraded,) = ask_agents([published(f"grpc://{address}")], SECRET, tls)
        assert not downgraded.usable
        assert "published without TLS" in downgraded.problem
        assert seen.methods == []
        # the user may say so, and without TLS there is nothing to switch off
        (typed,) = ask_agents([configured(f"grpc://{address}")], SECRET, tls)
        (plain,) = ask_agents([published(f"grpc://{address}")], SECRET)
    assert typed.usable
    assert plain.usable
    assert set(seen.secrets) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("started_unix_ms", TOO_LATE_MS)
def test_time_of_start_that_is_none_is_unknown(started_unix_ms):
    with half_agent(**whole_registry(started_unix_ms=started_unix_ms)) as address:
        assert probe_agent(address).agent_info.started_at is None
        assert ask_status(address, 20).details["started_at"] is None


def test_time_of_start_is_in_utc():
    with half_agent(**whole_registry(started_unix_ms=1_767_225_600_000)) as address:
        assert probe_agent(address).agent_info.started_at == datetime(2026, 1, 1, tzinfo=timezone.utc)


@contextmanager
def answering(first, wait):
    """A server of another protocol, which begins with ``first``, or answers with it."""

    def serve():
        with suppress(OSError):  # the end of the listener
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):  # the client hangs up
                    connection.settimeout(5)
                    if wait:
                        connection.recv(65536)
                    connection.sendall(first)
                    while connection.recv(65536):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def test_port_of_a_web_server_with_tls_is_said_to_speak_no_grpc(authority):
    files = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)

    def serve():
        with suppress(OSError):  # the client leaves
            connection, _ = server.accept()
            with context.wrap_socket(connection, server_side=True) as secured:
                secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AgentError, match=f"^agent grpcs://{address}: speaks TLS, but not gRPC; "):
            ask_status(address, 20, tls=ClientTls(authorities=authority.ca))
        thread.join(30)


@pytest.mark.parametrize(
    ("first", "wait"),
    [(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", True), (b"SSH-2.0-OpenSSH_9.6\r\n", False)],
    ids=["http", "ssh"],
)
def test_port_of_another_protocol_is_said_to_speak_no_grpc(first, wait):
    with answering(first, wait) as address, pytest.raises(AgentError) as error:
        ask_status(address, 20)
    assert str(error.value).startswith(f"agent {address}: speaks no gRPC there; ")
    assert "HTTP/2" not in str(error.value)
