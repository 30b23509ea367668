"""Every store keeps the directory of serving agents: published, expired and removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import (
    AgentDirectory,
    AgentRecord,
    check_address,
    open_agent_directory,
)
from inferometer.manifests.errors import ConfigurationError, StoreError
from tests.contract.store_fixtures import StoreBackend, make_evaluation

NOW = datetime.now(timezone.utc).replace(microsecond=678000) + timedelta(days=1)
"""Not yet over, as MongoDB removes by its own clock what has expired."""


@pytest.fixture
def directory(backend: StoreBackend, name: str) -> Iterator[AgentDirectory]:
    directory = open_agent_directory(backend.address, name, backend.data_dir)
    yield directory
    directory.close()
    directory.close()


def make_record(id_: str = "one", address: str = "gpu-1:50051", after_s: float = 0.0) -> AgentRecord:
    agent_info = AgentInfo(
        hostname="gpu-1 ☃",
        architecture="x86_64",
        cpu_model="AMD EPYC 7763",
        gpus=("NVIDIA H100", "NVIDIA H100"),
        frameworks={"PyTorch": "2.13.0+cpu", "My.Framework": "$1"},
        models=(RunnableModel("ResNet50", "1.0", "PyTorch"), RunnableModel("модель", "2", "MXNet")),
        inferometer_version="0.1.0",
        started_at=NOW - timedelta(days=30),
        http_port=8000,
    )
    published = NOW + timedelta(seconds=after_s)
    return AgentRecord(id_, address, agent_info, 3, published, published + timedelta(seconds=30))


def test_published_agent_comes_back_as_it_was(directory: AgentDirectory) -> None:
    directory.publish(make_record())
    assert directory.alive(NOW) == [make_record()]


def test_agent_of_an_earlier_version_publishes_no_port_of_http(
    directory: AgentDirectory, backend: StoreBackend, name: str
) -> None:
    directory.publish(make_record())
    with backend.documents(name) as documents:
        [document] = documents["agent"].find({})
        documents["agent"].delete_many({})
        del document["http_port"]
        documents["agent"].insert_one(document)
    [found] = directory.alive(NOW)
    assert found.agent_info == replace(make_record().agent_info, http_port=None)


def test_heartbeat_replaces_the_one_before(
    directory: AgentDirectory, backend: StoreBackend, name: str
) -> None:
    for beat in range(5):
        directory.publish(replace(make_record(after_s=10 * beat), open_sessions=beat))
    [found] = directory.alive(NOW + timedelta(seconds=41))
    assert (found.open_sessions, found.published_at) == (4, NOW + timedelta(seconds=40))
    with backend.documents(name) as documents:
        assert len(list(documents["agent"].find({}))) == 1


def test_agent_that_has_expired_is_not_found_and_is_removed_by_the_next(
    directory: AgentDirectory, backend: StoreBackend, name: str
) -> None:
    directory.publish(make_record())
    assert len(directory.alive(NOW + timedelta(milliseconds=29_999))) == 1
    assert directory.alive(NOW + timedelta(seconds=30)) == []
    directory.publish(make_record("two", "gpu-2:1", after_s=31))
    assert [agent.id for agent in directory.alive(NOW)] == ["two"]
    with backend.documents(name) as documents:
        assert [document["agent_id"] for document in documents["agent"].find({})] == ["two"]


def test_agents_are_listed_by_address_and_taken_out_one_by_one(directory: AgentDirectory) -> None:
    for id_, address in (("c", "c:1"), ("a", "a:1"), ("b", "b:1")):
        directory.publish(make_record(id_, address))
    assert [agent.address for agent in directory.alive(NOW)] == ["a:1", "b:1", "c:1"]
    directory.remove("b")
    directory.remove("nobody")
    assert [agent.address for agent in directory.alive(NOW)] == ["a:1", "c:1"]


def test_agent_that_is_started_again_replaces_the_one_that_was_killed(directory: AgentDirectory) -> None:
    directory.publish(make_record("killed"))
    directory.publish(make_record("new", after_s=1))
    assert [agent.id for agent in directory.alive(NOW + timedelta(seconds=1))] == ["new"]


def test_two_machines_may_have_the_same_local_address(directory: AgentDirectory) -> None:
    one = make_record("one", "127.0.0.1:50051")
    other = make_record("other", "127.0.0.1:50051")
    directory.publish(one)
    directory.publish(replace(other, agent_info=replace(other.agent_info, hostname="gpu-2")))
    assert {agent.id for agent in directory.alive(NOW)} == {"one", "other"}


def test_several_processes_publish_into_one_directory(backend: StoreBackend, name: str) -> None:
    opened = [open_agent_directory(backend.address, name, backend.data_dir) for _ in range(3)]
    for number, directory in enumerate(opened):
        directory.publish(make_record(str(number), f"a:{number + 1}"))
    assert len(opened[0].alive(NOW)) == 3
    for directory in opened:
        directory.close()


def test_agents_and_evaluations_share_a_database(
    directory: AgentDirectory, backend: StoreBackend, name: str
) -> None:
    directory.publish(make_record())
    store = backend.open(name)
    store.save(make_evaluation())
    assert len(store.find(EvaluationFilter())) == 1
    store.close()
    assert len(directory.alive(NOW)) == 1


def test_agent_that_cannot_be_read_is_said_and_left_out(
    directory: AgentDirectory, backend: StoreBackend, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory.publish(make_record())
    later = {"expires_unix_ms": 2**52, "expires_at": NOW + timedelta(days=10**5)}
    with backend.documents(name) as documents:
        documents["agent"].insert_one({"_id": "future", "schema_version": 99, **later})
        documents["agent"].insert_one({"_id": "damaged", "schema_version": 1, **later})
    assert [agent.id for agent in directory.alive(NOW)] == ["one"]
    assert len(caplog.records) == 2
    assert "its schema version is 99" in caplog.text


def test_mongodb_removes_what_has_expired_by_itself(
    directory: AgentDirectory, backend: StoreBackend, name: str
) -> None:
    if backend.address is None:
        pytest.skip("SQLite removes nothing by itself")
    directory.publish(make_record())
    with backend.documents(name) as documents:
        indexes = documents["agent"].index_information()
    assert [i["expireAfterSeconds"] for i in indexes.values() if "expireAfterSeconds" in i] == [0]


def test_directory_that_cannot_be_reached_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        open_agent_directory("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", "x", tmp_path)
    (tmp_path / "x.db").write_text("no database")
    with pytest.raises(StoreError, match=r"x\.db: cannot be opened"):
        open_agent_directory(None, "x", tmp_path)


def test_address_that_makes_no_sense_is_refused_without_asking_anybody() -> None:
    assert check_address(" db:27017 ") == "db:27017"
    with pytest.raises(ConfigurationError, match="makes no sense") as error:
        check_address("http://user:hidden@db")
    assert "hidden" not in str(error.value)
