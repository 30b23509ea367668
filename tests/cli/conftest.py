"""The command line in this process, with data and configuration in a temporary folder, and served agents."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from inferometer.agent.hardware.environment import read_environment
from inferometer.agent.inference.registry import Registry
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.client.cli.main import run
from inferometer.evaluators.kinds.batches import measurement
from inferometer.evaluators.kinds.operators import peak
from inferometer.evaluators.kinds.operators.job import JOURNAL
from inferometer.evaluators.kinds.operators.measurement import MachinePeak
from inferometer.manifests.catalog import Catalog


@dataclass(frozen=True)
class Answer:
    """What a call of the command line gave."""

    code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The only line on stderr."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        return lines[0]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of a csv report."""
        return list(csv.DictReader(io.StringIO(self.stdout)))

    def figure(self, name: str) -> str:
        """A line of the summary."""
        match = re.search(rf"^{name} +(.*)$", self.stdout, re.MULTILINE)
        assert match, self.stdout
        return match[1]


Agent = Callable[..., Answer]
FilledOnce = Callable[..., None]
COMMAND = [sys.executable, "-c", "from inferometer.client.cli.main import main; main()", "serve", "--port=0"]


@contextmanager
def served(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An agent on a free port; its address and its process."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ if environment is None else environment),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on "), process.communicate(timeout=10)
        yield line.removeprefix("serving on ").strip(), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


PLACES = ("here", "native", "kserve", "kserve+http")


@pytest.fixture(scope="module")
def addresses(models: Path) -> Iterator[dict[str, tuple[str, ...]]]:
    """The options that name each of ``PLACES`` where the test file's ``models``, a folder, run."""
    server = AgentServer(Catalog([models]), Registry(), ServerOptions(port=0, http_port=0))
    try:
        server.start()
        served = {"native": server.address, "kserve": f"kserve://{server.address}"}
        served["kserve+http"] = f"kserve+{server.http_url}"
        yield {"here": ()} | {place: (f"--agent={address}",) for place, address in served.items()}
    finally:
        server.stop(0)


@pytest.fixture(scope="session")
def served_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an agent without options, which the tests share."""
    yield from _shared(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def secret_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an agent with the secret "open sesame", which the tests share."""
    yield from _shared(tmp_path_factory.mktemp("secret"), "--secret=open sesame")


def _shared(folder: Path, *arguments: str) -> Iterator[str]:
    """Serves an agent whose files lie in a folder of its own, and that ends as it should."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_")}
    for name in ("AGENT_DATA_DIR", "AGENT_CACHE_DIR", "XDG_CONFIG_HOME"):
        environment[name] = str(folder / name)
    with served(*arguments, environment=environment) as (address, process):
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module", autouse=True)
def _measured_briefly(
    peak_once: Callable[[int, str], MachinePeak | None], ceiling_once: None
) -> Iterator[None]:
    """What this machine can send and compute is measured once, and an interval of p50 is not waited for.

    The first takes most of a second of each search, the second two seconds of each measurement of operators
    in an empty folder, and the third seconds of each dataset without a length.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak, "_in_fresh_process", peak_once)
        patch.setattr(measurement, "TIME_BUDGET_S", 0.2)
        yield


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("AGENT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def known_peak(_own_environment: None) -> None:
    """A process of the test finds the peak of one thread, which it else takes seconds to measure."""
    folder = Path(os.environ["AGENT_DATA_DIR"]) / JOURNAL
    assert peak.machine_peak(read_environment({}).cpu_model, 1, "float32", folder)


@pytest.fixture(scope="module")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filled")


@pytest.fixture
def filled_once(_filled: Path) -> FilledOnce:
    """Fills the data directory of a file's first test by a function, and that of each later one by a copy.

    A file whose tests have several contents names each.
    """

    def fill(by: Callable[[], object], name: str = "data") -> None:
        data, kept = Path(os.environ["AGENT_DATA_DIR"]), _filled / name
        if not kept.exists():
            by()
            shutil.copytree(data, _filled / "unfinished")
            (_filled / "unfinished").rename(kept)
        else:
            shutil.copytree(kept, data)

    return fill


@pytest.fixture
def agent(capsys: pytest.CaptureFixture[str]) -> Agent:
    """Runs ``agent`` with some arguments."""

    def call(*args: str | Path) -> Answer:
        capsys.readouterr()
        code = run([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call
