"""Models on servers of the Open Inference Protocol over HTTP, as systems under test and under load."""

import socket
import threading
from contextlib import contextmanager, suppress

import grpc
import numpy as np
import pytest
from fake_framework import DEADLINE_S, SIDE, mean_scores
from kserve_http_server import running_http
from kserve_server import running
from test_kserve import IMAGE, UNSERVED, batches, said_in_one_line, served, tensors
from test_kserve_load import INPUTS, OUTPUTS, READ, SMALL, assert_all_failed, begin, run

from inferometer.agent.open_inference.codec import DATATYPES
from inferometer.agent.tracing.recorder import SpanRecorder, SpanRole, TraceContext, TraceLevel, TraceScope
from inferometer.client.remote import call_target
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.kserve.session import KServeTarget
from inferometer.client.remote.rest import sockets
from inferometer.client.remote.rest.responses import Incoming, NoHttpError, Response
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.evaluators.load.queries import Outcome
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError, ConfigurationError

FORMS = pytest.mark.parametrize(
    "form",
    [{}, {"chunked": True}, {"closes": True}, {"closes_silently": True}],
    ids=["kept", "chunks", "closed", "closed silently"],
)


@pytest.fixture
def opened(manifest_folder):
    sessions = []

    def open_one(address, name="Mean", **remote):
        catalog = Catalog([manifest_folder])
        sessions.append(open_kserve(address, catalog, ModelChoice(name), remote=RemoteOptions(**remote)))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


def loaded(**changes):
    return served(**{"inputs": INPUTS, "outputs": OUTPUTS, **changes})


@FORMS
def test_a_server_of_json_only_is_measured(opened, form):
    with running_http(served(max_batch_size=4, versions=("1", "1.0")), **form) as server:
        session = opened(server.address)
        results = list(session.predict_batches(batches(3)))
        with pytest.raises(ConfigurationError, match="takes at most 4 inputs"):
            session.predict_tensor(tensors(5))
        [scores] = session.predictor.predict({"data": tensors(3)}).values()

    assert [len(result.input_ids) for result in results] == [2, 2, 2]
    np.testing.assert_array_equal(scores, mean_scores(tensors(3)))
    assert session.description.manifest.framework.name == "testserver"
    assert session.description.framework_version == "9.8"
    assert session.description.agent == f"{server.address}/Mean/1.0"


def test_connections_are_kept(opened):
    with running_http(served()) as server:
        session = opened(server.address)
        for _ in range(5):
            session.predict_tensor(tensors(2))
        assert server.connections == 1


@pytest.mark.parametrize("use", [SharedMemoryUse.OFF, SharedMemoryUse.ON])
def test_an_agent_gets_binary_tensors_or_shared_memory(opened, start_agent, use):
    agent = start_agent(http_port=0, shared_memory=True, secret="open sesame")
    session = opened(f"kserve+{agent.http_url}", secret="open sesame", shared_memory=use)
    batch = tensors(3)
    result = session.predict_tensor(batch)
    assert len(result.input_ids) == 3

    predictor = session.predictor
    request = predictor.form.encode({"data": batch})
    assert batch.tobytes() in request
    answer = predictor.connection.infer(request, 60)
    assert mean_scores(batch).tobytes() in answer
    reply = predictor.form.decode(answer)
    np.testing.assert_array_equal(reply.outputs["scores"], mean_scores(batch))
    assert reply.times["batch_size"] == 3
    with KServeTarget(session, SMALL) as target:
        assert run(target, 40).queries().count(Outcome.ANSWERED) == 40


@UNSERVED
def test_a_server_that_cannot_serve_the_model_is_said_in_one_line(opened, changes, error, said):
    with running_http(served(**changes)) as server, said_in_one_line(error, said, "HTTP"):
        opened(server.address, open_timeout_s=0.5)


def test_an_address_where_nobody_listens_or_gRPC_does_is_said(opened):
    with running_http(served()) as server:
        pass
    with pytest.raises(AgentError, match="cannot be reached: connection refused; is it the port of HTTP"):
        opened(server.address)
    with running(served()) as server, pytest.raises(AgentError, match=r"does not speak HTTP/1\.1 there"):
        opened(server.address.replace("kserve://", "kserve+http://"))


def test_what_the_server_refuses_fails_its_batch_and_no_other(opened):
    def model(batch):
        if batch.min() < 0:
            raise ValueError("negative")
        return {"scores": mean_scores(batch)}

    with running_http(served(model=model)) as server:
        results = list(opened(server.address).predict_batches(batches(3)))

    assert [len(result.input_ids) for result in results] == [0, 2, 2]
    assert all("negative" in failure.message for failure in results[0].failures)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r["outputs"][0]["data"].pop(), "bytes for shape [2, 3]"),
        (lambda r: r["outputs"][0].pop("data"), "has neither data nor binary_data_size"),
        (lambda r: r["outputs"][0].update(data=[["a"] * 3] * 2), "is not a list of FP32"),
        (lambda r: r["outputs"][0].update(parameters={"binary_data_size": 9}), "but 0 bytes are left"),
        (lambda r: r["outputs"][0].update(name="others"), 'did not return the requested output "scores"'),
        (lambda r: r["outputs"][0].update(datatype="BF16"), "datatype BF16 is neither numeric nor BYTES"),
        (lambda r: r["outputs"][0].update(shape=[-1, 3]), "shape is not a list of whole numbers"),
        (lambda r: r["outputs"][0].update(shape=[3, 2]), "for a batch of 2 inputs"),
        (lambda r: r.update(outputs=None), "has no list of outputs"),
    ],
)
def test_an_answer_that_makes_no_sense_fails_the_batch(opened, change, said):
    with running_http(served(change=change)) as server:
        result = opened(server.address).predict_tensor(tensors(2))

    assert result.input_ids == ()
    assert said in result.failures[0].message


