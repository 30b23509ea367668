"""The secret of a served agent is never printed, logged, traced, stored or profiled."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inferometer.client.api.configuration import load_configuration
from inferometer.client.api.invocation import Invocation
from tests.cli.conftest import Agent
from tests.integration.trace_collectors import COLLECTORS, HOST, Seen

SECRET = "hush-5b2f-never-to-be-seen"
WRONG = "guess-77c1-never-to-be-seen"
MAIN = "from inferometer.client.cli.main import main; main()"
FEW = ("--framework_name=ONNXRuntime", "--num_file_parts=1")
EVALUATE = ("predict", "dataset", *FEW, "--trace_level=FULL_TRACE", "-d", "--profile")


def run(*arguments: str) -> tuple[int, str]:
    """A command as a process of its own, and all that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def files_with(folder: Path, text: str) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            yield path


def stored_text(database: Path) -> Iterator[str]:
    """Everything that a database holds, as text."""
    with closing(sqlite3.connect(database)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield from (
                    value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in row
                )


def test_secret_is_in_nothing_that_a_traced_evaluation_leaves(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", SECRET)
    seen = Seen()
    with COLLECTORS["http://"](seen) as port:
        collector = f"--tracer_address=http://{HOST}:{port}"
        serving = subprocess.Popen(
            [sys.executable, "-c", MAIN, "serve", "--port=0", "-d", "--profile", collector],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        try:
            assert serving.stdout is not None
            address = serving.stdout.readline().removeprefix("serving on ").strip()
            code, printed = run(*EVALUATE, collector, f"--agent={address}")
            assert code == 0, printed
            code, refused = run(*EVALUATE, collector, f"--agent={address}", f"--secret={WRONG}")
            assert code == 6, refused
            serving.send_signal(signal.SIGTERM)
            out, errors = serving.communicate(timeout=60)
        finally:
            serving.kill()
            serving.communicate()
    assert serving.returncode == 0, errors
    assert seen.spans
    (identifier,) = re.findall("^evaluation +([0-9a-f-]+)$", printed, re.MULTILINE)
    texts = {
        "the evaluation": printed,
        "the refusal": refused,
        "the agent's log": out + errors,
        "the spans that were exported": repr((seen.spans, seen.resources, seen.headers)),
        "the spans that were stored": agent("trace", "export", identifier, "-f", "otlp-json").stdout,
        "the database": "\n".join(stored_text(tmp_path / "data" / "inferometer.db")),
        "the objects of the program": repr(Invocation({"secret": SECRET})),
    }
    assert "DEBUG" in texts["the refusal"], "the log is not as deep as it could be"
    assert "DigitsCNN" in texts["the database"]
    assert len(list((tmp_path / "data" / "profiles").iterdir())) == 3
    for secret in (SECRET, WRONG):
        assert {where for where, text in texts.items() if secret in text} == set()
        assert list(files_with(tmp_path, secret)) == []


def test_configuration_names_the_file_of_the_secret_and_not_the_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET, encoding="ascii")
    file = tmp_path / "config.yaml"
    file.write_text("secret_file: secret\nserving: {tls_cert: a.pem}\nagent_tls: {ca: ca.pem}\n")
    configuration = load_configuration(file)
    assert configuration.secret_file == tmp_path / "secret"
    assert configuration.serving.tls_cert == tmp_path / "a.pem"
    assert configuration.agent_tls.ca == tmp_path / "ca.pem"
    assert SECRET not in repr(configuration) + configuration.model_dump_json()
    assert Invocation({"config": str(file)}).secret == SECRET
