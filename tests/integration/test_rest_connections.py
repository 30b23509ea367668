"""Connections over HTTP: pipelines, clients that are slow or go away, TLS, and an agent that stops."""

import http.client
import json
import logging
import pkgutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from certificates import Authority
from fake_framework import wait_for
from open_inference import images
from rest_client import HEADER_LENGTH, Rest, connect, json_input, raw_request, received, scores_of

from inferometer.agent.server.admission import Limits
from inferometer.agent.server.rest import http_connection
from inferometer.agent.server.rest import server as connections
from inferometer.agent.server.rest import server as rest_server
from inferometer.agent.server.tls import ServerTls
from inferometer.manifests.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
HEAD = json.dumps({"inputs": [json_input(images(1))]}).encode()


def infer_request(model="Mean", more=""):
    lines = f"POST /v2/models/{model}/infer HTTP/1.1\nHost: localhost\nContent-Length: {len(HEAD)}{more}"
    return raw_request(lines, HEAD)


@pytest.fixture
def agent(start_agent):
    return start_agent(http_port=0)


@pytest.fixture
def ask(agent):
    rest = Rest(agent.http_url)
    yield rest
    rest.close()


def test_small_response_arrives_at_once(agent):
    with connect(agent.http_url) as connection:
        for _ in range(3):
            connection.sendall(infer_request())
            answer = connection.recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"content-length: %d" % len(body) in head
            assert b"scores" in body


def test_client_that_waits_for_it_is_told_to_continue(agent):
    with connect(agent.http_url) as connection:
        head, _, body = infer_request(more="\nExpect: 100-continue\nConnection: close").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert received(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert received(connection).startswith(b"HTTP/1.1 200 OK")


def test_pipelined_requests_are_answered_in_their_order(agent):
    with connect(agent.http_url) as connection:
        requests = [
            raw_request("GET /v2/models/Mean HTTP/1.1\nHost: localhost"),
            infer_request(),
            raw_request("GET /made/up HTTP/1.1\nHost: localhost"),
            infer_request("Meam", "\nConnection: close"),
        ]
        connection.sendall(b"".join(requests))
        answers = received(connection).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"200", b"404", b"404"]
    assert [b"versions" in answer for answer in answers] == [True, False, False, False]
    assert b"scores" in answers[1]


def test_request_of_a_client_that_went_away_is_not_predicted(agent, ask, manifest_folder, caplog):
    caplog.set_level(logging.INFO, logger="inferometer")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask.infer, {"inputs": [json_input(images(1))]}, model="Waiting")
        wait_for((manifest_folder / "begun").exists)
        second = connect(agent.http_url)
        second.sendall(infer_request("Waiting"))
        [model] = agent.models.loaded
        wait_for(lambda: model.waiting == 1)
        second.close()
        wait_for(lambda: "infer CANCELLED" in caplog.text)
        (manifest_folder / "go").touch()
        assert first.result(30).status == 200
    [stats] = ask.get("/v2/models/Waiting/stats").json["model_stats"]
    assert stats["inference_count"] == 1


@pytest.mark.parametrize(
    "held", ["server.rest.routes.read_infer_request", "open_inference.http_codec.data_of"]
)
def test_others_are_answered_while_long_json_is_read_and_written(ask, monkeypatch, held):
    began, answered = threading.Event(), threading.Event()
    place = f"inferometer.agent.{held}"
    convert = pkgutil.resolve_name(place)

    def convert_slowly(*arguments):
        began.set()
        assert answered.wait(30)
        return convert(*arguments)

    monkeypatch.setattr(place, convert_slowly)
    batch = images(1, side=512)
    with ThreadPoolExecutor(1) as pool:
        other = Rest(f"http://{ask.address}")
        long = pool.submit(other.infer, {"inputs": [json_input(batch)]}, model="Large")
        assert began.wait(30)
        assert ask.get("/v2/health/live").status == 200
        answered.set()
        np.testing.assert_array_equal(scores_of(long.result(30)), batch)
        other.close()


def test_client_that_goes_away_in_the_middle_of_its_request_leaves_nothing(agent, ask, caplog):
    caplog.set_level(logging.INFO, logger="inferometer")
    connection = connect(agent.http_url)
    connection.sendall(infer_request()[:-10])
    ask.get("/v2")  # its connection came later, and is answered
    connection.close()
    wait_for(lambda: "infer CANCELLED" in caplog.text)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0.2)
    monkeypatch.setattr(http_connection, "HEAD_S", 0.2)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"POST /v2/mod", b""), (infer_request()[:-1], b"HTTP/1.1 408")],
    ids=["nothing", "part of the head", "part of the body"],
)
def test_client_that_does_not_send_in_time_is_cut_off(impatient, agent, ask, sent, answer):
    with connect(agent.http_url) as connection:
        connection.sendall(sent)
        assert received(connection)[:12] == answer
    assert ask.get("/v2").status == 200


def test_client_that_drips_is_cut_off(impatient, monkeypatch, start_agent):
    monkeypatch.setattr(connections, "LEAST_BYTES_PER_S", 1e12)
    monkeypatch.setattr(rest_server, "LEAST_BYTES_PER_S", 1e12)
    monkeypatch.setattr(rest_server, "SILENCE_S", 0.2)
    agent = start_agent(http_port=0)
    with connect(agent.http_url) as connection:
        connection.settimeout(0.05)
        connection.sendall(
            raw_request("POST /v2/models/Mean/infer HTTP/1.1\nHost: localhost\nContent-Length: 100000")
        )
        found = b""
        while not found:
            connection.sendall(b" ")
            with suppress(TimeoutError):
                found = connection.recv(65536)
    assert found.startswith(b"HTTP/1.1 408")


