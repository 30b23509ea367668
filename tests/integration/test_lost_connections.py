"""Lost connections and hanging agents: what is retried, and what fails in time."""

import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from dataset_client import evaluate_dataset
from fake_framework import SIDE, FakePredictor, wait_for
from half_agent import Seen, half_agent, whole_registry

from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.server.native.predict_service import DatasetOrder
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.native import agent as native_agent
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.native.connection import ask_status, probe_agent
from inferometer.manifests.errors import AgentError, DeadlineError


class Relay:
    """Passes what comes on to an agent, and cuts a connection off where it is told to."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.cut_request = lambda: False
        """Asked when a client has sent something: whether to cut its connection off, once."""
        self.cut_answer = lambda: False
        """The same of what the agent sends."""
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                number = self.connections
                agent = socket.create_connection(self._target)
                self._sockets += [client, agent]
                for ends in ((client, agent, "cut_request"), (agent, client, "cut_answer")):
                    threading.Thread(target=self._pass, args=(number, *ends), daemon=True).start()

    def _pass(self, number, source, sink, cut):
        with suppress(OSError):
            while data := source.recv(65536):
                # an earlier connection, that of the health, may still have something to say
                if number == self.connections and getattr(self, cut)():
                    setattr(self, cut, lambda: False)
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def server(start_agent):
    return start_agent()


@pytest.fixture
def relay(server):
    relay = Relay(server.address)
    yield relay
    relay.close()


@contextmanager
def opened(address, model="Echo", **remote):
    with open_remote_agent(address, model, remote=RemoteOptions(**remote)) as agent:
        yield agent


def batch(id_="a"):
    return [Input(id_, Tensor(np.ones((1, SIDE, SIDE), np.float32)))]


def test_prediction_is_done_again_on_another_connection(relay):
    with opened(relay.address) as agent:
        relay.cut_request = lambda: True
        assert agent.predict(batch()).input_ids == ("a",)
    assert relay.connections == 2


def test_prediction_whose_answer_was_lost_is_done_again(relay, server):
    with opened(relay.address) as agent:
        relay.cut_answer = lambda: True
        assert agent.predict(batch()).input_ids == ("a",)
    assert relay.connections == 2


def test_opening_whose_answer_was_lost_is_not_done_again(relay, server):
    relay.cut_answer = lambda: server.registry_service.open_sessions > 0
    with pytest.raises(AgentError, match=f"^agent {relay.address}: the connection was lost"):
        open_remote_agent(relay.address, "Echo")
    assert relay.connections == 1
    assert server.registry_service.open_sessions == 1


def test_stream_that_was_cut_off_is_an_error(relay):
    with opened(relay.address) as agent:
        assert [result.input_ids for result in agent.predict_batches([batch()])] == [("a",)]
        relay.cut_request = lambda: True
        with pytest.raises(AgentError, match=f"^agent {relay.address}: "):
            list(agent.predict_batches([batch()]))
        assert agent.predict(batch()).input_ids == ("a",)


def test_agent_that_owes_an_answer_in_a_stream_for_too_long_is_an_error(start_agent, manifest_folder):
    with opened(start_agent().address, "Waiting", call_timeout_s=0.3) as agent:
        began_s = time.monotonic()
        with pytest.raises(AgentError, match=r"did not answer within 0\.3 s; it hangs.* --agent_timeout"):
            list(agent.predict_batches([batch()]))
        assert 0.3 <= time.monotonic() - began_s < 20
        (manifest_folder / "go").touch()
        assert [result.input_ids for result in agent.predict_batches([batch()])] == [("a",)]


def test_deadline_is_that_of_each_answer_and_not_of_the_stream(start_agent, manifest_folder, monkeypatch):
    monkeypatch.setattr(native_agent, "BATCHES_IN_FLIGHT", 1)
    (manifest_folder / "script.json").write_text('{"service_s": 0.25}')
    options = SessionOptions(overlap=True)
    remote = RemoteOptions(call_timeout_s=1.5)
    with open_remote_agent(start_agent().address, "Scripted", options=options, remote=remote) as agent:
        results = list(agent.predict_batches(batch(str(n)) for n in range(8)))
    assert [result.input_ids for result in results] == [(str(n),) for n in range(8)]


def test_answers_of_a_round_may_take_longer_together(start_agent, manifest_folder):
    (manifest_folder / "script.json").write_text('{"service_s": 0.4}')
    with opened(start_agent().address, "Scripted", call_timeout_s=1.4) as agent:
        results = list(agent.predict_batches(batch(str(n)) for n in range(4)))
    assert [result.input_ids for result in results] == [(str(n),) for n in range(4)]


def test_deadline_does_not_run_while_nothing_is_owed(start_agent, monkeypatch):
    monkeypatch.setattr(native_agent, "BATCHES_IN_FLIGHT", 1)
    options = SessionOptions(overlap=True)
    remote = RemoteOptions(call_timeout_s=1.2)
    with open_remote_agent(start_agent().address, "Echo", options=options, remote=remote) as agent:
        pause = threading.Event()

        def slow_batches():
            for n in range(2):
                pause.wait(n * 1.6)
                yield batch(str(n))

        assert len(list(agent.predict_batches(slow_batches()))) == 2


def test_evaluation_of_an_agent_that_falls_silent_is_an_error(start_agent):
    stopped = threading.Event()

    def hang(session, order, on_progress, stop_requested):
        on_progress(1, 2)
        wait_for(stop_requested)
        stopped.set()
        return ""

    address = start_agent(parts={"dataset_runner": hang}).address
    order = DatasetOrder(None, None, 1, 1, -1, 1, 5, False)
    seen = []
    with pytest.raises(AgentError, match=rf"^agent {address}: said nothing for 1\.5 s; it hangs"):
        evaluate_dataset(
            address,
            ("Echo", None, None),
            SessionOptions(),
            order,
            on_progress=lambda *progress: seen.append(progress),
            silence_s=1.5,
        )
    assert seen == [(1, 2)]
    assert stopped.wait(30)


def test_probe_tells_what_an_agent_is(start_agent):
    server = start_agent()
    probe = probe_agent(server.address)
    agent_info = probe.agent_info
    assert agent_info == server.registry_service.agent_info
    assert (agent_info.hostname, probe.open_sessions, probe.problem) == (socket.gethostname(), 0, "")
    assert {"Echo", "Mean"} <= {model.name for model in agent_info.models}
    with opened(server.address):
        assert probe_agent(server.address).open_sessions == server.registry_service.open_sessions == 1


@pytest.mark.parametrize("method", ["Describe", "ListFrameworks", "ListModels"])
def test_probe_asks_again_where_the_connection_was_lost(method):
    seen = Seen()
    with half_agent(seen=seen, **whole_registry(hostname="host")) as address:
        relay = Relay(address)
        relay.cut_answer = lambda: method in seen.methods
        assert probe_agent(relay.address, timeout_s=30).agent_info.hostname == "host"
        relay.close()
    assert (seen.methods.count(method), relay.connections) == (2, 3)


def test_status_is_asked_again_where_the_connection_was_lost():
    seen = Seen()
    with half_agent(seen=seen, **whole_registry()) as address:
        relay = Relay(address)
        relay.cut_answer = lambda: "Status" in seen.methods
        assert ask_status(relay.address, 30).details is not None
        relay.close()
    assert (seen.methods.count("Status"), relay.connections) == (2, 3)


def test_agent_that_does_not_open_the_model_in_time_names_the_option(start_agent, monkeypatch):
    opened_, loading = threading.Event(), FakePredictor.load

    def load(predictor):
        opened_.wait(30)
        loading(predictor)

    monkeypatch.setattr(FakePredictor, "load", load)
    address = start_agent().address
    message = rf"^agent {address}: did not open the model within 0\.2 s; .* --open_timeout"
    with pytest.raises(DeadlineError, match=message):
        open_remote_agent(address, "Echo", remote=RemoteOptions(open_timeout_s=0.2))
    opened_.set()


def test_probe_of_whoever_does_not_answer_ends_in_time(start_agent):
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(AgentError, match=f"^agent {address}: "):
            probe_agent(address, timeout_s=0.3)
        assert time.monotonic() - began_s < 10
    secret = start_agent(secret="s3cret").address
    with pytest.raises(AgentError, match="requires a secret"):
        probe_agent(secret)
    assert probe_agent(secret, "s3cret").open_sessions == 0
