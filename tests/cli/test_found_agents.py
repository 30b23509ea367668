"""Agents that are discovered: published or configured, listed, selected, and sharing a dataset."""

from __future__ import annotations

import json
import signal
import socket
import time
import uuid
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone

import pytest
from certificates import Authority

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.api.invocation import DEFAULT_DATABASE
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.client.remote.pool import BatchQueue, open_agent_pool
from inferometer.evaluators.datasets.opening import open_dataset
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.kinds.batches.run import DatasetRun
from inferometer.evaluators.store.opening import AgentRecord, open_agent_directory
from inferometer.manifests.catalog import Catalog
from tests.cli.conftest import served
from tests.contract.store_fixtures import mongodb_backend

FEW = ("--framework_name=ONNXRuntime", "--num_file_parts=1", "--publish=false")
DEADLINE_S = 60


@pytest.fixture
def database(tmp_path):
    with mongodb_backend(tmp_path) as backend:
        yield f"--database_address={backend.address}"


@pytest.fixture
def refusing():
    """An address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


def listed(agent, *arguments):
    answer = agent("info", "agents", "-f", "json", *arguments)
    assert answer.code == 0, answer.stderr
    return {row["address"]: row for row in json.loads(answer.stdout)}


def wait_until_listed(agent, addresses, *arguments):
    end_s = time.monotonic() + DEADLINE_S
    while set(found := listed(agent, *arguments)) != set(addresses):
        assert time.monotonic() < end_s, found
    return found


def test_three_agents_evaluate_together_and_one_is_killed(agent, monkeypatch):
    options = BatchOptions(batch_size=4, partition_list_size=4)
    dataset = open_dataset(Catalog().find_dataset("digits_validation"))

    def open_one(address):
        choice = SessionOptions(feature_limit=0)
        return open_remote_agent(address, "DigitsCNN", None, "ONNXRuntime", choice)

    with ExitStack() as stack:
        stack.enter_context(closing(dataset))
        processes = dict(stack.enter_context(served()) for _ in range(3))
        with closing(open_one(next(iter(processes)))) as system:
            alone = DatasetRun(system, dataset, options, keep_most=None).run()
        answered, said = [], []

        answer = BatchQueue.answer

        def kill_the_first_that_answers(queue, address, lease, result):
            answer(queue, address, lease, result)
            answered.append(address)
            if len(answered) == 1:
                processes[address].send_signal(signal.SIGKILL)
                processes[address].wait(DEADLINE_S)

        monkeypatch.setattr(BatchQueue, "answer", kill_the_first_that_answers)
        pool = open_agent_pool(list(processes), open_one, warm_up=True, say=said.append)
        with closing(pool) as system:
            shared = DatasetRun(system, dataset, options, keep_most=None).run()

    killed = answered[0]
    assert len(said) == 1
    assert f"agent {killed}: " in said[0]
    assert len(answered) == len(shared.measurement.times.sizes)
    assert set(answered) == set(processes)
    assert set(shared.system.agent.split(", ")) == set(processes)
    assert shared.status is alone.status
    assert shared.measurement.accuracy == alone.measurement.accuracy
    assert shared.measurement.failures == alone.measurement.failures == ()
    assert shared.measurement.times.sizes.tolist() == alone.measurement.times.sizes.tolist()
    ids = [prediction.input_id for prediction in shared.measurement.predictions]
    assert ids == [prediction.input_id for prediction in alone.measurement.predictions]
    assert len(set(ids)) == len(ids) == len(dataset)
    for ours, theirs in zip(shared.measurement.predictions, alone.measurement.predictions, strict=True):
        assert ours.indices.tolist() == theirs.indices.tolist()
        assert ours.probabilities.tolist() == theirs.probabilities.tolist()


def test_agents_share_a_dataset_and_the_record_names_them(agent, served_agent, refusing):
    common = ("predict", "dataset", "--framework_name=ONNXRuntime", "-b", "8", "--num_file_parts=-1")
    one = served_agent
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0)) as server:
        other = server.address
        alone = agent(*common, f"--agent={one}")
        shared = agent(*common, f"--agent={one},{refusing},{other}")
        urls = agent("predict", "urls", f"--agent={one},{one}", "--urls_file_path=x")
    assert (alone.code, shared.code) == (0, 0), shared.stderr
    for figure in ("top-1", "top-5", "failures"):
        assert shared.figure(figure) == alone.figure(figure)
    assert shared.stderr.startswith(f"left out: agent {refusing}: cannot be reached")
    assert f"{one}, {other}" in shared.stdout
    assert urls.code == 2
    assert f"names {one} twice" in urls.error
    rows = agent("info", "evaluation", "accuracy", "-f", "csv").rows
    assert {row["evaluated_inputs"] for row in rows} == {"450"}


def test_agent_that_cannot_open_the_model_is_an_error_and_not_left_out(agent, served_agent):
    with AgentServer(Catalog(), Registry(), ServerOptions(port=0, max_sessions=1)) as other:
        both = f"--agent={served_agent},{other.address}"
        answer = agent("predict", "dataset", both, "--weights=random", *FEW)
    assert answer.code == 4  # DigitsCNN is read from a file
    assert "random weights" in answer.error


def test_published_agents_are_listed_and_picked_until_they_stop(agent, database):
    with ExitStack() as stack:
        processes = dict(stack.enter_context(served(database, "--heartbeat_s=0.5")) for _ in range(2))
        found = wait_until_listed(agent, processes, database)
        for row in found.values():
            assert (row["state"], row["source"]) == ("alive", "database")
            assert row["hostname"] == socket.gethostname()
            assert "ONNXRuntime " in row["frameworks"]
            assert "DigitsCNN" in row["models"]
        assert listed(agent, database, "--model_name=NoSuch") == {}
        picked = agent("predict", "dataset", database, "--agent=any", *FEW)
        assert picked.code == 0, picked.stderr
        assert picked.stderr.startswith("agent any: ")
        chosen = agent(
            "predict", "dataset", database, f"--agent=framework=onnx,host={socket.gethostname()}", *FEW
        )
        assert chosen.code == 0, chosen.stderr
        stopped, killed = processes.values()
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(DEADLINE_S) == 0
        assert set(listed(agent, database)) == set(list(processes)[1:])
        killed.send_signal(signal.SIGKILL)
        killed.wait(DEADLINE_S)
        wait_until_listed(agent, [], database)
    gone = agent("predict", "dataset", database, "--agent=any", *FEW)
    assert gone.code == 6
    assert "no agent is alive for --agent any: none is published or configured" in gone.error


def test_local_file_is_a_directory_too_and_advertise_names_the_address(agent):
    with served("--advertise=localhost", "--http_port=0") as (address, process), served() as _:
        port = address.rpartition(":")[2]
        [found] = wait_until_listed(agent, [f"localhost:{port}"]).values()
        http_port = process.stdout.readline().strip().rpartition(":")[2]
        assert found["http_url"] == f"http://localhost:{http_port}"
        assert agent("predict", "dataset", "--agent=any", *FEW).code == 0


def test_an_agent_of_several_workers_is_published_once(agent, database):
    with served(database, "--heartbeat_s=0.5", "--workers=2", "--http_port=0") as (address, process):
        [found] = wait_until_listed(agent, [address], database).values()
        http_port = process.stdout.readline().strip().rpartition(":")[2]
        assert (found["state"], found["http_url"].rpartition(":")[2]) == ("alive", http_port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert listed(agent, database) == {}


def test_database_that_is_down_does_not_stop_the_serving(agent, refusing):
    database = f"--database_address=mongodb://{refusing}/?serverSelectionTimeoutMS=100"
    with served(database, "--heartbeat_s=0.1") as (address, process):
        said = process.stderr.readline()
        assert agent("predict", "dataset", f"--agent={address}", *FEW).code == 0
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert "the agent serves, but cannot be found" in said
    assert "cannot be found" not in rest
    assert agent("info", "agents", database).code == 5


def test_agents_of_the_configuration_need_no_database(agent, tmp_path, refusing):
    config = tmp_path / "config.yaml"
    with served("--secret=open sesame", "--http_port=0") as (address, process):
        http_url = process.stdout.readline().removeprefix("http on ").strip()
        config.write_text(f"agents: ['{address}', '{refusing}']\n")
        common = (f"--config={config}", "--secret=open sesame")
        found = listed(agent, *common)
        assert (found[address]["state"], found[address]["source"]) == ("alive", "configuration")
        assert found[address]["hostname"] == socket.gethostname()
        assert found[address]["http_url"] == http_url
        assert found[refusing]["http_url"] is None
        assert found[refusing]["state"].startswith("cannot be reached: connection refused")
        assert "secret" in listed(agent, f"--config={config}")[address]["state"]
        for selector in ("any", "framework=onnxruntime"):
            picked = agent("predict", "dataset", f"--agent={selector}", *common, *FEW)
            assert picked.code == 0, picked.stderr
            assert f"agent {selector}: {address}" in picked.stderr
        table = agent("info", "agents", *common).stdout
        assert "model names" not in table
        unreachable = f"--database_address=mongodb://{refusing}/?serverSelectionTimeoutMS=100"
        beside = agent("info", "agents", unreachable, *common)
        assert beside.code == 0
        assert beside.error.startswith("only the agents in the configuration are known: ")
    assert not (tmp_path / "data").exists()


def test_agent_of_the_configuration_may_be_chosen_by_a_workload(agent, served_agent, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"agent: any\nagents: ['{served_agent}']\n")
    answer = agent(
        *("predict", "workload", f"--config={config}", "--framework_name=ONNXRuntime"),
        *("--synthetic", "--duration=0.2", "--initial_qps=20", "--publish=false", "--allow_invalid"),
    )
    assert answer.code == 0, answer.stderr
    assert f"agent any: {served_agent}" in answer.stderr


def publish(data, address):
    """Writes an agent into the local file, as whoever may write there can."""
    now = datetime.now(timezone.utc)
    host = socket.gethostname()
    models = (RunnableModel("DigitsCNN", "1.0", "ONNXRuntime"),)
    agent_info = AgentInfo(host, "x86_64", "EPYC", (), {"ONNXRuntime": "1"}, models, "0.1", now)
    record = AgentRecord(str(uuid.uuid4()), address, agent_info, 0, now, now + timedelta(seconds=DEADLINE_S))
    with closing(open_agent_directory(None, DEFAULT_DATABASE, data)) as directory:
        directory.publish(record)


def test_odd_agents_of_the_database_are_shown_and_keep_nobody_from_the_others(agent, tmp_path, refusing):
    odd = ("kserve://somewhere:1", f"grpc://{refusing}")
    for address in odd:
        publish(tmp_path / "data", address)
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    tls = (f"--tls_ca={authority.ca}",)
    with served(
        "--advertise=auto", f"--tls_cert={files.cert}", f"--tls_key={files.key}", "--secret=open sesame"
    ) as (address, _):
        sound = f"grpcs://{address}"
        found = wait_until_listed(agent, (*odd, sound), *tls)
        picked = agent("predict", "dataset", "--agent=any", "--secret=open sesame", *tls, *FEW)
    assert found[sound]["state"] == "alive"
    assert found[odd[0]]["state"] == "published with an address that is not host:port"
    assert found[odd[1]]["state"].startswith("published without TLS")
    assert picked.code == 0, picked.stderr
    assert f"agent any: {sound}" in picked.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("dataset", "--agent=gpus=H100"), 2, 'unknown key "gpus"; did you mean "gpu" or "cpu"?'),
        (("dataset", "--agent=gpu="), 2, "is not a condition"),
        (("dataset", "--agent=any"), 6, "no agent is alive"),
        (("dataset", "--agent=a:1,b"), 2, '"b" is not host:port'),
        (("workload", "--agent=a:1,b:2"), 2, "2 agents are named"),
        (("max-qps", "--agent=a:1,b:2"), 2, "2 agents are named"),
        (("dataset", "--agent=a:1", "--agent_timeout=0"), 2, "agent_timeout"),
        *(((kind, "--agent=a:1", "--open_timeout=0"), 2, "open_timeout") for kind in ("dataset", "max-qps")),
    ],
)
def test_wrong_choice_is_one_clear_line(agent, arguments, code, part):
    answer = agent("predict", *arguments)
    assert answer.code == code
    assert part in answer.error


@pytest.mark.parametrize("kind", ["dataset", "workload"])
def test_agent_has_as_long_to_open_the_model_as_is_said(agent, kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        answer = agent("predict", kind, f"--agent={address}", "--open_timeout=0.3", "--publish=false")
    assert answer.code == 6
    assert f"agent {address}: did not open the model within 0.3 s; " in answer.error
    assert "--open_timeout" in answer.error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--advertise=host:x",), "is not an address; allowed: HOST:PORT, HOST, auto or none"),
        (("--database_address=http://db",), "database address"),
        (("--heartbeat_s=0",), "heartbeat_s"),
    ],
)
def test_wrong_publication_is_one_clear_line(agent, arguments, part):
    answer = agent("serve", "--port=0", *arguments)
    assert answer.code == 2
    assert part in answer.error


def test_wrong_address_in_the_configuration_is_one_clear_line(agent, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("agents: [gpu-host]\n")
    answer = agent("info", "agents", f"--config={config}")
    assert answer.code == 2
    assert 'agent address "gpu-host" is not host:port' in answer.error


def test_no_agents_are_an_empty_list_and_make_no_file(agent, tmp_path):
    assert agent("info", "agents", "-f", "json").stdout.strip() == "[]"
    assert not (tmp_path / "data").exists()
