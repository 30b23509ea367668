"""Our own client and inputs in shared memory, against an agent over real sockets."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from fake_framework import DEADLINE_S, SIDE, mean_scores, wait_for

from inferometer.agent.preprocessing.inputs import Pixels
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.client.remote.kserve.session import KServeTarget
from inferometer.evaluators.jobs.options import SharedMemoryUse
from inferometer.evaluators.load.arrivals import Schedule
from inferometer.evaluators.load.queries import Outcome, QueryLog
from inferometer.evaluators.load.target import PreparedInputs, ReadInputs
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError

SEGMENTS = Path("/dev/shm")
QUERIES = 300
GREYS = np.random.default_rng(0).random((5, 1, SIDE, SIDE), np.float32)
PREPARED = PreparedInputs.of_batch({"data": GREYS}, "five tensors")
READ = ReadInputs(tuple(Pixels(np.full((SIDE, SIDE), grey, np.uint8)) for grey in (10, 200, 90)), "greys")


@pytest.fixture
def agent(start_agent):
    return start_agent(shared_memory=True)


@pytest.fixture
def open_at(manifest_folder):
    sessions = []

    def open_one(address, use=SharedMemoryUse.AUTO, model="Echo"):
        said = []
        sessions.append(
            open_kserve(
                f"kserve://{address}",
                Catalog([manifest_folder]),
                ModelChoice(model),
                remote=RemoteOptions(shared_memory=use),
                say=said.append,
            )
        )
        return sessions[-1], said

    yield open_one
    for session in sessions:
        session.close()


def regions(agent):
    with triton.InferenceServerClient(agent.address) as client:
        return client.get_system_shared_memory_status().regions


def ours():
    return [path.name for path in SEGMENTS.iterdir() if path.name.startswith("inferometer-")]


def batches(*sizes):
    random = np.random.default_rng(1)
    return [random.random((size, 1, SIDE, SIDE), np.float32) for size in sizes]


def test_batches_travel_through_one_region_and_leave_nothing(agent, open_at):
    session, said = open_at(agent.address)
    assert said[-1] == f"kserve://{agent.address}: tensors travel through shared memory"
    for batch in batches(1, 1, 7, 2, 64, 3):
        result = session.predict_tensor(batch)
        [found] = result.outputs.tensors.values()
        np.testing.assert_array_equal(found, batch)
        [region] = regions(agent).values()
        assert region.byte_size >= batch.nbytes
        assert not ours(), "the segment has no name any more"
    session.close()
    assert not regions(agent)


def test_nothing_of_a_tensor_is_in_the_request(agent, open_at, monkeypatch):
    session, _ = open_at(agent.address)
    sent = []
    infer = session.predictor.connection.infer
    monkeypatch.setattr(
        session.predictor.connection,
        "infer",
        lambda request, *more: sent.append(request) or infer(request, *more),
    )
    [batch] = batches(1000)
    session.predict_tensor(batch)
    assert max(map(len, sent)) < 1000 < batch.nbytes


@pytest.mark.parametrize("use", [SharedMemoryUse.AUTO, SharedMemoryUse.OFF])
def test_a_server_without_it_or_a_user_against_it_gets_the_bytes(start_agent, open_at, use):
    agent = start_agent(shared_memory=use is SharedMemoryUse.OFF)
    session, said = open_at(agent.address, use)
    [batch] = batches(3)
    [found] = session.predict_tensor(batch).outputs.tensors.values()
    np.testing.assert_array_equal(found, batch)
    assert "shared memory" not in " ".join(said)
    assert use is SharedMemoryUse.AUTO or not regions(agent)


def test_a_server_that_must_and_cannot_is_an_error(start_agent, open_at):
    with pytest.raises(ConfigurationError, match=r"--shared_memory=on, .*the server does not offer it"):
        open_at(start_agent().address, SharedMemoryUse.ON)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_without_room_tensors_travel_over_grpc_and_that_is_said(agent, open_at, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    session, said = open_at(agent.address)
    assert "in the requests, not through shared memory" in said[-1]
    assert "No space left" in said[-1]
    [batch] = batches(3)
    [found] = session.predict_tensor(batch).outputs.tensors.values()
    np.testing.assert_array_equal(found, batch)
    with pytest.raises(ConfigurationError, match="No space left"):
        open_at(agent.address, SharedMemoryUse.ON)
    assert not ours()


def test_a_batch_that_finds_no_room_later_travels_in_the_request(agent, open_at, monkeypatch, caplog):
    session, _ = open_at(agent.address)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    for batch in batches(9, 1):
        [found] = session.predict_tensor(batch).outputs.tensors.values()
        np.testing.assert_array_equal(found, batch)
    assert "tensors travel in the requests" in caplog.text


@pytest.mark.parametrize("inputs", [PREPARED, READ], ids=["prepared", "read"])
def test_every_query_has_its_own_input_under_load(agent, open_at, inputs):
    session, _ = open_at(agent.address, model="Mean")
    outputs = []
    read = session.predictor.read

    def noted(answer):
        reply = read(answer)
        outputs.append(next(iter(reply.outputs.values())))
        return reply

    session.predictor.read = noted
    with KServeTarget(session, inputs) as target:
        log = QueryLog(Schedule(np.zeros(QUERIES, np.int64), "all at once", 1.0), time.perf_counter_ns())
        target.begin(log)
        for query in range(QUERIES):
            log.sent(query, time.perf_counter_ns())
            target.submit(query)
        target.end(DEADLINE_S)
        assert len(regions(agent)) == 2
    assert len(regions(agent)) == 1
    assert log.reasons == {}
    assert log.queries().count(Outcome.ANSWERED) == QUERIES
    tensors = GREYS if inputs is PREPARED else np.stack([_grey(pixels) for pixels in READ.payloads])
    expected = mean_scores(tensors)[np.arange(QUERIES) % len(tensors)]
    found = np.concatenate(outputs)
    np.testing.assert_allclose(np.sort(found[:, 0]), np.sort(expected[:, 0]), rtol=1e-6)


def _grey(pixels):
    return pixels.array[None].astype(np.float32)


KILLED = """
import os, sys
from pathlib import Path
from inferometer.client.remote.kserve.opening import ModelChoice, open_kserve
from inferometer.manifests.catalog import Catalog
session = open_kserve(f"kserve://{sys.argv[1]}", Catalog([Path(sys.argv[2])]), ModelChoice("Echo"))
print("open", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_client_that_was_killed(start_agent, manifest_folder):
    agent = start_agent(shared_memory=True, session_idle_s=1.0)
    command = [sys.executable, "-c", KILLED, agent.address, str(manifest_folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "open\n"
        assert len(regions(agent)) == 1
        client.send_signal(signal.SIGKILL)
    assert not ours()
    wait_for(lambda: not regions(agent))
