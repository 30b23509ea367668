"""The commands of ``make gpu-check``, on the CPU: there is a GPU too seldom to find their mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gpu_check import CHECKS, Commands, Skipped

OF_A_GPU = {"hardware", "a GPU that is not there", "a GPU whose memory is taken"}


@pytest.mark.parametrize("name", sorted(set(CHECKS) - OF_A_GPU - {"predict max-qps"}))
def test_a_check_passes_on_the_processor(name: str, tmp_path: Path) -> None:
    commands = Commands("ONNXRuntime", tmp_path, device=())
    if name == "FULL_TRACE":
        with pytest.raises(Skipped, match="no calls of CUDA"):
            CHECKS[name](commands)
    else:
        CHECKS[name](commands)


def test_a_check_fails_where_a_command_does(tmp_path: Path) -> None:
    commands = Commands("ONNXRuntime", tmp_path, device=("--threads=-1",))
    with pytest.raises(AssertionError, match=r"exit code 2: .*--threads"):
        CHECKS["predict urls"](commands)
