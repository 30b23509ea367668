"""Tensors in shared memory, with tritonclient and its segments, over real sockets."""

import os
import re
import secrets
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from fake_framework import DEADLINE_S, SIDE, mean_scores, wait_for
from open_inference import images, refused, tensor_of

from inferometer.agent.serving.batching import BatchingOptions
from inferometer.agent.serving.served_models import ServingOptions

INPUT_BYTES = SIDE * SIDE * 4
SCORES_BYTES = 3 * 4
OUTPUT_AT = 8 * INPUT_BYTES
SIZE = OUTPUT_AT + 8 * INPUT_BYTES
BATCHING = ServingOptions(batching=BatchingOptions(max_batch_size=8, max_queue_delay_ms=1.0))


@pytest.fixture(scope="module")
def agent(start_shared_agent):
    return start_shared_agent(shared_memory=True)


@pytest.fixture
def client(agent):
    with triton.InferenceServerClient(agent.address) as found:
        yield found
        found.unregister_system_shared_memory()


@pytest.fixture
def make_segment():
    with ExitStack() as stack:

        def make(name="region", size=SIZE):
            segment = shm.create_shared_memory_region(name, f"/test-{secrets.token_hex(8)}", size)
            stack.callback(shm.destroy_shared_memory_region, segment)
            return segment

        yield make


@pytest.fixture
def segment(make_segment):
    return make_segment()


@pytest.fixture
def region(client, segment):
    client.register_system_shared_memory("region", segment._shm_key, SIZE)
    return segment


def in_region(batch, offset=0, name="region", size=None):
    tensor = triton.InferInput("data", list(batch.shape), "FP32")
    return tensor.set_shared_memory(name, batch.nbytes if size is None else size, offset)


def output_in_region(output, size, offset=OUTPUT_AT, name="region"):
    found = triton.InferRequestedOutput(output)
    found.set_shared_memory(name, size, offset)
    return found


def test_metadata_names_the_extension_only_where_it_is_offered(client, start_agent):
    assert "system_shared_memory" in client.get_server_metadata().extensions
    with triton.InferenceServerClient(start_agent().address) as other:
        assert "system_shared_memory" not in other.get_server_metadata().extensions
        code, message = refused(other.register_system_shared_memory, "r", "/r", 1)
    assert code == "StatusCode.UNIMPLEMENTED"
    assert "--shared_memory" in message


def test_status_describes_what_is_registered(client, make_segment):
    segment = make_segment("a")
    assert not client.get_system_shared_memory_status().regions
    client.register_system_shared_memory("a", segment._shm_key, 100, offset=28)
    client.register_system_shared_memory("b", segment._shm_key, SIZE)
    regions = client.get_system_shared_memory_status().regions
    assert sorted(regions) == ["a", "b"]
    a = client.get_system_shared_memory_status("a").regions["a"]
    assert (a.name, a.key, a.offset, a.byte_size) == ("a", segment._shm_key, 28, 100)

    client.unregister_system_shared_memory("a")
    assert list(client.get_system_shared_memory_status().regions) == ["b"]
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions
    assert refused(client.get_system_shared_memory_status, "a")[0] == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize("offset", [0, 4, 3, INPUT_BYTES])
@pytest.mark.parametrize("count", [1, 4])
def test_input_and_output_lie_in_the_region(client, region, offset, count):
    batch = images(count)
    shm.set_shared_memory_region(region, [batch], offset)
    size = count * SCORES_BYTES
    answer = client.infer(
        "Mean", [in_region(batch, offset)], outputs=[output_in_region("scores", size, OUTPUT_AT + offset)]
    )
    found = shm.get_contents_as_numpy(region, np.float32, [count, 3], OUTPUT_AT + offset)
    np.testing.assert_array_equal(found, mean_scores(batch))
    [output] = answer.get_response().outputs
    assert list(output.shape) == [count, 3]
    assert output.parameters["shared_memory_region"].string_param == "region"
    assert output.parameters["shared_memory_byte_size"].int64_param == size
    assert answer.get_response().raw_output_contents[:] == [b""]


def test_only_the_input_or_only_the_output_may_lie_there(client, region):
    batch = images(2)
    shm.set_shared_memory_region(region, [batch])
    answer = client.infer("Mean", [in_region(batch)])
    np.testing.assert_array_equal(answer.as_numpy("scores"), mean_scores(batch))
    client.infer("Echo", [tensor_of(batch)], outputs=[output_in_region("data", batch.nbytes)])
    found = shm.get_contents_as_numpy(region, np.float32, batch.shape, OUTPUT_AT)
    np.testing.assert_array_equal(found, batch)


def test_an_output_may_replace_the_input_that_it_was_computed_from(client, region):
    batch = images(2)
    shm.set_shared_memory_region(region, [batch])
    client.infer("Echo", [in_region(batch)], outputs=[output_in_region("data", batch.nbytes, 0)])
    found = shm.get_contents_as_numpy(region, np.float32, batch.shape)
    np.testing.assert_array_equal(found, batch)


def test_requests_of_many_threads_are_batched_from_the_region(start_agent, segment):
    agent, batch = start_agent(shared_memory=True, serving=BATCHING), images(8)
    wrong = []

    def ask(number):
        with triton.InferenceServerClient(agent.address) as client:
            for _ in range(20):
                answer = client.infer("Mean", [in_region(batch[:1], number * INPUT_BYTES)])
                if (answer.as_numpy("scores") != mean_scores(batch[number : number + 1])).any():
                    wrong.append(number)

    with triton.InferenceServerClient(agent.address) as client:
        shm.set_shared_memory_region(segment, [batch])
        client.register_system_shared_memory("region", segment._shm_key, SIZE)
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert wrong == []


