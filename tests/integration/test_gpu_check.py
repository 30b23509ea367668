"""The commands of ``make gpu-check``, on the CPU: there is a GPU too seldom to find their mistakes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from inferometer.client.cli.main import run
from inferometer.evaluators.kinds.operators import peak
from inferometer.evaluators.kinds.operators.measurement import MachinePeak
from tools.gpu_check import CHECKS, Commands, Skipped

OF_A_GPU = {"hardware", "a GPU that is not there", "a GPU whose memory is taken"}
AT_ONCE = "two processes on one GPU"


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    peak_once: Callable[[int, str], MachinePeak | None],
) -> Commands:
    """Runs the commands in this process, which imports a framework once for all of them.

    The machine's peak, too, is measured once for all tests of the session.
    """

    class Here(Commands):
        def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            capfd.readouterr()
            code = run([*arguments])
            return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    for name in [name for name in os.environ if name.startswith("AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AGENT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("AGENT_CONFIG", str(tmp_path / "config.yml"))
    monkeypatch.setattr(peak, "_in_fresh_process", peak_once)
    return Here(getattr(request, "param", "ONNXRuntime"), tmp_path, device=())


@pytest.mark.parametrize("name", sorted(set(CHECKS) - OF_A_GPU - {"predict max-qps", AT_ONCE}))
def test_a_check_passes_on_the_processor(name: str, here: Commands) -> None:
    lacking = {"FULL_TRACE": "no calls of CUDA", "bench training": "trains no models"}
    lacking |= {"measure generation": "the package has no language model"}
    if name in lacking:
        with pytest.raises(Skipped, match=lacking[name]):
            CHECKS[name](here)
    else:
        CHECKS[name](here)


def test_a_check_of_processes_passes_on_the_processor(tmp_path: Path) -> None:
    CHECKS[AT_ONCE](Commands("ONNXRuntime", tmp_path, device=()))


@pytest.mark.parametrize("name", ["bench training", "measure generation"])
@pytest.mark.parametrize("here", ["PyTorch"], indirect=True)
def test_what_only_other_frameworks_do_passes_on_the_processor(here: Commands, name: str) -> None:
    CHECKS[name](here)


def test_a_check_fails_where_a_command_does(tmp_path: Path) -> None:
    commands = Commands("ONNXRuntime", tmp_path, device=("--threads=-1",))
    with pytest.raises(AssertionError, match=r"exit code 2: .*--threads"):
        CHECKS["predict urls"](commands)
