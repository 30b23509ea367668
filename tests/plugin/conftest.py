"""The plug-in package, installed, and ``agent`` in processes that find it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the plug-in is installed, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--target", str(folder), str(HERE)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def agent_environment(installed: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the plug-in, with data of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    search = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": search, "AGENT_DATA_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return kept | own | {"COLUMNS": "200"}


# what a process of the command line costs most is its imports, which the calls of a test share
_CALLS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from inferometer.client.cli.main import run

for line in sys.stdin:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = run(json.loads(line))
    answer = [code, *(stream.buffer.getvalue().decode() for stream in (out, err))]
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def agent(agent_environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs ``agent`` in a process of the test's own, and returns what it prints to a stream."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str, code: int = 0, stream: str = "stdout") -> str:
        if not started:  # a test may change its environment until then
            command = [sys.executable, "-c", _CALLS]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen(command, cwd=tmp_path, env=agent_environment, **pipes))
        [process] = started
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(arguments), file=process.stdin, flush=True)
        found, out, err = json.loads(process.stdout.readline())
        assert found == code, err
        printed: str = out if stream == "stdout" else err
        return printed

    yield call
    for process in started:
        process.communicate(timeout=120)
        assert process.returncode == 0
