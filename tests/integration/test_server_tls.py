"""TLS between agents and clients, over sockets."""

from __future__ import annotations

import logging
import re
import shutil
import socket
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import trustme
from certificates import Authority
from fake_framework import SIDE, wait_for

from inferometer.agent.server.server import AgentServer
from inferometer.agent.server.tls import ServerTls
from inferometer.client.remote.connection import ClientTls, RemoteOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.connection import ask_health
from inferometer.manifests.errors import AgentError, ConfigurationError

TIMEOUT_S = 20
Start = Callable[..., AgentServer]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def server_tls(
    authority: Authority, *names: str, clients_ca: Path | None = None, **issue: float
) -> ServerTls:
    files = authority.issue(*(names or ("127.0.0.1", "localhost")), file="-".join(names), **issue)
    return ServerTls(files.cert, files.key, clients_ca)


def health(agent: AgentServer, tls: ClientTls | None, scheme: str = "") -> str:
    return ask_health(f"{scheme}{agent.address}", TIMEOUT_S, tls)


def refusal(agent: AgentServer, tls: ClientTls | None, scheme: str = "") -> str:
    with pytest.raises(AgentError) as error:
        health(agent, tls, scheme)
    message = str(error.value)
    assert agent.address in message
    assert "\n" not in message
    assert len(message) < 200
    return message


def test_model_is_used_over_tls_and_the_address_says_so(start_agent: Start, authority: Authority) -> None:
    agent = start_agent(tls=server_tls(authority), secret="open sesame")
    remote = RemoteOptions(secret="open sesame", tls=ClientTls(authority.ca))
    with open_remote_agent(agent.address, "Echo", remote=remote) as model:
        batch = np.ones((2, 1, SIDE, SIDE), np.float32)
        assert model.predict_tensor(batch).input_ids == ("0", "1")
        assert str(model.connection.address) == f"grpcs://{agent.address}"
    assert health(agent, ClientTls(authority.ca), "grpcs://") == "SERVING"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("wrong authority", "no authority that is trusted here has signed its certificate.* --tls_ca"),
        ("authorities of the web", "no authority that is trusted here has signed its certificate.* --tls_ca"),
        ("expired", "its certificate has expired"),
        ("other host", "its certificate is for another host.* --tls_server_name"),
    ],
)
def test_agent_that_cannot_be_trusted_is_not_spoken_to(
    start_agent: Start, authority: Authority, stranger: Authority, problem: str, said: str
) -> None:
    names = ("example.org",) if problem == "other host" else ("127.0.0.1",)
    tls = server_tls(authority, *names, days_left=-1 if problem == "expired" else 1)
    trusted = {"wrong authority": stranger.ca, "authorities of the web": None}.get(problem, authority.ca)
    message = refusal(start_agent(tls=tls), ClientTls(trusted), "grpcs://")
    assert re.search(said, message), message


def test_another_name_is_accepted_where_it_is_asked_for(start_agent: Start, authority: Authority) -> None:
    agent = start_agent(tls=server_tls(authority, "example.org"))
    assert health(agent, ClientTls(authority.ca, server_name="example.org")) == "SERVING"


def test_mutual_tls_lets_in_only_whom_the_agent_trusts(
    start_agent: Start, authority: Authority, stranger: Authority
) -> None:
    agent = start_agent(tls=server_tls(authority, clients_ca=authority.ca))
    known = authority.issue("client@example.org", file="client")
    assert health(agent, ClientTls(authority.ca, known.cert, known.key)) == "SERVING"
    unknown = stranger.issue("client@example.org", file="client")
    expired = authority.issue("client@example.org", file="expired", days_left=-1)
    for shown in (None, unknown, expired):
        tls = ClientTls(authority.ca, shown.cert, shown.key) if shown else ClientTls(authority.ca)
        assert "requires a certificate that it trusts" in refusal(agent, tls)


def test_tls_and_its_lack_do_not_go_together_and_that_is_said_at_once(
    start_agent: Start, authority: Authority
) -> None:
    secure, plain = start_agent(tls=server_tls(authority)), start_agent()
    assert "speaks TLS only; use grpcs://" in refusal(secure, None)
    # an address that says "without" is taken at its word
    assert "speaks TLS only; use grpcs://" in refusal(secure, ClientTls(authority.ca), "grpc://")
    assert "does not speak TLS" in refusal(plain, ClientTls(authority.ca))
    assert "does not speak TLS" in refusal(plain, None, "grpcs://")


def test_lost_connection_of_a_server_that_speaks_nothing_is_not_taken_for_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT_S)
        port = silent.getsockname()[1]
        with pytest.raises(AgentError) as error:
            ask_health(f"127.0.0.1:{port}", 0.5)
    assert "TLS" not in str(error.value)


def test_renewed_certificate_is_used_without_a_restart(
    start_agent: Start, authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, logger="inferometer.agent.server.tls")
    first, second = authority.issue("a.example.org", file="a"), authority.issue("b.example.org", file="b")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    agent = start_agent(tls=ServerTls(cert, key))

    def serves(name: str) -> bool:
        try:
            return health(agent, ClientTls(authority.ca, server_name=f"{name}.example.org")) == "SERVING"
        except AgentError:
            return False

    assert serves("a")
    shutil.copy(second.cert, tmp_path / "new").replace(cert)
    assert serves("a"), "a certificate whose key is not there yet is not taken"
    shutil.copy(second.key, tmp_path / "new").replace(key)
    wait_for(lambda: serves("b"))
    assert not serves("a")
    cert.unlink()
    assert serves("b"), "what is not there changes nothing"
    assert serves("b")
    messages = [record.message for record in caplog.records if "renewed" in record.message]
    assert len(messages) == 3, "that a file is not there is said once"
    assert "was not renewed, the old one stays: tls_key" in messages[0]
    assert messages[1] == "the certificate was renewed"
    assert messages[2] == (
        f"the certificate was not renewed, the old one stays: tls_cert {cert}: No such file or directory"
    )


@pytest.mark.parametrize(
    ("valid_days", "fault"), [((-60, -1), "has expired"), ((1, 60), "is not valid yet"), ((-1, 1), None)]
)
def test_own_certificate_whose_dates_are_wrong_is_warned_of_at_the_start(
    start_agent: Start,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    valid_days: tuple[int, int],
    fault: str | None,
) -> None:
    before, after = (datetime.now(timezone.utc) + timedelta(days) for days in valid_days)
    issued = trustme.CA().issue_cert("127.0.0.1", not_before=before, not_after=after)
    tls = ServerTls(tmp_path / "cert.pem", tmp_path / "key.pem")
    tls.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    issued.private_key_pem.write_to_path(str(tls.key))
    start_agent(tls=tls)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    said = [f"tls_cert {tls.certificate} {fault}; clients will not trust it"]
    assert warned == (said if fault else [])


def test_nothing_is_listened_on_with_files_that_cannot_be_used(
    start_agent: Start, authority: Authority, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        missing = tmp_path / "none.pem"
        with pytest.raises(ConfigurationError, match=f"tls_cert {missing}: No such file"):
            # of a port that is taken nothing is said, as it is not come to that
            start_agent(tls=ServerTls(missing, missing), port=port)
