"""Stopping an agent in a separate process."""

import ctypes
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from fake_framework import SIDE, fake_registry, wait_for

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.connection import ask_health
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError

BATCH = np.ones((1, 1, SIDE, SIDE), np.float32)


def inputs(*ids):
    return [Input(id_, Tensor(BATCH[0])) for id_ in ids]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_an_accepted_prediction_finish(spawn_agent, manifest_folder, number):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Waiting") as remote, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(remote.predict_tensor, BATCH)
        wait_for((manifest_folder / "begun").exists)
        agent.process.send_signal(number)
        wait_for(lambda: stops(agent.address))
        assert not slow.done()
        (manifest_folder / "go").touch()
        np.testing.assert_array_equal(slow.result(30).outputs.tensors["data"], BATCH)
        stdout, stderr = agent.process.communicate(timeout=30)
    assert agent.process.returncode == 0
    assert stdout == "stopped\n"
    assert "Traceback" not in stderr


def test_a_signal_counts_whichever_thread_the_system_gives_it_to(spawn_agent):
    agent = spawn_agent()
    main = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/stat")
    ask_health(agent.address, 10)
    wait_for(lambda: main.read_text().rpartition(") ")[2].startswith("S"))  # and so will wait for the signal
    threads = [int(task.name) for task in Path(f"/proc/{agent.process.pid}/task").iterdir()]
    other = max(number for number in threads if number != agent.process.pid)
    assert ctypes.CDLL(None).tgkill(agent.process.pid, other, int(signal.SIGTERM)) == 0
    stdout, _ = agent.process.communicate(timeout=30)
    assert (agent.process.returncode, stdout) == (0, "stopped\n")


def stops(address):
    return ask_health(address, 10) == "NOT_SERVING"


def test_stream_that_was_accepted_is_finished(spawn_agent, manifest_folder):
    agent = spawn_agent()
    with open_remote_agent(agent.address, "Waiting") as remote:
        results = remote.predict_batches([inputs("a"), inputs("b")])
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, results)
            wait_for((manifest_folder / "begun").exists)
            agent.process.terminate()
            wait_for(lambda: stops(agent.address))
            (manifest_folder / "go").touch()
            assert first.result(30).input_ids == ("a",)
            assert [result.input_ids for result in results] == [("b",)]
        agent.process.communicate(timeout=30)
    assert agent.process.returncode == 0


def test_prediction_that_never_ends_does_not_keep_the_process(spawn_agent, manifest_folder):
    agent = spawn_agent(grace_s=0.2)
    with open_remote_agent(agent.address, "Waiting") as remote, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(remote.predict_tensor, BATCH)
        wait_for((manifest_folder / "begun").exists)
        agent.process.terminate()
        with pytest.raises(AgentError, match=f"agent {agent.address}: "):
            hanging.result(30)
        _, stderr = agent.process.communicate(timeout=30)
    assert agent.process.returncode == 1
    assert "had not ended in time" in stderr


def test_second_signal_ends_it_at_once(spawn_agent, manifest_folder):
    agent = spawn_agent(grace_s=600)
    with open_remote_agent(agent.address, "Waiting") as remote, ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(remote.predict_tensor, BATCH)
        wait_for((manifest_folder / "begun").exists)
        agent.process.terminate()
        wait_for(lambda: stops(agent.address))
        agent.process.terminate()
        with pytest.raises(AgentError, match=r"is stopping|connection was lost"):
            hanging.result(30)
        agent.process.communicate(timeout=30)
    assert agent.process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("overlap", "size"), [(True, 1), (False, 128)])
def test_agent_that_is_killed_in_mid_stream_is_one_clear_error(spawn_agent, manifest_folder, overlap, size):
    agent = spawn_agent()
    remote = open_remote_agent(agent.address, "Echo", options=SessionOptions(overlap=overlap))
    more = threading.Event()

    def batches():
        for n in range(6):
            yield inputs(*(str(n) for _ in range(size)))
        assert more.wait(30)
        for n in range(6, 100):
            yield inputs(*(str(n) for _ in range(size)))

    results = remote.predict_batches(batches())
    assert next(results).input_ids == ("0",) * size
    agent.process.kill()
    agent.process.wait(30)
    more.set()
    with pytest.raises(AgentError) as error:
        list(results)
    assert str(error.value).startswith(f"agent {agent.address}: ")
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, grpc.RpcError)
    remote.close()
    remote.close()


def test_an_event_loop_that_hangs_does_not_keep_the_agent(manifest_folder, monkeypatch):
    monkeypatch.setattr("inferometer.agent.server.server._LEAVING_S", 0.1)
    monkeypatch.setattr("inferometer.agent.server.rpc._ENDING_S", 0.1)
    monkeypatch.setattr("inferometer.agent.server.rpc._CLEANUP_S", 0.1)
    goes_on = threading.Event()

    async def hang():
        goes_on.wait(240)

    options = ServerOptions(port=0, http_port=0, grace_s=0.1, drain_s=0.0)
    server = AgentServer(Catalog([manifest_folder]), fake_registry(), options)
    server.start()
    server._server.begin(hang())
    began_s = time.monotonic()
    try:
        server.stop()
        assert time.monotonic() - began_s < 120
    finally:
        monkeypatch.undo()
        goes_on.set()
        server.stop()


def test_an_http_server_that_its_event_loop_has_cancelled_has_ended(manifest_folder):
    options = ServerOptions(port=0, http_port=0, grace_s=0.1, drain_s=0.0)
    server = AgentServer(Catalog([manifest_folder]), fake_registry(), options)
    server.start()
    assert server._http._serving.cancel()
    assert server.stop()


def test_two_threads_may_stop_an_agent_at_once(manifest_folder):
    options = ServerOptions(port=0, http_port=0, grace_s=5.0)
    for _ in range(8):
        server = AgentServer(Catalog([manifest_folder]), fake_registry(), options)
        server.start()
        with ThreadPoolExecutor(2) as pool:
            assert [each.result(30) for each in [pool.submit(server.stop) for _ in range(2)]] == [True, True]
