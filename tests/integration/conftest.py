"""Agents of the fake framework, in this process and in one of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from fake_framework import fake_registry, write_manifests

from agent.server.models.served_models import ServingOptions
from agent.server.server import AgentServer, ServerOptions
from manifests.catalog import Catalog


@pytest.fixture
def manifest_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir()
    return write_manifests(folder)


@pytest.fixture
def start_agent(manifest_folder: Path) -> Iterator[Callable[..., AgentServer]]:
    """Starts an agent in this process; ``options`` are the server's, ``parts`` its other arguments."""
    with ExitStack() as stack:

        def start(parts=None, registry=None, predict_timeout_s=None, **options) -> AgentServer:
            if predict_timeout_s is not None:
                options["serving"] = ServingOptions(predict_timeout_s=predict_timeout_s)
            server = AgentServer(
                Catalog([manifest_folder]),
                registry or fake_registry(),
                ServerOptions(**{"port": 0, "grace_s": 5.0, **options}),
                **(parts or {}),
            )
            stack.callback(server.stop, 0)
            server.start()
            return server

        yield start


@pytest.fixture
def channel_to() -> Iterator[Callable[[str], grpc.Channel]]:
    with ExitStack() as stack:
        yield lambda address: stack.enter_context(grpc.insecure_channel(address))


@dataclass
class AgentProcess:
    process: subprocess.Popen
    address: str


@pytest.fixture
def spawn_agent(manifest_folder: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts an agent in a process of its own."""
    script = Path(__file__).with_name("fake_agent.py")
    with ExitStack() as stack:

        def spawn(grace_s: float = 20.0) -> AgentProcess:
            process = subprocess.Popen(
                [sys.executable, script, manifest_folder, str(grace_s)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            address = process.stdout.readline().strip()
            assert address, process.stderr.read()
            return AgentProcess(process, address)

        yield spawn
