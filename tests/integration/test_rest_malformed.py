"""Requests over HTTP that are wrong: each is refused in one line, and the agent answers the next."""

import gzip
import json
import zlib

import numpy as np
import pytest
from fake_framework import SIDE, mean_scores
from open_inference import images
from rest_client import (
    HEADER_LENGTH,
    Rest,
    binary_input,
    connect,
    json_input,
    raw_request,
    received,
    scores_of,
)

MOST_BYTES = 1024 * 1024
ONE = images(1)
SHAPE = [1, 1, SIDE, SIDE]


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(http_port=0, max_message_bytes=MOST_BYTES)


@pytest.fixture
def ask(agent):
    rest = Rest(agent.http_url)
    yield rest
    answer = rest.infer({"inputs": [json_input(ONE)]})
    np.testing.assert_array_equal(scores_of(answer), mean_scores(ONE))
    rest.close()


def item(**fields):
    return {"name": "data", "datatype": "FP32", "shape": SHAPE, "data": [0.5] * 16, **fields}


def without(key):
    return {name: value for name, value in item().items() if name != key}


@pytest.mark.parametrize(
    ("head", "part"),
    [
        ([], "not an object"),
        ({"inputs": {}}, "inputs is not a list of objects"),
        ({"inputs": [1]}, "inputs is not a list of objects"),
        ({}, 'found 0 inputs "data"; it takes one'),
        ({"inputs": [item(), item()]}, 'found 2 inputs "data"'),
        ({"inputs": [without("name")]}, "an input: has no name"),
        ({"inputs": [item(name=7)]}, "an input: name is not a string"),
        ({"inputs": [item(name="date")]}, 'did you mean "data"?'),
        ({"inputs": [item(name="\ud800")]}, "not Unicode"),
        ({"inputs": [without("datatype")]}, "has no datatype"),
        ({"inputs": [item(datatype="FP33")]}, 'datatype "FP33" is not known'),
        ({"inputs": [item(datatype="FP64")]}, "takes FP32"),
        ({"inputs": [item(datatype="BF16")]}, "has no form in JSON"),
        ({"inputs": [item(datatype="BYTES")]}, "an element that is not a string"),
        ({"inputs": [item(datatype="BYTES", data=["x"] * 16)]}, "takes FP32"),
        ({"inputs": [without("shape")]}, "shape is not a list of whole numbers"),
        ({"inputs": [item(shape=[1.0, 1, SIDE, SIDE])]}, "shape is not a list of whole numbers"),
        ({"inputs": [item(shape=[2**64, 1, SIDE, SIDE])]}, "shape is not a list of whole numbers"),
        ({"inputs": [item(shape=[1] * 40)]}, "40 axes"),
        ({"inputs": [item(shape=[1, 16])]}, "found shape [1, 16]"),
        ({"inputs": [item(shape=[-1, 1, SIDE, SIDE])]}, "16 elements in data for a shape that takes -16"),
        ({"inputs": [item(shape=[2**40, 2**40])]}, "16 elements in data"),
        ({"inputs": [item(data=[0.5] * 15)]}, "15 elements in data for a shape that takes 16"),
        ({"inputs": [item(data=[[0.5] * 8, [0.5] * 7])]}, "lists of equal length"),
        ({"inputs": [item(data=["0.5"] * 16)]}, "not a number"),
        ({"inputs": [item(data=[None] * 16)]}, "not a number"),
        ({"inputs": [item(data=[1e300] * 16)]}, "too large for FP32"),
        ({"inputs": [item(data=[10**400] * 16)]}, "not a number"),
        ({"inputs": [item(data="0.5")]}, "data is not a list"),
        ({"inputs": [without("data")]}, "has no elements"),
        ({"inputs": [item(parameters=[])]}, "parameters is not an object"),
        ({"inputs": [item(parameters={"x": [1]})]}, "parameter x is not a boolean"),
        ({"inputs": [item(parameters={"x": 2**64})]}, "parameter x is not a boolean"),
        ({"inputs": [item(parameters={"binary_data_size": 64})]}, "give one of them"),
        ({"inputs": [without("data") | {"parameters": {"binary_data_size": 64}}]}, "says 64 bytes"),
        (
            {"inputs": [without("data") | {"parameters": {"shared_memory_region": "x"}}]},
            "shared memory is not offered",
        ),
        ({"inputs": [item()], "id": 7}, "id is not a string"),
        ({"inputs": [item()], "parameters": {"timeout": "1 s"}}, "timeout must be a whole number"),
        ({"inputs": [item()], "parameters": {"binary_data_output": 1}}, "neither true nor false"),
        ({"inputs": [item()], "outputs": [{"name": "score"}]}, 'did you mean "scores"?'),
        ({"inputs": [item()], "outputs": [{}]}, "an output: has no name"),
        ({"inputs": [item()], "outputs": [{"name": "scores"}] * 2}, "requested twice"),
        (
            {"inputs": [item()], "outputs": [{"name": "scores", "parameters": {"classification": 0}}]},
            "number of classes",
        ),
        (
            {"inputs": [item()], "outputs": [{"name": "scores", "parameters": {"binary_data": "yes"}}]},
            "neither true nor false",
        ),
    ],
)
def test_json_that_is_wrong_is_refused(ask, head, part):
    answer = ask.infer(head)
    assert answer.status == 400
    assert part in answer.error


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000])
def test_what_is_no_json_is_refused(ask, body):
    for path in ("/v2/models/Mean/infer", "/v2/repository/models/Mean/load"):
        if body or path.endswith("infer"):
            answer = ask("POST", path, body)
            assert (answer.status, answer.error.startswith("the request")) == (400, True)


