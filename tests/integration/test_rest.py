"""The Open Inference Protocol over HTTP with a fake framework, called by tritonclient and by hand."""

import gzip
import json
import logging
import zlib
from contextlib import closing

import numpy as np
import pytest
import tritonclient.http as triton
from fake_framework import SIDE, mean_scores, wait_for
from open_inference import images
from rest_client import HEADER_LENGTH, Rest, binary_input, json_input, scores_of
from tritonclient.utils import InferenceServerException

from inferometer.agent import __version__
from inferometer.agent.server.admission import Limits
from inferometer.agent.server.rest.routes import ROUTES
from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

DTYPES = {"FP32": "float32", "FP16": "float16", "UINT8": "uint8", "INT32": "int32", "INT64": "int64"}
TENSOR_MANIFEST = """
name: Echo-{dtype}
framework: {{name: Fake, version: "*"}}
inputs: [{{type: tensor, parameters: {{dimensions: [3], element_type: {dtype}}}}}]
output: {{type: raw}}
model: {{architecture: echo}}
"""


def asking(agent):
    return closing(Rest(agent.http_url))


def client_of(agent):
    return triton.InferenceServerClient(agent.http_url.removeprefix("http://"))


@pytest.fixture(scope="module")
def agent(start_shared_agent, shared_folder):
    for dtype in DTYPES.values():
        (shared_folder / f"{dtype}.yml").write_text(TENSOR_MANIFEST.format(dtype=dtype), encoding="utf-8")
    return start_shared_agent(http_port=0)


@pytest.fixture
def client(agent):
    with client_of(agent) as found:
        yield found


@pytest.fixture
def ask(agent):
    with asking(agent) as found:
        yield found


@pytest.fixture
def fresh(start_agent):
    """Both clients of an agent that nobody else asks."""
    agent = start_agent(http_port=0)
    with client_of(agent) as client, asking(agent) as ask:
        yield client, ask


def tensor_of(array, name="data", datatype="FP32", binary=True):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def refused(call, *arguments, **options):
    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    assert "\n" not in error.value.message()
    return error.value.status(), error.value.message()


def test_server_is_live_ready_and_says_what_it_is(client, ask):
    assert client.is_server_live()
    assert client.is_server_ready()
    found = client.get_server_metadata()
    assert (found["name"], found["version"]) == ("inferometer", __version__)
    assert {"binary_tensor_data", "model_configuration", "statistics"} <= set(found["extensions"])
    for state in ("live", "ready"):
        answer = ask.get(f"/v2/health/{state}")
        assert (answer.status, answer.body) == (200, b"")


