"""Ranks that a real Slurm has started, on one node and on two; skipped where Slurm is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration import rank_work
from tests.integration.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def srun(
    cluster: SlurmCluster, *options: str, folder: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["srun", *options, sys.executable, "-m", rank_work.__name__, "joins", str(folder)],
        env={**cluster.environment, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_ranks_on_one_node_meet_on_its_loopback_address(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    found = srun(slurm_cluster, "-n2", "-N1", folder=tmp_path)
    assert found.stdout == "evaluation (0, 3.0)\n", found.stderr


def test_ranks_on_two_nodes_meet_at_the_first_one(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    # the names of these nodes have no address, so that it is given
    found = srun(slurm_cluster, "-n2", "-N2", folder=tmp_path, MASTER_ADDR="127.0.0.1")
    assert found.stdout == "evaluation (0, 3.0)\n", found.stderr


def test_a_single_task_is_no_rank(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    found = srun(slurm_cluster, "-n1", folder=tmp_path)
    assert found.stdout == "evaluation (0, 1.0)\n", found.stderr
