"""Tensors in shared memory over HTTP, with tritonclient and its segments, over real sockets."""

import os
import secrets

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from fake_framework import SIDE, mean_scores
from open_inference import images
from rest_client import Rest, binary_input, json_input
from tritonclient.utils import InferenceServerException

INPUT_BYTES = SIDE * SIDE * 4
SCORES_BYTES = 3 * 4
OUTPUT_AT = 8 * INPUT_BYTES
SIZE = OUTPUT_AT + 8 * INPUT_BYTES


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(http_port=0, shared_memory=True)


@pytest.fixture
def client(agent):
    with triton.InferenceServerClient(agent.http_url.removeprefix("http://")) as found:
        yield found


@pytest.fixture
def ask(agent):
    rest = Rest(agent.http_url)
    yield rest
    rest.close()


@pytest.fixture
def segment():
    found = shm.create_shared_memory_region("region", f"/test-{secrets.token_hex(8)}", SIZE)
    yield found
    shm.destroy_shared_memory_region(found)


@pytest.fixture
def region(client, segment):
    client.register_system_shared_memory("region", segment._shm_key, SIZE)
    yield segment
    client.unregister_system_shared_memory()


def in_region(batch, offset=0, name="region", size=None):
    tensor = triton.InferInput("data", list(batch.shape), "FP32")
    tensor.set_shared_memory(name, batch.nbytes if size is None else size, offset)
    return tensor


def output_in_region(output, size, offset=OUTPUT_AT, name="region"):
    found = triton.InferRequestedOutput(output)
    found.set_shared_memory(name, size, offset)
    return found


def sent(batch):
    tensor = triton.InferInput("data", list(batch.shape), "FP32")
    tensor.set_data_from_numpy(batch)
    return tensor


def refused(call, *arguments, **options):
    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    assert "\n" not in error.value.message()
    return int(error.value.status()), error.value.message()


def test_status_describes_what_is_registered(client, segment):
    assert client.get_system_shared_memory_status() == []
    client.register_system_shared_memory("a b", segment._shm_key, 100, offset=28)
    client.register_system_shared_memory("b", segment._shm_key, SIZE)
    [found] = client.get_system_shared_memory_status("a b")
    assert found == {"name": "a b", "key": segment._shm_key, "offset": 28, "byte_size": 100}
    assert len(client.get_system_shared_memory_status()) == 2

    client.unregister_system_shared_memory("b")
    assert [found["name"] for found in client.get_system_shared_memory_status()] == ["a b"]
    client.unregister_system_shared_memory()
    assert client.get_system_shared_memory_status() == []
    assert refused(client.get_system_shared_memory_status, "b")[0] == 404


@pytest.mark.parametrize("offset", [0, 3, INPUT_BYTES])
@pytest.mark.parametrize("count", [1, 4])
def test_input_and_output_lie_in_the_region(client, region, offset, count):
    batch, size = images(count), count * SCORES_BYTES
    shm.set_shared_memory_region(region, [batch], offset)
    answer = client.infer(
        "Mean", [in_region(batch, offset)], outputs=[output_in_region("scores", size, OUTPUT_AT + offset)]
    )
    found = shm.get_contents_as_numpy(region, np.float32, [count, 3], OUTPUT_AT + offset)
    np.testing.assert_array_equal(found, mean_scores(batch))
    [output] = answer.get_response()["outputs"]
    assert output == {"name": "scores", "datatype": "FP32", "shape": [count, 3]}  # as perf_analyzer wants it


def test_only_the_input_or_only_the_output_may_lie_there(client, region):
    batch = images(2)
    shm.set_shared_memory_region(region, [batch])
    answer = client.infer("Mean", [in_region(batch)])
    np.testing.assert_array_equal(answer.as_numpy("scores"), mean_scores(batch))
    client.infer("Echo", [sent(batch)], outputs=[output_in_region("data", batch.nbytes)])
    found = shm.get_contents_as_numpy(region, np.float32, batch.shape, OUTPUT_AT)
    np.testing.assert_array_equal(found, batch)