def test_metadata_says_what_the_model_takes_and_gives(client, ask):
    wanted = {
        "name": "Mean",
        "versions": ["1"],
        "platform": "fake",
        "inputs": [{"name": "data", "datatype": "FP32", "shape": [-1, 1, SIDE, SIDE]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
    }
    assert client.get_model_metadata("Mean") == wanted
    assert ask.get("/v2/models/Mean/versions/1.0").json == wanted
    assert ask.get("/v2/models/Me%61n%40Fake").json == {**wanted, "name": "Mean@Fake"}


def test_configuration_has_names_of_types_and_numbers(start_agent):
    batching = BatchingOptions(8, max_queue_delay_ms=1.5, preferred_batch_sizes=(4, 8), instances=3)
    with client_of(start_agent(http_port=0, serving=ServingOptions(batching=batching))) as client:
        config = client.get_model_config("Mean", "1")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("Mean", "fake", 8)
    [item] = config["input"]
    assert (item["data_type"], item["format"], item["dims"]) == ("TYPE_FP32", "FORMAT_NCHW", [1, SIDE, SIDE])
    assert config["output"][0]["dims"] == [3]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 1500
    [group] = config["instance_group"]
    assert (group["count"], group["kind"]) == (3, "KIND_CPU")
    assert config["parameters"]["framework"] == {"string_value": "Fake"}


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("binary_out", [None, True, False], ids=["default out", "binary out", "JSON out"])
def test_tensor_is_predicted_in_every_form(client, binary_in, binary_out):
    batch = images(3)
    wanted = None if binary_out is None else [triton.InferRequestedOutput("scores", binary_out)]
    answer = client.infer(
        "Mean", [tensor_of(batch, binary=binary_in)], "1", outputs=wanted, request_id="seven"
    )
    np.testing.assert_array_equal(answer.as_numpy("scores"), mean_scores(batch))
    head = answer.get_response()
    assert (head["model_name"], head["model_version"], head["id"]) == ("Mean", "1", "seven")
    assert head["parameters"]["batch_size"] == 3
    assert head["parameters"]["predict_ns"] > 0
    assert ("data" in head["outputs"][0]) == (binary_out is False)


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_every_datatype_of_models_comes_back_as_it_was_sent(ask, datatype, binary):
    dtype = np.dtype(DTYPES[datatype])
    ends = (np.iinfo if dtype.kind in "iu" else np.finfo)(dtype)
    batch = np.array([[ends.min, 0, ends.max], [1, 2, 3]], dtype)
    item = (
        binary_input(batch, datatype, "input") if binary else json_input(batch, datatype, "input", flat=False)
    )
    metadata = ask.get(f"/v2/models/Echo-{dtype.name}").json
    item["name"] = metadata["inputs"][0]["name"]
    head = {"inputs": [item], "parameters": {"binary_data_output": binary}}
    answer = ask.infer(head, *([batch.tobytes()] if binary else []), model=f"Echo-{dtype.name}")
    [output] = answer.json["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [2, 3])
    if binary:
        assert answer.binary == batch.tobytes()
        assert output["parameters"] == {"binary_data_size": batch.nbytes}
        assert answer.headers["content-type"] == "application/octet-stream"
    else:
        assert np.array(output["data"], dtype).tobytes() == batch.tobytes()
        assert answer.headers["content-type"] == "application/json"


def test_binary_data_may_begin_anywhere_in_the_body(client):
    batch = images(2)
    for length in range(8):
        answer = client.infer("Echo", [tensor_of(batch)], request_id="x" * length)
        np.testing.assert_array_equal(answer.as_numpy("data"), batch)


def test_large_tensor_comes_back_in_chunks_too(client, ask):
    batch = images(2, side=512)
    np.testing.assert_array_equal(client.infer("Large", [tensor_of(batch)]).as_numpy("data"), batch)
    head = json.dumps({"inputs": [binary_input(batch)], "parameters": {"binary_data_output": True}}).encode()
    content = head + batch.tobytes()
    chunks = iter([content[:10], content[10:70_000], content[70_000:]])
    answer = ask("POST", "/v2/models/Large/infer", chunks, {HEADER_LENGTH: str(len(head))})
    assert answer.binary == batch.tobytes()


def test_body_may_be_the_one_input_alone(ask):
    batch = images(3)
    answer = ask("POST", "/v2/models/Mean/infer", batch.tobytes(), {HEADER_LENGTH: "0"})
    np.testing.assert_array_equal(scores_of(answer), mean_scores(batch))
    answer = ask("POST", "/v2/models/Mean/infer", batch.tobytes()[1:], {HEADER_LENGTH: "0"})
    assert (answer.status, "191 bytes" in answer.error) == (400, True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_are_compressed_where_it_is_asked_for(ask, client, encoding):
    batch = np.zeros((2, 1, 512, 512), np.float32)
    answer = client.infer(
        "Large",
        [tensor_of(batch)],
        request_compression_algorithm=encoding,
        response_compression_algorithm=encoding,
    )
    np.testing.assert_array_equal(answer.as_numpy("data"), batch)
    accepting = {"Accept-Encoding": f"br;q=1, {encoding};q=0.5"}
    answer = ask.infer({"inputs": [json_input(batch[:, :, :8])], "x": 1}, model="Large", headers=accepting)
    assert answer.status == 400  # another shape
    found = ask("POST", "/v2/repository/index", None, accepting)
    assert found.headers["content-encoding"] == encoding
    inflate = gzip.decompress if encoding == "gzip" else zlib.decompress
    assert {"Mean", "Echo"} <= {model["name"] for model in json.loads(inflate(found.body))}


def test_what_does_not_shrink_is_sent_as_it_is(ask):
    batch = images(1, side=512)
    head = {"inputs": [binary_input(batch)], "parameters": {"binary_data_output": True}}
    answer = ask.infer(head, batch.tobytes(), model="Large", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert answer.binary == batch.tobytes()


def test_best_classes_come_instead_of_scores(client, ask):
    batch = np.full((1, 1, SIDE, SIDE), 2, np.float32)  # whose scores are 2, 3 and -2
    for binary in (True, False):
        best = triton.InferRequestedOutput("scores", binary_data=binary, class_count=2)
        found = client.infer("Mean", [tensor_of(batch)], outputs=[best]).as_numpy("scores")
        texts = [text if isinstance(text, bytes) else text.encode() for text in found[0]]
        assert texts == [b"3.000000:1", b"2.000000:0"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("Meam",), 'did you mean "Mean"?'),
        (("Mean", "7"), "it has: 1.0"),
        (("Mean@Fakir",), 'did you mean "Fake"?'),
    ],
    ids=["name", "version", "framework"],
)
def test_unknown_model_is_refused_alike_by_every_route(client, arguments, part):
    name, version = (*arguments, "")[:2]
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        status, message = refused(call, name, version)
        assert (status, part in message) == ("404", True)
    status, message = refused(client.infer, name, [tensor_of(images(1))], version)
    assert (status, part in message) == ("404", True)
    assert not client.is_model_ready(name, version)


def test_framework_that_fails_is_told_and_the_server_goes_on(client, caplog):
    status, message = refused(client.infer, "Failing", [tensor_of(images(1))])
    assert (status, "the fake framework failed" in message) == ("500", True)
    status, message = refused(client.infer, "Crashing", [tensor_of(images(1))])
    assert (status, "ModelInfer failed in the agent" in message) == ("500", True)
    assert "a secret detail" not in message
    assert "ZeroDivisionError" in caplog.text
    client.infer("Mean", [tensor_of(images(1))])


def test_models_are_listed_loaded_and_unloaded(fresh):
    client, ask = fresh
    states = {model["name"]: model["state"] for model in client.get_model_repository_index()}
    assert states["Mean"] == "UNAVAILABLE"
    client.load_model("Mean", config='{"parameters": {"seed": {"string_value": "3"}}}')
    assert client.is_model_ready("Mean")
    listed = ask("POST", "/v2/repository/index", {"ready": True}).json
    assert listed == [{"name": "Mean", "version": "1", "state": "READY", "reason": ""}]
    client.unload_model("mean", unload_dependents=True)
    assert not client.is_model_ready("Mean")
    status, message = refused(client.load_model, "Mean", config='{"input": [{}]}')
    assert (status, "max_batch_size" in message) == ("400", True)
    assert ask("POST", "/v2/repository/other/index").status == 400


def test_statistics_are_numbers(fresh):
    client, ask = fresh
    for count in (1, 3):
        client.infer("Mean", [tensor_of(images(count))])
    refused(client.infer, "Failing", [tensor_of(images(1))])
    [found] = client.get_inference_statistics("Mean", "1")["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (4, 2)
    stats = found["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]) == (2, {"count": 0, "ns": 0})
    assert stats["success"]["ns"] >= stats["compute_infer"]["ns"] > 0
    assert [item["batch_size"] for item in found["batch_stats"]] == [1, 3]
    every = ask.get("/v2/models/stats").json["model_stats"]
    assert {item["name"] for item in every} == {"Mean", "Failing"}


@pytest.fixture
def go(shared_folder):
    yield shared_folder / "go"
    (shared_folder / "go").unlink()


def test_timeout_of_a_request_is_honoured(client, go):
    status, message = refused(client.infer, "Waiting", [tensor_of(images(1))], timeout=100_000)
    go.touch()
    assert (status, "model Waiting 1.0" in message) == ("504", True)
    client.infer("Waiting", [tensor_of(images(1))], timeout=2**62)


def test_deadline_in_a_header_ends_the_request(ask, go):
    head = {"inputs": [json_input(images(1))]}
    answer = ask.infer(head, model="Waiting", headers={"grpc-timeout": "100m"})
    go.touch()
    assert (answer.status, "deadline" in answer.error) == (504, True)
    assert ask.infer(head, model="Waiting", headers={"grpc-timeout": "30S"}).status == 200
    assert "grpc-timeout" in ask.infer(head, headers={"grpc-timeout": "soon"}).error


def test_secret_is_asked_of_every_route_but_health(start_agent):
    agent = start_agent(http_port=0, secret="open sesame")
    ask = Rest(agent.http_url)
    for verb, path in (
        ("GET", "/v2"),
        ("GET", "/v2/openapi.json"),
        ("GET", "/v2/models/Mean"),
        ("GET", "/v2/models/Mean/ready"),
        ("GET", "/v2/models/Mean/config"),
        ("GET", "/v2/models/stats"),
        ("POST", "/v2/models/Mean/infer"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/Mean/load"),
        ("GET", "/made/up"),
    ):
        answer = ask(verb, path, headers={"Authorization": "Bearer open sesam"})
        assert (answer.status, "requires a secret" in answer.error) == (401, True)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert ask.get("/v2/health/live").status == ask.get("/v2/health/ready").status == 200
    right = {"Authorization": "Bearer open sesame"}
    assert ask.infer({"inputs": [json_input(images(1))]}, headers=right).status == 200
    ask.close()


def test_a_client_over_its_limit_is_told_when_to_come_back(start_agent):
    ask = Rest(start_agent(http_port=0, limits=Limits(max_client_rps=0.01, client_burst=1)).http_url)
    assert ask.get("/v2").status == 200
    answer = ask.get("/v2")
    assert (answer.status, "no more requests from this client" in answer.error) == (429, True)
    assert 0 < int(answer.headers["retry-after"]) <= 100
    assert ask.get("/v2/health/live").status == 200
    ask.close()


def test_pages_of_other_hosts_are_refused(ask):
    assert ask.get("/v2", Origin="http://example.org").status == 403
    assert ask.get("/v2", Origin=f"http://{ask.address}").status == 200


def test_site_whose_name_leads_to_a_loopback_agent_is_refused(ask):
    port = ask.address.rpartition(":")[2]
    evil = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
    head = {"inputs": [json_input(images(1))]}
    for refused in (
        ask.get("/v2", **evil),
        ask.infer(head, headers=evil),
        ask.get("/v2", Host="evil.example"),
    ):
        assert (refused.status, "--allowed_hosts" in refused.error) == (421, True)
    assert ask.get("/v2/health/live", Host="evil.example").status == 200
    for own in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", f"agent.localhost:{port}"):
        assert ask.infer(head, headers={"Host": own, "Origin": f"http://{own}"}).status == 200


@pytest.mark.parametrize(
    "options", [{"secret": "open sesame"}, {"host": "0.0.0.0", "insecure": True}, {"allowed_hosts": ("*",)}]
)
def test_agent_that_no_site_can_use_or_that_has_names_of_others_answers_to_any(start_agent, options):
    agent = start_agent(http_port=0, **options)
    ask = Rest(f"http://127.0.0.1:{agent.http_url.rpartition(':')[2]}")
    answer = ask.get("/v2", Host="agent-1:8000", Authorization="Bearer open sesame")
    assert answer.status == 200
    ask.close()


def test_allowed_hosts_are_the_names_of_a_proxy(start_agent):
    agent = start_agent(http_port=0, secret="open sesame", allowed_hosts=("Models.example.org",))
    ask = Rest(agent.http_url)
    right = {"Authorization": "Bearer open sesame"}
    assert ask.get("/v2", Host="models.example.org:443", **right).status == 200
    assert ask.get("/v2", Origin="https://models.example.org", **right).status == 200
    assert ask.get("/v2", Host="other.example.org", **right).status == 421
    assert ask.get("/v2", Host="other.example.org").status == 401
    ask.close()


def test_requests_are_logged_and_counted_by_their_route(start_agent, caplog):
    agent = start_agent(http_port=0, metrics_port=0)
    ask = Rest(agent.http_url)
    with caplog.at_level(logging.INFO, logger="inferometer"):
        answer = ask.infer({"inputs": [json_input(images(1))]}, headers={"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        ask.get("/made/up")
        ask.get("/v2/health/live")
        wait_for(lambda: "unknown INVALID_ARGUMENT" in caplog.text)
    assert "POST /v2/models/{model}/infer OK" in caplog.text
    assert "health" not in caplog.text
    ask.close()
    metrics = Rest(agent.metrics_url.removesuffix("/metrics"))
    sample = 'inferometer_requests_total{code="OK",method="POST /v2/models/{model}/infer",model="Mean"} 1.0'
    assert sample in metrics.get("/metrics").body.decode()
    metrics.close()


def test_description_of_the_routes_has_each_of_them(ask):
    found = ask.get("/v2/openapi.json").json
    described = {
        (verb.upper(), path) for path, item in found["paths"].items() for verb in item if verb != "parameters"
    }
    assert described >= {(route.verb, route.path) for route in ROUTES}
    routes = {(route.verb, route.path) for route in ROUTES}
    shorter = [(verb, path.replace("/versions/{version}", "")) for verb, path in described - routes]
    assert {(verb, path.replace("/region/{region}", "")) for verb, path in shorter} <= routes
    references = set(_references(found))
    assert {reference.rpartition("/")[2] for reference in references} == set(found["components"]["schemas"])


def _references(value):
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        yield from _references(item)