@pytest.mark.parametrize(
    ("size", "sent", "part"),
    [
        (64, 63, "says 64 bytes, but the body has 63 more"),
        (64, 65, "has 65 bytes of binary data, but the inputs declare 64"),
        (60, 60, "60 bytes for shape"),
        (0, 0, "0 bytes for shape"),
        (0, 64, "has 64 bytes of binary data, but the inputs declare 0"),
        (2**62, 64, "says 4611686018427387904 bytes"),
        (2**70, 64, "not a number of bytes"),
        (-64, 64, "not a number of bytes"),
        (64.0, 64, "not a number of bytes"),
        (True, 64, "not a number of bytes"),
        ("64", 64, "not a number of bytes"),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(ask, size, sent, part):
    answer = ask.infer({"inputs": [binary_input(ONE, size=size)]}, bytes(sent), headers={"X-Size": str(size)})
    assert (answer.status, part in answer.error) == (400, True), answer.error


@pytest.mark.parametrize(
    ("length", "part"),
    [
        ("10", "is not JSON"),
        ("100000", "says 100000 bytes, but the body has"),
        ("999999999999999999", "but the body has"),
        ("9" * 30, "not a number of bytes"),
        ("-1", "not a number of bytes"),
        ("1.5", "not a number of bytes"),
        ("", "not a number of bytes"),
        ("٣", "not a number of bytes"),
        ("0", "bytes, and an input of"),
    ],
)
def test_wrong_lengths_of_the_json_are_refused(ask, length, part):
    head = {"inputs": [binary_input(ONE)]}
    answer = ask.infer(head, ONE.tobytes(), headers={HEADER_LENGTH: length.encode()})
    assert (answer.status, part in answer.error) == (400, True), answer.error


def test_body_that_is_too_large_is_refused_however_it_is_sent(ask, agent):
    content = bytes(MOST_BYTES + 1)
    assert ask("POST", "/v2/models/Mean/infer", content).status == 413
    answer = ask("POST", "/v2/models/Mean/infer", iter([content[:1000], content[1000:]]))
    assert (answer.status, f"more than {MOST_BYTES} bytes" in answer.error) == (413, True)
    bomb = zlib.compress(bytes(200 * MOST_BYTES))
    assert len(bomb) < MOST_BYTES
    answer = ask("POST", "/v2/models/Mean/infer", bomb, {"Content-Encoding": "deflate"})
    assert (answer.status, f"more than {MOST_BYTES} bytes" in answer.error) == (413, True)
    with connect(agent.http_url) as connection:  # before any of it is sent
        connection.sendall(
            raw_request("POST /v2/models/Mean/infer HTTP/1.1\nHost: localhost\nContent-Length: 99999999999")
        )
        assert received(connection, b"}").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("encoding", "change", "status"),
    [
        ("gzip", lambda content: content, 400),
        ("gzip", lambda content: gzip.compress(content)[:-9], 400),
        ("gzip", lambda content: gzip.compress(content) + b"x", 400),
        ("deflate", lambda content: gzip.compress(content), 400),
        ("br", lambda content: content, 415),
        ("gzip", lambda content: gzip.compress(content), 200),
        ("x-gzip", lambda content: gzip.compress(content), 200),
        ("Identity", lambda content: content, 200),
    ],
)
def test_damaged_and_unknown_encodings_are_refused(ask, encoding, change, status):
    content = json.dumps({"inputs": [json_input(ONE)]}).encode()
    answer = ask("POST", "/v2/models/Mean/infer", change(content), {"Content-Encoding": encoding})
    assert answer.status == status
    if status == 415:
        assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/", 404),
        ("GET", "/v3", 404),
        ("GET", "/v2/models//infer", 404),
        ("GET", "/v2/models/Mean/versions/infer/x", 404),
        ("GET", "/v2/systemsharedmemory/region/status", 404),
        ("POST", "/v2/models/Mean", 405),
        ("GET", "/v2/models/Mean/infer", 405),
        ("DELETE", "/v2", 405),
        ("HEAD", "/v2/health/live", 405),
        ("GET", "/v2/models/%FF%00%0d%0a", 404),
        ("GET", "/v2/models/" + "x" * 8_000, 404),
    ],
)
def test_paths_and_verbs_that_are_not_there(ask, verb, path, status):
    answer = ask(verb, path)
    assert answer.status == status
    assert verb == "HEAD" or answer.error
    if status == 405:
        assert answer.headers["allow"] in {"GET", "POST"}


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"nonsense\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        raw_request("POST /v2/models/Mean/infer HTTP/1.1\nContent-Length: x"),
        raw_request("POST /v2/models/Mean/infer HTTP/1.1\nContent-Length: 1\nContent-Length: 2"),
        raw_request("POST /v2/models/Mean/infer HTTP/1.1\nTransfer-Encoding: chunked", b"zz\r\n"),
        raw_request("POST /v2 HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 3", b"0\r\n\r\n"),
    ],
    ids=["TLS", "no HTTP", "version", "no length", "two lengths", "chunk", "length and chunks"],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(agent, ask, content):
    with connect(agent.http_url) as connection:
        connection.sendall(content)
        assert received(connection).startswith(b"HTTP/1.1 400")
