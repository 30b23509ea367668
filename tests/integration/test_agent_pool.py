"""Several agents share one run: every input once, in order, whichever agent is lost."""

import json
import socket
from contextlib import ExitStack, closing

import numpy as np
import pytest
from fake_framework import SCRIPT, SIDE, fake_registry, mean_scores, wait_for, write_manifests
from test_remote_traces import new_scope, spans_of

from inferometer.agent.hardware.environment import Device
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.preprocessing.inputs import Input, Tensor
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.remote.connection import RemoteOptions
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.pool import AgentPool, BatchQueue, open_agent_pool
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import AgentError, ConfigurationError, InputError, SessionError

ALL_CLASSES = SessionOptions(feature_limit=0)


class Agents:
    """Agents of the fake framework, each with a folder and so a script of its own."""

    def __init__(self, folder, stack):
        self._folder = folder
        self._stack = stack
        self.servers = {}
        self.folders = {}

    def start(self, max_sessions=16, **script):
        folder = self._folder / str(len(self.servers))
        folder.mkdir()
        (write_manifests(folder) / SCRIPT).write_text(json.dumps(script))
        options = ServerOptions(port=0, grace_s=5.0, max_sessions=max_sessions)
        server = AgentServer(Catalog([folder]), fake_registry(), options)
        self._stack.callback(server.stop, 0)
        self._stack.callback((folder / "go").touch)
        server.start()
        self.servers[server.address] = server
        self.folders[server.address] = folder
        return server.address


@pytest.fixture
def agents(tmp_path):
    with ExitStack() as stack:
        yield Agents(tmp_path, stack)


@pytest.fixture
def said():
    return []


@pytest.fixture
def open_pool(agents, said, monkeypatch):
    with ExitStack() as stack:

        def open_(model="Scripted", addresses=None, options=ALL_CLASSES, on_answer=None, **settings):
            if on_answer is not None:
                monkeypatch.setattr(BatchQueue, "answer", and_then(on_answer))
            remote = RemoteOptions(call_timeout_s=settings.pop("call_timeout_s", 60.0))
            pool = open_agent_pool(
                addresses or list(agents.servers),
                lambda address: open_remote_agent(address, model, None, None, options, remote),
                say=said.append,
                **settings,
            )
            return stack.enter_context(closing(pool))

        yield open_


def and_then(on_answer):
    """``BatchQueue.answer``, which then calls a function with the agent that has answered."""
    answer = BatchQueue.answer

    def answered(queue, agent, lease, result):
        answer(queue, agent, lease, result)
        on_answer(agent)

    return answered


def batches(count, size=2):
    for n in range(count):
        yield [
            Input(f"{n}-{i}", Tensor(np.full((1, SIDE, SIDE), n * size + i, np.float32))) for i in range(size)
        ]


def ids(results):
    return [id_ for result in results for id_ in result.input_ids]


def expected_ids(count, size=2):
    return [item.id for batch in batches(count, size) for item in batch]


def test_results_come_in_order_and_everyone_takes_part(agents, open_pool):
    for _ in range(3):
        agents.start()
    answered = []
    pool = open_pool("Mean", on_answer=answered.append)

    results = list(pool.predict_batches(batches(60)))

    assert ids(results) == expected_ids(60)
    scores = np.concatenate([r.outputs.probabilities for r in results])
    assert scores.shape == (120, 3)
    by_class = np.take_along_axis(
        scores, np.argsort(np.concatenate([r.outputs.indices for r in results]), axis=1), axis=1
    )
    np.testing.assert_array_equal(by_class, mean_scores(np.arange(120, dtype=np.float32)[:, None]))
    assert len(answered) == 60
    assert set(answered) == set(agents.servers)
    assert pool.description.agent == ", ".join(agents.servers)


@pytest.mark.parametrize("overlap", [False, True], ids=["rounds", "overlap"])
def test_batches_of_an_agent_that_dies_are_done_again_elsewhere(agents, open_pool, said, overlap):
    first, second = agents.start(), agents.start()
    killed = []

    def kill(address):
        if not killed:
            killed.append(address)
            agents.servers[address].stop(0)

    pool = open_pool(options=SessionOptions(overlap=overlap), on_answer=kill)

    assert ids(pool.predict_batches(batches(80))) == expected_ids(80)

    assert len(said) == 1
    assert f"left out from here on: agent {killed[0]}: " in said[0]
    assert "1 of 2 agents continue" in said[0]
    assert pool.description.agent == f"{first}, {second}"  # both have answered
    assert ids(pool.predict_batches(batches(3))) == expected_ids(3)
    assert pool.description.agent == (second if killed == [first] else first)