def test_the_secret_and_the_place_in_the_trace_go_with_the_requests(opened):
    fails = {"ModelInfer": (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")}
    mean, recorder = served(), SpanRecorder(TraceContext.new(), TraceLevel.MODEL_TRACE)
    with running_http(mean) as server:
        session = opened(server.address, secret="open sesame")
        list(session.predict_batches(batches(1), TraceScope.top(recorder)))
        mean.fails.update(fails)
        list(session.predict_batches(batches(1), TraceScope.top(recorder)))
        session.predict_tensor(tensors(1))

    [first, second, untraced] = [headers for headers, _ in mean.calls]
    assert first["authorization"] == untraced["authorization"] == "Bearer open sesame"
    sent = [TraceContext.parse(headers["traceparent"]) for headers in (first, second)]
    assert {context.trace_id for context in sent} == {recorder.context.trace_id}
    assert "traceparent" not in untraced
    chunks = recorder.take()
    kinds = [chunk.kinds[number] for chunk in chunks for number in chunk.kind]
    calls = [dict(kind.attributes) for kind in kinds if kind.role is SpanRole.CLIENT]
    shared = {
        "http.request.method": "POST",
        "url.template": "/v2/models/{model}/infer",
        "server.address": "127.0.0.1",
        "server.port": int(server.address.rpartition(":")[2]),
    }
    assert calls == [
        {**shared, "http.response.status_code": 200},
        {**shared, "http.response.status_code": 429, "error.type": "429"},
    ]
    assert {context.span_id for context in sent} <= {int(each) for chunk in chunks for each in chunk.span_id}


def test_a_server_that_hangs_is_lost_after_the_time_allowed(opened):
    hanging = served(holds={"ModelInfer"})
    with running_http(hanging) as server:
        session = opened(server.address, call_timeout_s=0.3)
        with pytest.raises(AgentError, match="did not answer in time"):
            session.predict_tensor(tensors(1))
        with KServeTarget(session, SMALL) as target:
            assert_all_failed(run(target, 5), 5, "did not answer in time")


def test_a_server_that_dies_ends_the_run_with_an_error(opened):
    dying = served(holds={"ModelInfer"})
    with running_http(dying) as server:
        session = opened(server.address)
        threading.Thread(target=lambda: (dying.begun.wait(DEADLINE_S), server.die())).start()
        with pytest.raises(AgentError, match="the connection was lost; the server was stopped"):
            session.predict_tensor(tensors(1))


def test_an_idle_connection_that_may_be_closed_is_not_used_again(opened, monkeypatch):
    monkeypatch.setattr(sockets, "MAX_IDLE_S", -1.0)
    with running_http(served()) as server:
        session = opened(server.address)
        made = server.connections
        assert len(session.predict_tensor(tensors(1)).input_ids) == 1
        assert server.connections == made + 1


@FORMS
@pytest.mark.parametrize("inputs", [SMALL, READ], ids=["prepared", "read"])
def test_every_query_is_answered_once_with_its_own_input(opened, form, inputs):
    asked = loaded(parameters={"predict_ns": 1234, "queue_ns": 55})
    with running_http(asked, **form) as server, KServeTarget(opened(server.address), inputs) as target:
        log = run(target, 40)
        again = run(target, 4)

    queries = log.queries()
    assert (queries.count(Outcome.ANSWERED), queries.repeated) == (40, 0), log.reasons
    assert again.queries().count(Outcome.ANSWERED) == 4
    assert set(queries.predict_ns.tolist()) == {1234}
    assert set(queries.batch_ns.tolist()) == {-1}
    sent = [np.mean(request["inputs"][0]["data"]) for _, request in asked.calls]
    assert len({round(float(value), 3) for value in sent}) == 3
    assert all(request["inputs"][0]["shape"] == [1, 1, SIDE, SIDE] for _, request in asked.calls)


def test_queries_in_flight_take_one_thread_and_are_cancelled_at_the_end(opened):
    hanging = loaded(holds={"ModelInfer"})
    with running_http(hanging) as server, KServeTarget(opened(server.address), SMALL) as target:
        log = begin(target, 20)
        assert [t.name for t in threading.enumerate()].count("http-load") == 1
        assert hanging.begun.wait(DEADLINE_S)
        target.end(0.01)
        hanging.holds.clear()
        hanging.release.set()
        assert run(target, 4).queries().count(Outcome.ANSWERED) == 4

    assert log.queries().count(Outcome.WAITING) == 20
    assert "http-load" not in {thread.name for thread in threading.enumerate()}


def test_a_server_that_dies_fails_each_query_once(opened):
    dying = loaded(holds={"ModelInfer"})
    with running_http(dying) as server, KServeTarget(opened(server.address), SMALL) as target:
        log = begin(target, 20)
        assert dying.begun.wait(DEADLINE_S)
        server.die()
        target.end(DEADLINE_S)

    queries = log.queries()
    assert (queries.count(Outcome.FAILED), queries.repeated) == (20, 0)
    assert all(reason.startswith("server 127.0.0.1:") for reason in log.reasons)


def test_a_status_without_success_fails_its_query(opened):
    full = loaded(fails={"ModelInfer": (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")})
    with running_http(full) as server, KServeTarget(opened(server.address), SMALL) as target:
        assert_all_failed(run(target, 5), 5, "resource exhausted: the queue is full")


def test_closing_fails_what_is_in_flight_once_and_leaves_the_session_open(opened):
    hanging = loaded(holds={"ModelInfer"})
    with running_http(hanging) as server:
        session = opened(server.address)
        target = KServeTarget(session, SMALL)
        log = begin(target, 10)
        assert hanging.begun.wait(DEADLINE_S)
        target.close()
        target.close()
        hanging.release.set()
        assert_all_failed(log, 10, "the load target was closed while the query was in flight")
        assert session.predict_tensor(SMALL.rows[1]).input_ids == ("0",)


def test_more_queries_than_may_be_in_flight_fail(opened, monkeypatch):
    monkeypatch.setattr(call_target, "MAX_IN_FLIGHT", 2)
    hanging = loaded(holds={"ModelInfer"})
    with running_http(hanging) as server, KServeTarget(opened(server.address), SMALL) as target:
        log = begin(target, 5)
        hanging.release.set()
        target.end(DEADLINE_S)

    assert log.queries().outcome.tolist() == [Outcome.ANSWERED] * 2 + [Outcome.FAILED] * 3


@contextmanager
def answering(content):
    """A server whose every answer is the bytes, after which it closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(content)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"kserve+http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the connection was lost"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "the connection was lost"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP/1.1 there"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", "does not speak HTTP/1.1 there"),
        (b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n", "is not ready"),
        (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n[]",
            "answered something other than ServerMetadataResponse",
        ),
    ],
)
def test_what_is_no_such_server_is_said(opened, content, said):
    with answering(content) as address, pytest.raises(AgentError) as raised:
        opened(address)

    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


RESPONSE = b'HTTP/1.1 200 OK\r\nX-One: a:b\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKS = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n4\r\n{"a"\r\n3;x=y\r\n:1}\r\n0\r\nX: y\r\n\r\n'
)


@pytest.mark.parametrize("content", [RESPONSE, CHUNKS, b"HTTP/1.1 100 Continue\r\n\r\n" + RESPONSE])
@pytest.mark.parametrize("size", [1, 2, 5, 40, 1000])
def test_a_response_is_complete_with_its_last_byte_however_it_arrives(content, size):
    incoming = Incoming()
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert [incoming.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert incoming.keeps_open
    response = Response.parse(incoming.content)
    assert (response.status, bytes(response.body)) == (200, b'{"a":1}')


@pytest.mark.parametrize(
    ("content", "keeps_open"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", False),
        (RESPONSE + b"more", False),
    ],
)
def test_a_connection_is_kept_only_where_both_sides_can(content, keeps_open):
    incoming = Incoming()
    assert incoming.feed(content)
    assert incoming.keeps_open is keeps_open


def test_a_response_without_a_length_ends_with_the_connection():
    incoming = Incoming()
    assert not incoming.feed(b"HTTP/1.1 200 OK\r\n\r\nab")
    assert not incoming.feed(b"c")
    assert incoming.end()
    assert bytes(Response.parse(incoming.content).body) == b"abc"
    assert not Incoming().end()


@pytest.mark.parametrize(
    "content",
    [b"GET / HTTP/1.1\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"\x00\x00\x12\x04", b"HTTP/1.1 " + b"x" * 70_000],
)
def test_what_is_no_response_is_refused_at_once(content):
    with pytest.raises(NoHttpError):
        Incoming().feed(content)


def test_json_keeps_every_value_of_a_float(opened):
    values = np.array([np.pi, 1e-45, np.finfo(np.float32).max, 0.1], np.float32).reshape(1, 1, 2, 2)
    kept = []

    def model(batch):
        kept.append(batch)
        return {"scores": mean_scores(batch)}

    with running_http(served(model=model)) as server:
        session = opened(server.address)
        batch = np.broadcast_to(values.reshape(-1)[0], (1, *IMAGE)).copy()
        batch.reshape(-1)[:4] = values.reshape(-1)
        session.predict_tensor(batch)
    assert kept[-1].tobytes() == batch.tobytes()
    assert DATATYPES["FP32"].dtype == kept[-1].dtype
