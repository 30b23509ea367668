"""``agent web`` as a command: what it refuses, and that it starts and stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from inferometer.client.cli.main import run

Refused = Callable[..., str]
COMMAND = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()"]


@pytest.fixture
def refused(data: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line with which the command refuses to start."""

    def answer(*words: str) -> str:
        assert run(["web", "--port=0", *words]) != 0
        found = capsys.readouterr()
        assert found.out == ""
        (line,) = found.err.splitlines()
        return line

    return answer


def test_others_do_not_reach_it_by_mistake(refused: Refused) -> None:
    assert "can be reached by others, but the page has no TLS and no secret" in refused("--host=0.0.0.0")
    assert "the page has no TLS" in refused("--host=0.0.0.0", "--secret=hush")
    assert "give one of them" in refused("--local", "--host=0.0.0.0")


def test_what_it_cannot_use_is_told_in_one_line(refused: Refused, tmp_path: Path) -> None:
    assert "TLS needs both" in refused("--tls_cert=server.pem")
    assert "missing.pem" in refused(f"--tls_cert={tmp_path}/missing.pem", f"--tls_key={tmp_path}/key.pem")
    assert "cannot listen on" in refused("--host=nowhere.invalid")


def test_without_its_packages_it_names_them_and_the_other_way(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "inferometer.client.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    line = refused()

    assert 'pip install "inferometer[web]"' in line
    assert "agent report" in line


def test_it_serves_until_it_is_told_to_stop(data: Path) -> None:
    program = subprocess.Popen(
        [*COMMAND, "web", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        url = line.removeprefix("page on ").strip()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}api/events", timeout=30) as stream:
            assert stream.readline().startswith(b"retry")
            program.send_signal(signal.SIGTERM)
            _, errors = program.communicate(timeout=20)
    finally:
        program.kill()
    assert (program.returncode, errors) == (0, "")