def test_agent_that_hangs_is_left_after_the_deadline(agents, open_pool, said):
    hanging, sound = agents.start(hangs=[1]), agents.start()
    pool = open_pool(call_timeout_s=1.0)

    assert ids(pool.predict_batches(batches(40))) == expected_ids(40)

    assert len(said) == 1
    assert f"agent {hanging}: did not answer within" in said[0]
    assert f"agent {sound}" not in said[0]


def test_all_lost_is_an_agent_error_that_names_each(agents, open_pool, said):
    for _ in range(2):
        agents.start()
    pool = open_pool()
    for server in agents.servers.values():
        server.stop(0)

    with pytest.raises(AgentError, match="no agent is left") as error:
        list(pool.predict_batches(batches(10)))

    assert all(f"agent {address}: " in str(error.value) for address in agents.servers)
    assert len(said) == 2
    with pytest.raises(AgentError, match="no agent is left"):
        pool.predict(next(batches(1)))


def test_batch_that_every_agent_dies_of_is_given_up(agents, open_pool):
    for _ in range(4):
        agents.start(hangs=[0])
    pool = open_pool(call_timeout_s=0.3)

    with pytest.raises(AgentError, match=r"3 agents were lost with batch 0, which begins with input 0-0"):
        list(pool.predict_batches(batches(1)))


def test_failures_of_inputs_are_results_and_lose_no_agent(agents, open_pool, said):
    agents.start(fails=[3])
    agents.start(fails=[3])
    pool = open_pool()

    results = list(pool.predict_batches(batches(80)))

    failed = [failure for result in results for failure in result.failures]
    assert 2 <= len(failed) <= 4
    assert all("the script says that this fails" in failure.message for failure in failed)
    assert sorted([*ids(results), *(failure.input_id for failure in failed)]) == sorted(expected_ids(80))
    assert said == []


def test_fault_of_every_agent_ends_the_run(agents, open_pool, said):
    agents.start()
    agents.start()
    pool = open_pool("Crashing")
    with pytest.raises(AgentError, match=r"no agent is left: .* PredictStream failed in the agent"):
        list(pool.predict_batches(batches(8)))
    assert len(said) == 2


def test_session_that_an_agent_has_closed_loses_the_agent(agents, open_pool, said, channel_to):
    from inferometer.protos.inferometer.v1 import predict_pb2
    from inferometer.protos.inferometer.v1.predict_pb2_grpc import PredictServiceStub

    reset = agents.start()
    agents.start()
    pool = open_pool()
    PredictServiceStub(channel_to(reset)).Reset(predict_pb2.ResetRequest(), timeout=30)

    assert ids(pool.predict_batches(batches(20))) == expected_ids(20)
    assert len(said) == 1
    assert f"left out from here on: agent {reset}: the session is not open" in said[0]


def test_error_of_the_batches_themselves_comes_after_the_results_before_it(agents, open_pool):
    agents.start()
    agents.start()
    pool = open_pool()

    def breaking():
        yield from batches(3)
        raise KeyError("the caller's own")

    seen = []
    with pytest.raises(KeyError, match="the caller's own"):
        seen.extend(ids([result])[0] for result in pool.predict_batches(breaking()))
    with pytest.raises(InputError, match="the batch is empty"):
        list(pool.predict_batches([[]]))
    assert list(pool.predict_batches([])) == []


def test_iterator_that_is_closed_early_ends_the_work_at_every_agent(agents, open_pool):
    agents.start()
    agents.start()
    pool = open_pool()
    results = pool.predict_batches(batches(10**6))
    assert next(results).input_ids == ("0-0", "0-1")
    results.close()
    pool.close()
    # A session is only closed when its stream has ended.
    for folder in agents.folders.values():
        wait_for((folder / "closed").exists)
    with pytest.raises(SessionError, match="is closed"):
        list(pool.predict_batches(batches(1)))


