"""A database that cannot be used fails on opening: soon, in one line, without its password."""

from __future__ import annotations

import gc
import logging
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dns.exception import Timeout
from dns.resolver import NXDOMAIN, NoNameservers, NoResolverConfiguration

from inferometer.evaluators.store.evaluation_store import EvaluationFilter
from inferometer.evaluators.store.opening import open_agent_directory, open_store
from inferometer.manifests.errors import ConfigurationError, InferometerError, StoreError
from tests.contract.store_fixtures import NxServer, make_evaluation


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is ours and on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def refused(address: str | None, name: str, directory: Path, error: type[InferometerError]) -> str:
    with pytest.raises(error) as caught:
        open_store(address, name, directory)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


def test_a_name_becomes_a_file_and_dots_become_underscores(tmp_path: Path) -> None:
    store = open_store(None, "carml.model.trace", tmp_path / "new" / "folder")
    assert store.location == str(tmp_path / "new" / "folder" / "carml_model_trace.db")
    store.close()
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["carml_model_trace.db"]


@pytest.mark.parametrize("name", ["", " ", "../evil", "a/b", "a\\b", "a\0b", "a$b", "x" * 61, "größe"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    message = refused(None, name, tmp_path / "data", ConfigurationError)
    assert repr(name) in message
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("these are notes, not evaluations\n" * 100)
    before = path.read_bytes()
    assert f"{path}: cannot be opened" in refused(None, "notes", tmp_path, StoreError)
    assert path.read_bytes() == before


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken.db").mkdir()
    assert "unable to open database file" in refused(None, "taken", tmp_path, StoreError)


def test_a_file_that_cannot_be_opened_leaves_nothing_that_fails_when_it_is_collected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what earlier tests left, so that its log lines and their objects are not kept here
    caplog.set_level(logging.DEBUG)
    (tmp_path / "taken.db").mkdir()
    refused(None, "taken", tmp_path, StoreError)
    gc.collect()
    assert "RecursionError" not in caplog.text


def test_an_unopened_file_crashes_no_thread_with_a_small_stack(tmp_path: Path) -> None:
    (tmp_path / "taken.db").mkdir()
    script = f"""if True:
        import gc, threading
        from pathlib import Path
        from inferometer.evaluators.store.sqlite import connect_sqlite
        gc.disable()
        try:
            connect_sqlite(Path({str(tmp_path / "taken.db")!r}))
        except Exception as error:
            error.kept = error.__traceback__, error  # a cycle, which only a collection ends
        threading.stack_size(128 * 1024)
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    """
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused(None, "x", tmp_path / "file" / "data", StoreError)
    assert f"{tmp_path / 'file' / 'data'}: cannot create the folder for evaluations" in message
    assert "--publish=false" in message


def test_another_programs_database_is_not_read_as_evaluations(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE evaluation (grade TEXT)")
    other.close()
    with pytest.raises(StoreError, match=r"other\.db"):
        open_store(None, "other", tmp_path).find(EvaluationFilter())


def test_a_database_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = make_evaluation()
    store = open_store(None, "kept", tmp_path)
    store.save(evaluation)
    store.close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a file system that is mounted to be read
    store = open_store(None, "kept", tmp_path)
    [found] = store.find(EvaluationFilter())
    assert found.id == evaluation.id
    with pytest.raises(StoreError, match="was not kept: attempt to write a readonly database"):
        store.save(make_evaluation())
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["kept.db"]


def test_what_waits_in_the_log_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of the writer on a host whose disk was then mounted to be read."""
    evaluation = make_evaluation()
    store = open_store(None, "kept", tmp_path / "whole")
    store.save(evaluation)
    (tmp_path / "left").mkdir()
    for path in (tmp_path / "whole").iterdir():
        (tmp_path / "left" / path.name).write_bytes(path.read_bytes())
    store.close()
    assert (tmp_path / "left" / "kept.db-wal").stat().st_size > 0
    monkeypatch.setattr(os, "access", lambda *_: False)
    store = open_store(None, "kept", tmp_path / "left")
    assert [found.id for found in store.find(EvaluationFilter())] == [evaluation.id]
    store.close()


@pytest.mark.parametrize("address", ["{}", "mongodb://{}/?serverSelectionTimeoutMS=100"])
def test_a_database_that_is_down_is_an_error_within_seconds(
    address: str, closed_port: int, tmp_path: Path
) -> None:
    here = f"127.0.0.1:{closed_port}"
    start = time.monotonic()
    message = refused(address.format(here), "evaluations", tmp_path, StoreError)
    assert time.monotonic() - start < 20
    assert here in message
    assert "Connection refused" in message
    assert "--publish=false" in message
    assert "--database_address" in message


def test_a_login_is_never_shown(closed_port: int, tmp_path: Path) -> None:
    address = f"mongodb://alice:s3cr%40t@127.0.0.1:{closed_port}/?authSource=hidden&appname=s3cr%40t"
    address += "&serverSelectionTimeoutMS=100"
    message = refused(address, "evaluations", tmp_path, StoreError)
    for secret in ("alice", "s3cr", "hidden"):
        assert secret not in message
    assert f"mongodb://127.0.0.1:{closed_port}/evaluations" in message


@pytest.mark.parametrize(
    "address",
    [
        "mongodb://alice:s3c:ret@host",
        "mongodb://alice:s3c@ret@host",
        "mongodb://alice:s3c/ret@host",
        "alice:s3c%ret@host:27017",
        "postgres://alice:s3c@host",
        "http://alice:s3c@host/?key=s3c",
    ],
)
def test_an_address_that_makes_no_sense_is_an_error_without_the_login(address: str, tmp_path: Path) -> None:
    message = refused(address, "evaluations", tmp_path, ConfigurationError)
    assert "makes no sense" in message
    assert "s3c" not in message
    assert "alice" not in message


@pytest.mark.parametrize("address", ["", " ", "host:port", "host:99999", "sqlite:///tmp/x.db"])
def test_an_address_that_makes_no_sense_is_an_error(address: str, tmp_path: Path) -> None:
    assert "allowed: host, host:port" in refused(address, "evaluations", tmp_path, ConfigurationError)


class _NoAnswer:
    """DNS that gives no answer."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [NXDOMAIN(), NoNameservers(), Timeout(), NoResolverConfiguration()])
def test_a_host_that_dns_does_not_find_is_a_database_that_cannot_be_reached(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dns.resolver.resolve", _NoAnswer(error))
    message = refused("mongodb+srv://alice:s3cret@cluster.example.org", "x", tmp_path, StoreError)
    assert f"cannot be looked up ({type(error).__name__})" in message
    assert "mongodb+srv://cluster.example.org/x" in message
    assert "s3cret" not in message


@pytest.mark.parametrize(
    "address",
    ["mongodb+srv://a..b.c", f"mongodb+srv://{'a' * 64}.b.c", "mongodb+srv://a.b.c:1", "mongodb+srv://"],
)
def test_a_host_that_is_no_name_makes_no_sense(address: str, tmp_path: Path) -> None:
    assert "makes no sense" in refused(address, "x", tmp_path, ConfigurationError)


def test_a_file_that_an_address_names_and_that_is_not_there_is_named(tmp_path: Path) -> None:
    address = "mongodb://alice:s3cret@host/?tls=true&tlsCAFile=/none.pem"
    message = refused(address, "x", tmp_path, ConfigurationError)
    assert "No such file or directory: '/none.pem'" in message
    assert "s3cret" not in message


def test_a_directory_of_agents_that_is_down_is_no_matter_of_evaluating(
    closed_port: int, tmp_path: Path
) -> None:
    down = f"mongodb://127.0.0.1:{closed_port}/?serverSelectionTimeoutMS=100"
    (tmp_path / "taken.db").mkdir()
    for address, name in ((down, "x"), (None, "taken")):
        with pytest.raises(StoreError) as caught:
            open_agent_directory(address, name, tmp_path)
        assert "--publish" not in str(caught.value)
        assert re.search(r"; (start it, or name another one with|use another) --database_", str(caught.value))


def test_a_location_is_shown_without_the_login(tmp_path: Path) -> None:
    server = NxServer(tmp_path)
    try:
        store = open_store(f"mongodb://{server.address}/?appname=hidden", "carml.accuracy", tmp_path)
        assert store.location == f"mongodb://{server.address}/carml_accuracy"
        store.close()
    finally:
        server.stop()