def test_a_stream_reads_from_the_region(client, region):
    batch, answers = images(3), []
    shm.set_shared_memory_region(region, [batch])
    done = threading.Semaphore(0)
    client.start_stream(lambda result, error: (answers.append((result, error)), done.release()))
    for number in range(3):
        client.async_stream_infer("Mean", [in_region(batch[:1], number * INPUT_BYTES)])
    client.async_stream_infer("Mean", [in_region(batch[:1], SIZE)])
    assert all(done.acquire(timeout=DEADLINE_S) for _ in range(4))
    client.stop_stream()
    for number, (result, _) in enumerate(answers[:3]):
        np.testing.assert_array_equal(result.as_numpy("scores"), mean_scores(batch[number : number + 1]))
    assert "beyond" in str(answers[3][1])


@pytest.mark.parametrize(
    ("tensor", "code", "part"),
    [
        (in_region(images(1), name="other"), "NOT_FOUND", '"other" is not registered'),
        (in_region(images(1), SIZE - INPUT_BYTES + 1), "INVALID_ARGUMENT", "beyond"),
        (in_region(images(1), size=INPUT_BYTES - 1), "INVALID_ARGUMENT", "63 bytes for shape"),
        (in_region(images(1), size=INPUT_BYTES + 1), "INVALID_ARGUMENT", "65 bytes for shape"),
        (in_region(images(1), size=0), "INVALID_ARGUMENT", "0 bytes for shape"),
    ],
    ids=["unknown region", "beyond", "too few bytes", "too many", "none"],
)
def test_an_input_that_is_not_in_its_region_is_refused(client, region, tensor, code, part):
    found, message = refused(client.infer, "Mean", [tensor])
    assert found == f"StatusCode.{code}"
    assert part in message


@pytest.mark.parametrize(
    ("output", "code", "part"),
    [
        (output_in_region("scores", SCORES_BYTES, name="other"), "NOT_FOUND", "not registered"),
        (output_in_region("scores", SCORES_BYTES, SIZE), "INVALID_ARGUMENT", "beyond"),
        (output_in_region("scores", SCORES_BYTES - 1), "INVALID_ARGUMENT", "takes 12 bytes"),
    ],
    ids=["unknown region", "beyond", "too small"],
)
def test_an_output_that_does_not_fit_into_its_region_is_refused(client, region, output, code, part):
    before = bytes(region._mpsm_handle.buf)
    found, message = refused(client.infer, "Mean", [tensor_of(images(1))], outputs=[output])
    assert found == f"StatusCode.{code}"
    assert part in message
    assert bytes(region._mpsm_handle.buf) == before


def test_a_name_that_is_taken_is_refused_as_triton_does(client, region):
    code, message = refused(client.register_system_shared_memory, "region", region._shm_key, SIZE)
    assert code == "StatusCode.ALREADY_EXISTS"
    assert "registered already" in message


def test_a_truncated_segment_fails_requests_and_leaves_the_server_alive(client, region):
    batch = images(1)
    shm.set_shared_memory_region(region, [batch])
    client.infer("Mean", [in_region(batch)])
    os.truncate(f"/dev/shm{region._shm_key}", 0)
    for options in ({}, {"outputs": [output_in_region("scores", SCORES_BYTES)]}):
        code, message = refused(client.infer, "Mean", [in_region(batch)], **options)
        assert code == "StatusCode.INVALID_ARGUMENT"
        assert "has 0 bytes" in message
    assert client.is_server_live()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_segment_of_another_user_is_refused(client, segment):
    os.chown(f"/dev/shm{segment._shm_key}", 65534, 65534)
    code, message = refused(client.register_system_shared_memory, "region", segment._shm_key, SIZE)
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "another user" in message


def test_memory_of_a_gpu_is_refused_in_one_line(client):
    code, message = refused(client.register_cuda_shared_memory, "region", b"aGFuZGxl", 0, 100)
    assert code == "StatusCode.UNIMPLEMENTED"
    assert "use system shared memory" in message
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_cuda_shared_memory()


KILLED = """
import os, sys, signal
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
segment = shm.create_shared_memory_region("killed", sys.argv[2], 4096)
client = triton.InferenceServerClient(sys.argv[1])
client.register_system_shared_memory("killed", sys.argv[2], 4096)
print("registered", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_region_of_a_killed_client_is_released(start_agent):
    agent = start_agent(shared_memory=True, session_idle_s=1.0)
    key = f"/test-{secrets.token_hex(8)}"
    command = [sys.executable, "-c", KILLED, agent.address, key]
    killed = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert killed.stdout == b"registered\n", killed.stderr.decode()
    try:
        with triton.InferenceServerClient(agent.address) as client:
            wait_for(lambda: not client.get_system_shared_memory_status().regions)
    finally:
        Path(f"/dev/shm{key}").unlink(missing_ok=True)  # unless Python's resource tracker was faster


def test_no_region_outlives_its_server_and_none_is_seen_in_the_next(start_agent, segment):
    for _ in range(2):
        agent = start_agent(shared_memory=True)
        with triton.InferenceServerClient(agent.address) as client:
            client.register_system_shared_memory("region", segment._shm_key, SIZE)
        agent.stop()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert len(re.findall(re.escape(segment._shm_key), maps)) == 1, "only this process's own mapping"
