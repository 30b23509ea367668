"""The plug-in package, installed, and ``agent`` in processes that find it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


@pytest.fixture
def agent(agent_environment: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Runs ``agent``, and returns what it prints to a stream."""
    program = "from inferometer.client.cli.main import main; main()"

    def call(*arguments: str, code: int = 0, stream: str = "stdout") -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path,
            env=agent_environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if stream == "stdout" else done.stderr

    return call