def test_warm_up_is_run_by_every_agent(agents, open_pool):
    addresses = [agents.start() for _ in range(3)]
    pool = open_pool(warm_up=True)

    assert ids(pool.predict_batches(batches(2))) == expected_ids(2)
    assert ids(pool.predict_batches(batches(30))) == expected_ids(30)
    pool.close()

    served = [folder / "served.json" for folder in agents.folders.values()]
    for file in served:
        wait_for(file.exists)
    counts = [len(json.loads(file.read_text())) for file in served]
    assert sum(counts) == 2 * len(addresses) + 30
    assert min(counts) >= 2


def test_agent_that_is_lost_in_the_warm_up_is_left_out(agents, open_pool, said):
    agents.start(hangs=[0])
    sound = agents.start()
    pool = open_pool(warm_up=True, call_timeout_s=1.0)

    assert ids(pool.predict_batches(batches(2))) == expected_ids(2)
    assert ids(pool.predict_batches(batches(9))) == expected_ids(9)

    assert len(said) == 1
    assert pool.description.agent == sound


def test_single_batch_goes_to_whoever_answers(agents, open_pool, said):
    gone, _ = agents.start(), agents.start()
    pool = open_pool()
    agents.servers[gone].stop(0)
    assert pool.predict(next(batches(1))).input_ids == ("0-0", "0-1")
    assert len(said) == 1


def test_agents_that_cannot_be_reached_are_said_and_left_out(agents, open_pool, said):
    sound = agents.start()
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as silent:
        unused.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{unused.getsockname()[1]}"
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"

        def open_one(address):
            return open_remote_agent(address, "Mean", remote=RemoteOptions(open_timeout_s=1.0))

        with closing(open_agent_pool([refusing, hanging, sound], open_one, say=said.append)) as pool:
            assert ids(pool.predict_batches(batches(5))) == expected_ids(5)
            assert pool.description.agent == sound
        with pytest.raises(AgentError, match=f"agent {refusing}: cannot be reached"):
            open_agent_pool([refusing, hanging], open_one)
    assert [line.split(": ")[1] for line in said] == [f"agent {refusing}", f"agent {hanging}"]


def test_agent_with_no_session_left_is_said_and_left_out(agents, open_pool, said):
    full, free = agents.start(max_sessions=1), agents.start()
    with open_remote_agent(full, "Mean"):
        pool = open_pool("Mean")
        assert ids(pool.predict_batches(batches(3))) == expected_ids(3)
        assert pool.description.agent == free
    assert said == [
        f"left out: agent {full}: the agent's limit of 1 open sessions is reached, and all are in use; "
        "close one, or try again later"
    ]


def test_agents_of_different_models_are_refused(agents, open_pool):
    one, other = agents.start(), agents.start()
    models = {one: "Mean", other: "Echo"}
    with pytest.raises(
        ConfigurationError, match=f"agents {one} and {other} differ in the model: Mean 1.0 and Echo 1.0"
    ):
        open_agent_pool([one, other], lambda address: open_remote_agent(address, models[address]))
    for folder in agents.folders.values():
        wait_for((folder / "closed").exists)


def test_spans_of_every_agent_are_in_the_trace_with_the_numbers_of_the_run(agents, open_pool):
    for _ in range(2):
        agents.start(service_s=0.002)
    scope = new_scope()
    pool = open_pool()

    assert ids(pool.predict_batches(batches(30), scope)) == expected_ids(30)

    spans = spans_of(scope)
    for name in ("predict_step", "predict", "postprocess"):
        assert sorted(span["batch"] for span in spans if span["name"] == name) == list(range(30))
    assert sum(span["parent_id"] == scope.parent_id for span in spans) >= 2
    assert scope.recorder.notes == ()


def test_spans_of_a_lost_agent_are_noted_as_missing_and_counted_once(agents, open_pool):
    for _ in range(2):
        agents.start(service_s=0.002)
    killed = []

    def kill(address):
        if not killed:
            killed.append(address)
            agents.servers[address].stop(0)

    scope = new_scope()
    pool = open_pool(on_answer=kill)

    assert ids(pool.predict_batches(batches(30), scope)) == expected_ids(30)

    numbers = [span["batch"] for span in spans_of(scope) if span["name"] == "predict"]
    assert len(numbers) == len(set(numbers))
    assert any(f"call to agent {killed[0]} was cancelled" in note for note in scope.recorder.notes)


def test_pool_is_of_the_same_device_as_its_agents(agents, open_pool):
    agents.start()
    agents.start()
    pool = open_pool()
    assert isinstance(pool, AgentPool)
    assert pool.description.device == Device()
    assert pool.description.manifest.name == "Scripted"
