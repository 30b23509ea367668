"""Servers of MongoDB's protocol that have less than MongoDB, and users who may do less."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest

from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_agent_directory, open_store
from inferometer.manifests.errors import StoreError
from tests.contract.refusing_proxy import no_expiring_index, no_nested_arrays, no_writes, refusing
from tests.contract.store_fixtures import NxServer, make_evaluation
from tests.contract.test_agent_directories import NOW, make_record
from tests.contract.test_span_stores import traced_evaluation

LESS = (no_expiring_index, no_nested_arrays)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NxServer]:
    server = NxServer(tmp_path_factory.mktemp("less"))
    yield server
    server.stop()


@pytest.fixture
def name() -> str:
    return f"test_{uuid.uuid4().hex}"


def test_reading_makes_no_index(server: NxServer, name: str, tmp_path: Path) -> None:
    store = open_store(server.address, name, tmp_path)
    assert store.find(EvaluationFilter()) == []
    store.close()
    with pymongo.MongoClient[dict[str, object]](server.address) as client:
        assert client[name].list_collection_names() == []


def test_an_index_that_is_refused_is_one_warning(
    server: NxServer, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with refusing(server.port, LESS) as address:
        directory = open_agent_directory(address, name, tmp_path)
        for _ in range(3):
            directory.publish(make_record())
        assert directory.alive(NOW) == [make_record()]
        assert directory.alive(NOW + timedelta(days=1)) == []
        directory.close()
    [line] = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "refused indexes" in line
    assert 'agent.expires_at (Index option "expireAfterSeconds" is not implemented)' in line


def test_a_traced_evaluation_has_no_array_in_an_array(server: NxServer, name: str, tmp_path: Path) -> None:
    evaluation = traced_evaluation(4)
    with refusing(server.port, LESS) as address:
        store = open_store(address, name, tmp_path)
        assert store.save(evaluation)
        [kept] = store.spans(evaluation.id)
        store.close()
    assert kept.kinds == evaluation.spans[0].kinds
    with pymongo.MongoClient[dict[str, Any]](server.address) as client:
        document = client[name]["span"].find_one()
    assert document is not None
    assert {"k": "inferometer.layer_index", "v": 3} in document["kinds"][1]["attributes"]


def test_the_cause_of_a_refused_write_is_named(server: NxServer, name: str, tmp_path: Path) -> None:
    def full(command: object) -> dict[str, object] | None:
        if not isinstance(command, dict) or "documents" not in command:
            return None
        return {"ok": 1.0, "n": 0, "writeErrors": [{"index": 0, "code": 14031, "errmsg": "the disk is full"}]}

    with refusing(server.port, [full]) as address:
        store = open_store(address, name, tmp_path)
        with pytest.raises(StoreError, match=r"was not kept: the disk is full$"):
            store.save(make_evaluation())
        store.close()


def test_who_may_only_read_can_read(server: NxServer, name: str, tmp_path: Path) -> None:
    evaluation = make_evaluation()
    writer = open_store(server.address, name, tmp_path)
    writer.save(evaluation)
    writer.close()
    with refusing(server.port, [no_writes]) as address:
        store = open_store(address, name, tmp_path)
        [found] = store.find(EvaluationFilter())
        assert found.id == evaluation.id
        with pytest.raises(StoreError, match=r"not authorized on .* to execute command insert"):
            store.save(make_evaluation())
        store.close()


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (18, "Authentication failed.", "check the user and the password in --database_address"),
        (13, "command find requires authentication", "check the user and the password in --database_address"),
        (115, "find is not supported", "name another database with --database_address"),
    ],
)
def test_the_advice_fits_the_refusal(
    server: NxServer, name: str, tmp_path: Path, code: int, reason: str, advice: str
) -> None:
    def refuse(command: object) -> dict[str, object] | None:
        if isinstance(command, dict) and "find" in command:
            return {"ok": 0.0, "code": code, "errmsg": reason}
        return None

    with (
        refusing(server.port, [refuse]) as address,
        pytest.raises(StoreError, match=f"cannot be used: {reason}; {advice}"),
    ):
        open_store(address, name, tmp_path)
