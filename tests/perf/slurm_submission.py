"""What a plan's runs cost a real Slurm as single jobs, as one array, and by submitit: all of them are empty.

Each measurement has a cluster of its own, because Slurm lists jobs that have ended for a while.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.slurm_cluster import SlurmCluster, installed, running_cluster, wait_for
from tests.perf.ratios import Row, divided, interleaved

JOBS = 100
ROUNDS = 3
PYTHON = "INFEROMETER_SUBMITIT_PYTHON"
"""The variable that names a Python with submitit."""
_LOOKS = 5
_LIMIT_S = 300.0
_OPTIONS = ("--parsable", "--mem=100M", "--output=/dev/null")
_SUBMITIT = """\
import pathlib, sys, time, submitit
folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
executor = submitit.SlurmExecutor(folder=folder.parent / "submitit")
executor.update_parameters(time=5, mem="100M", array_parallelism=count)
begin = time.monotonic()
executor.map_array(pathlib.Path.touch, [folder / str(number) for number in range(count)])
print(time.monotonic() - begin)
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """How long one way took, in seconds.

    Attributes:
        submit_s: Until all runs were submitted.
        done_s: From the same moment until the last one had its result file.
        look_s: One call of squeue for all of them.
    """

    submit_s: float
    done_s: float
    look_s: float


def measure() -> Sequence[Row]:
    """Returns array / jobs and submitit / jobs, for each of the times; none where Slurm is not installed."""
    if not installed():
        return ()
    ways = {"jobs": _jobs, "array": _array}
    if PYTHON in os.environ:
        ways["submitit"] = _submitit
    taken = interleaved(ROUNDS, {name: lambda way=way: _measured(way) for name, way in ways.items()})
    return [row for name in list(ways)[1:] for row in _rows(name, taken)]


def _rows(name: str, taken: Mapping[str, Sequence[Submission]]) -> list[Row]:
    rows = []
    for what, field in (("submit", "submit_s"), ("until all are done", "done_s"), ("squeue", "look_s")):
        ours, jobs = ([getattr(each, field) for each in taken[way]] for way in (name, "jobs"))
        detail = f"{statistics.median(ours):.3f} s / {statistics.median(jobs):.3f} s"
        rows.append(Row(f"{what}: {name} / jobs", divided(ours, jobs), "", detail))
    return rows


def _measured(way: Callable[[SlurmCluster, Path], float]) -> Submission:
    with running_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        results.mkdir()
        begin_s = time.monotonic()
        submit_s = way(cluster, results)
        looks_s = [_look_s(cluster) for _ in range(_LOOKS)]
        wait_for(lambda: len(list(results.iterdir())) == JOBS, _LIMIT_S)
        return Submission(submit_s, time.monotonic() - begin_s, statistics.median(looks_s))


def _look_s(cluster: SlurmCluster) -> float:
    begin_s = time.monotonic()
    cluster.run("squeue", "--me", "--noheader", "--states=all", "--array", "--Format=JobArrayID:20,State:24")
    return time.monotonic() - begin_s


def _sbatch(cluster: SlurmCluster, script: str, *options: str) -> None:
    subprocess.run(
        ["sbatch", *_OPTIONS, *options],
        input=f"#!/bin/bash\n{script}\n",
        text=True,
        env=cluster.environment,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=_LIMIT_S,
    )


def _jobs(cluster: SlurmCluster, results: Path) -> float:
    begin_s = time.monotonic()
    for number in range(JOBS):
        _sbatch(cluster, f": > {results / str(number)}")
    return time.monotonic() - begin_s


def _array(cluster: SlurmCluster, results: Path) -> float:
    begin_s = time.monotonic()
    _sbatch(cluster, f": > {results}/$SLURM_ARRAY_TASK_ID", f"--array=0-{JOBS - 1}")
    return time.monotonic() - begin_s


def _submitit(cluster: SlurmCluster, results: Path) -> float:
    words = [os.environ[PYTHON], "-c", _SUBMITIT, str(results), str(JOBS)]
    return float(cluster.run(*words).splitlines()[-1])