def test_client_that_reads_nothing_is_cut_off(impatient, agent, caplog):
    caplog.set_level(logging.INFO, logger="inferometer")
    batch = images(4, side=512)
    with connect(agent.http_url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lines = f"POST /v2/models/Large/infer HTTP/1.1\nHost: localhost\nContent-Length: {batch.nbytes}"
        connection.sendall(raw_request(f"{lines}\n{HEADER_LENGTH}: 0", batch.tobytes()))
        wait_for(lambda: "infer OK" in caplog.text)
        served = agent._http._server.server_state.connections
        wait_for(lambda: not served)


def test_idle_connection_stays_open(impatient, ask):
    assert ask.get("/v2").status == 200
    before = ask._connection.sock
    with connect(f"http://{ask.address}") as other:
        assert received(other) == b""  # which takes longer than a client may be silent
    assert ask.get("/v2").status == 200
    assert ask._connection.sock is before


def test_connections_over_the_limit_are_refused(start_agent):
    agent = start_agent(http_port=0, limits=Limits(max_connections=1))
    first, second = Rest(agent.http_url), Rest(agent.http_url)
    assert first.get("/v2").status == 200
    answer = second.get("/v2")
    assert (answer.status, "reached its limit of connections" in answer.error) == (503, True)
    first.close()
    second.close()


def test_tls_is_that_of_grpc_and_so_is_its_renewal(start_agent, tmp_path):
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1", file="server")
    agent = start_agent(http_port=0, tls=ServerTls(files.cert, files.key, authority.ca))
    assert agent.http_url.startswith("https://")
    address = agent.http_url.removeprefix("https://")

    def certificate(*names):
        context = ssl.create_default_context(cafile=str(authority.ca))
        if names:
            shown = authority.issue(*names, file="client")
            context.load_cert_chain(shown.cert, shown.key)
        connection = http.client.HTTPSConnection(address, timeout=20, context=context)
        connection.request("GET", "/v2")
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
        found = connection.sock.getpeercert(binary_form=True)
        connection.close()
        return found

    before = certificate("client@example.org")
    assert certificate("client@example.org") == before
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        certificate()
    authority.issue("127.0.0.1", file="server")
    assert certificate("client@example.org") != before


def test_port_that_is_taken_is_one_clear_error(start_agent, agent):
    port = int(agent.http_url.rpartition(":")[2])
    with pytest.raises(
        ConfigurationError, match=rf"cannot listen on 127.0.0.1:{port} for HTTP: .*--http_port"
    ):
        start_agent(http_port=port)


def test_agent_listens_for_http_only_where_it_is_told_to(start_agent):
    assert start_agent().http_url is None


def test_stopping_agent_finishes_what_it_accepted_and_refuses_the_rest(start_agent, manifest_folder):
    agent = start_agent(http_port=0)
    waiting, other = Rest(agent.http_url), Rest(agent.http_url)
    head = {"inputs": [json_input(images(1))]}
    assert other.infer(head).status == 200
    with ThreadPoolExecutor(2) as pool:
        accepted = pool.submit(waiting.infer, head, model="Waiting")
        wait_for((manifest_folder / "begun").exists)
        stopped = pool.submit(agent.stop, 20.0)
        wait_for(lambda: other.get("/v2/health/ready").status == 400)
        wait_for(lambda: other.infer(head).status == 503)
        assert "the agent is stopping" in other.infer(head).error
        assert other.get("/v2/health/live").status == 200
        (manifest_folder / "go").touch()
        assert accepted.result(30).status == 200
        assert stopped.result(30)
    with pytest.raises(ConnectionRefusedError):
        connect(agent.http_url)
    waiting.close()
    other.close()


def test_request_that_does_not_end_within_the_grace_is_told_so(start_agent, manifest_folder):
    agent = start_agent(http_port=0)
    ask = Rest(agent.http_url)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(ask.infer, {"inputs": [json_input(images(1))]}, model="Waiting")
        wait_for((manifest_folder / "begun").exists)
        agent.stop(0.0)
        (manifest_folder / "go").touch()
        answer = accepted.result(30)
        assert (answer.status, "the agent has stopped" in answer.error) == (503, True)
    ask.close()


def test_command_says_where_it_listens(environment):
    code = "from inferometer.client.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port=0", "--http_port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        ask = Rest(lines[1].removeprefix("http on ").strip())
        answer = ask.get("/v2/models/DigitsCNN/ready")
        ask.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert lines[0].startswith("serving on ")
    assert answer.status == 400  # it is not loaded


def test_without_the_package_one_line_says_what_to_install(start_agent, monkeypatch):
    monkeypatch.setitem(sys.modules, "inferometer.agent.server.rest.server", None)
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(ConfigurationError, match=r'pip install "inferometer\[http\]"'):
        start_agent(http_port=0)


def test_both_doors_have_the_same_models(agent, ask):
    assert ask.infer({"inputs": [json_input(images(1))]}).status == 200
    with grpc_client.InferenceServerClient(agent.address) as client:
        assert client.is_model_ready("Mean")
        client.unload_model("Mean")
    assert ask.get("/v2/models/Mean/ready").status == 400


def test_pipelined_head_that_is_not_finished_does_not_end_the_request_before_it(
    impatient, agent, ask, manifest_folder
):
    with connect(agent.http_url) as connection, connect(agent.http_url) as silent:
        connection.sendall(infer_request("Waiting") + b"GET /v2 HT")
        wait_for((manifest_folder / "begun").exists)
        assert received(silent) == b""  # which takes longer than a client may be silent
        (manifest_folder / "go").touch()
        connection.sendall(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert [part[:3] for part in received(connection).split(b"HTTP/1.1 ")[1:]] == [b"200", b"200"]
