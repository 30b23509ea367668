"""Agents of the fake framework, in this process and in a separate one."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from fake_framework import fake_registry, write_manifests

from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.serving.served_models import ServingOptions
from inferometer.manifests.catalog import Catalog
from tests.integration.slurm_cluster import SlurmCluster, installed, running_cluster


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A real Slurm of the module's own."""
    if not installed():
        pytest.skip("Slurm is not installed: apt-get install --no-install-recommends slurm-wlm munge")
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def manifest_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir()
    return write_manifests(folder)


@contextmanager
def agents_of(folder: Path) -> Iterator[Callable[..., AgentServer]]:
    with ExitStack() as stack:

        def start(parts=None, registry=None, predict_timeout_s=None, **options) -> AgentServer:
            if predict_timeout_s is not None:
                options["serving"] = ServingOptions(predict_timeout_s=predict_timeout_s)
            server = AgentServer(
                Catalog([folder]),
                registry or fake_registry(),
                ServerOptions(**{"port": 0, "grace_s": 5.0, **options}),
                **(parts or {}),
            )
            stack.callback(server.stop, 0)
            server.start()
            return server

        yield start


@pytest.fixture
def start_agent(manifest_folder: Path) -> Iterator[Callable[..., AgentServer]]:
    """Starts an agent in this process; ``options`` are the server's, ``parts`` its other arguments."""
    with agents_of(manifest_folder) as start:
        yield start


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifests(tmp_path_factory.mktemp("manifests"))


@pytest.fixture(scope="module")
def start_shared_agent(shared_folder: Path) -> Iterator[Callable[..., AgentServer]]:
    """As ``start_agent``, for an agent that tests share, none of which looks for what others change."""
    with agents_of(shared_folder) as start:
        yield start


@pytest.fixture
def channel_to() -> Iterator[Callable[[str], grpc.Channel]]:
    with ExitStack() as stack:
        yield lambda address: stack.enter_context(grpc.insecure_channel(address))


@dataclass
class AgentProcess:
    process: subprocess.Popen
    address: str
    http_url: str


@pytest.fixture
def spawn_agent(manifest_folder: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts an agent in a process of its own."""
    script = Path(__file__).with_name("fake_agent.py")
    with ExitStack() as stack:

        def spawn(grace_s: float = 20.0, drain_s: float = 0.0) -> AgentProcess:
            process = subprocess.Popen(
                [sys.executable, script, manifest_folder, str(grace_s), str(drain_s)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            addresses = process.stdout.readline().split()
            assert addresses, process.stderr.read()
            return AgentProcess(process, *addresses)

        yield spawn


def plugin_environment(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Sets the fake framework up as a plugin that is installed, and the places of the program in a folder."""
    here = Path(__file__).parent
    info = folder / "plugins" / "fake_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[inferometer.frameworks]\nfake = fake_framework:FAKE\n")
    for name in [name for name in os.environ if name.startswith("AGENT_")]:
        patch.delenv(name)
    patch.setenv("AGENT_DATA_DIR", str(folder / "data"))
    patch.setenv("AGENT_CACHE_DIR", str(folder / "cache"))
    patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (info.parent, here, here.parents[1]))))
    patch.syspath_prepend(info.parent)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of ``plugin_environment``."""
    plugin_environment(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def address(catalog: Catalog) -> Iterator[str]:
    """The address of an agent that serves the test file's ``catalog``."""
    server = AgentServer(catalog, Registry(), ServerOptions(port=0))
    try:
        server.start()
        yield server.address
    finally:
        server.stop(0)