@pytest.mark.parametrize(
    ("tensor", "status", "part"),
    [
        (in_region(images(1), name="other"), 404, '"other" is not registered'),
        (in_region(images(1), SIZE - INPUT_BYTES + 1), 400, "beyond"),
        (in_region(images(1), size=INPUT_BYTES - 1), 400, "63 bytes for shape"),
    ],
    ids=["unknown region", "beyond", "too few bytes"],
)
def test_an_input_that_is_not_in_its_region_is_refused(client, region, tensor, status, part):
    found, message = refused(client.infer, "Mean", [tensor])
    assert (found, part in message) == (status, True), message


@pytest.mark.parametrize(
    ("output", "status", "part"),
    [
        (output_in_region("scores", SCORES_BYTES, name="other"), 404, "not registered"),
        (output_in_region("scores", SCORES_BYTES, SIZE), 400, "beyond"),
        (output_in_region("scores", SCORES_BYTES - 1), 400, "takes 12 bytes"),
    ],
    ids=["unknown region", "beyond", "too small"],
)
def test_an_output_that_does_not_fit_into_its_region_is_refused(client, region, output, status, part):
    before = bytes(region._mpsm_handle.buf)
    found, message = refused(client.infer, "Mean", [sent(images(1))], outputs=[output])
    assert (found, part in message) == (status, True), message
    assert bytes(region._mpsm_handle.buf) == before


@pytest.mark.parametrize("kind", [json_input, binary_input])
def test_elements_beside_the_region_are_refused(ask, region, kind):
    batch = images(1)
    item = kind(batch)
    item["parameters"] = {**item.get("parameters", {}), "shared_memory_region": "region"}
    item["parameters"]["shared_memory_byte_size"] = batch.nbytes
    content = [batch.tobytes()] if kind is binary_input else []
    assert "has both elements and shared_memory_region" in ask.infer({"inputs": [item]}, *content).error


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"byte_size": 8},
        {"key": 7, "byte_size": 8},
        {"key": "/x"},
        {"key": "/x", "byte_size": "8"},
        {"key": "/x", "byte_size": 8, "offset": -1},
        {"key": "/x", "byte_size": 2**63},
        {"key": "/x", "byte_size": True},
        {"key": "\ud800", "byte_size": 8},
        {"key": "/../etc", "byte_size": 8},
    ],
    ids=str,
)
def test_registrations_that_are_wrong_are_refused(ask, body):
    answer = ask("POST", "/v2/systemsharedmemory/region/r/register", body)
    assert answer.status == 400
    assert answer.error
    assert ask.get("/v2/systemsharedmemory/status").json == []


def test_a_name_that_is_taken_and_a_segment_that_is_cut_are_refused(client, region):
    status, message = refused(client.register_system_shared_memory, "region", region._shm_key, SIZE)
    assert (status, "registered already" in message) == (400, True)
    os.truncate(f"/dev/shm{region._shm_key}", 0)
    status, message = refused(client.infer, "Mean", [in_region(images(1))])
    assert (status, "has 0 bytes" in message) == (400, True)
    assert client.is_server_live()


def test_memory_of_a_gpu_is_refused_in_one_line(client):
    status, message = refused(client.register_cuda_shared_memory, "region", b"aGFuZGxl", 0, 100)
    assert (status, "use system shared memory" in message) == (501, True)
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_cuda_shared_memory()


def test_an_agent_without_it_says_what_to_do(start_agent):
    agent = start_agent(http_port=0)
    with triton.InferenceServerClient(agent.http_url.removeprefix("http://")) as client:
        assert "system_shared_memory" not in client.get_server_metadata()["extensions"]
        status, message = refused(client.register_system_shared_memory, "r", "/r", 1)
    assert (status, "--shared_memory" in message) == (501, True)
