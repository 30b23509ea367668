"""The rank of a process, from the variables that torchrun, Slurm and MXNet's trackers set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.hardware.environment import default_threads
from inferometer.agent.training.rank_environment import (
    SLURM_PORTS,
    expand_hosts,
    rank_gpu,
    rank_of_environment,
    rank_threads,
)
from inferometer.agent.training.trainer import Rank
from inferometer.manifests.errors import ConfigurationError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SLURM = {  # as Slurm 22.05 sets them for the second of two tasks on two nodes
    "SLURM_CPUS_ON_NODE": "1",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "c[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
BATCH_SCRIPT = {  # the script of a job with two tasks, which srun has not started
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
}
DMLC = {
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_WORKER_ID": "1",
}


def without(environ: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key != name}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (TORCHRUN, Rank(3, 4, 1, "node1:29500", 2)),
        (TORCHRUN | SLURM, Rank(3, 4, 1, "node1:29500", 2)),
        (without(TORCHRUN, "LOCAL_WORLD_SIZE"), Rank(3, 4, 1, "node1:29500", 2)),
        (SLURM, Rank(1, 2, 0, "c1:20002", 1)),
        (SLURM | {"MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"}, Rank(1, 2, 0, "10.0.0.9:7", 1)),
        (SLURM | {"MASTER_ADDR": "10.0.0.9"}, Rank(1, 2, 0, "10.0.0.9:20002", 1)),
        (SLURM | {"WORLD_SIZE": "2"}, Rank(1, 2, 0, "c1:20002", 1)),
        (
            SLURM | {"SLURM_STEP_NODELIST": "c1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"},
            Rank(1, 2, 0, "127.0.0.1:20002", 2),
        ),
        (DMLC, Rank(1, 2, 0, "10.0.0.1:9091")),
        (without(DMLC, "DMLC_WORKER_ID") | {"DMLC_TASK_ID": "0"}, Rank(0, 2, 0, "10.0.0.1:9091")),
        (DMLC | SLURM, Rank(1, 2, 0, "10.0.0.1:9091")),
    ],
)
def test_each_launcher_tells_the_rank(environ: dict[str, str], rank: Rank) -> None:
    assert rank_of_environment(environ) == rank


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MASTER_ADDR": "node1", "PATH": "/bin"},
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        BATCH_SCRIPT,
    ],
)
def test_a_plain_shell_a_batch_script_and_a_single_process_are_no_rank(environ: dict[str, str]) -> None:
    assert rank_of_environment(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (without(TORCHRUN, "WORLD_SIZE"), "WORLD_SIZE is not set, but RANK, LOCAL_RANK, MASTER_ADDR"),
        (without(TORCHRUN, "RANK"), "RANK is not set, but WORLD_SIZE"),
        (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT is not set"),
        (without(TORCHRUN, "LOCAL_RANK"), "LOCAL_RANK is not set.*torchrun sets them all"),
        (TORCHRUN | {"RANK": "4"}, "RANK is 4, but WORLD_SIZE is 4; numbers begin at 0"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1'; it must be a whole number, 0 or greater"),
        (TORCHRUN | {"RANK": ""}, "RANK is not set"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT is 70000; a port is 1 to 65535"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK 2, RANK 3, LOCAL_WORLD_SIZE 2.* contradict"),
        (TORCHRUN | DMLC, "RANK and DMLC_ROLE are both set"),
        (without(SLURM, "SLURM_PROCID"), "SLURM_PROCID is not set.*srun sets them all"),
        (without(SLURM, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set"),
        (SLURM | {"SLURM_STEP_NODELIST": "c[1-"}, r"cannot read the list of hosts 'c\[1-'"),
        (SLURM | {"WORLD_SIZE": "3"}, "WORLD_SIZE contradicts SLURM_NTASKS, which is 2"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "many"}, "SLURM_STEP_TASKS_PER_NODE is 'many'"),
        (SLURM | {"SLURM_NODEID": "2"}, "does not reach this host"),
        (SLURM | {"SLURM_LOCALID": "1"}, "SLURM_LOCALID 1, SLURM_PROCID 1, 1 tasks.* contradict"),
        (DMLC | {"DMLC_ROLE": "server"}, "DMLC_ROLE is server, but only a worker trains; as a server"),
        (without(DMLC, "DMLC_WORKER_ID"), "DMLC_TASK_ID is not set"),
        (without(DMLC, "DMLC_PS_ROOT_PORT"), "DMLC_PS_ROOT_PORT is not set"),
    ],
)
def test_what_is_missing_or_contradicts_is_one_line(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        rank_of_environment(environ)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[001-004,007]", ["node001", "node002", "node003", "node004", "node007"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-[1-2]-ib,login", ["gpu-1-ib", "gpu-2-ib", "login"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("a.b.org,c[3]", ["a.b.org", "c3"]),
    ],
)
def test_lists_of_hosts_are_expanded_as_slurm_does(text: str, hosts: list[str]) -> None:
    assert list(expand_hosts(text)) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "a,", "n[1-2", "n1]", "n[2-1]", "n[a]", "n[]", "n[0-99999999]"]
)
def test_a_list_of_hosts_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="list of hosts"):
        list(expand_hosts(text))


@given(st.lists(st.integers(0, 999), min_size=1, max_size=8), st.integers(1, 5))
def test_any_list_of_numbers_comes_back(numbers: list[int], width: int) -> None:
    written = [str(number).zfill(width) for number in numbers]
    assert list(expand_hosts(f"n[{','.join(written)}]x")) == [f"n{number}x" for number in written]


def test_jobs_and_steps_beside_each_other_have_ports_of_their_own() -> None:
    ports = set()
    for job, step in itertools.product(range(1000, 1020), range(5)):
        rank = rank_of_environment(SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        assert rank is not None
        ports.add(int(rank.address.partition(":")[2]))
    assert len(ports) == 100
    assert ports <= set(SLURM_PORTS)


def test_ranks_of_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = default_threads()
    assert rank_threads(Rank(0, 1), {}) == cores
    assert rank_threads(Rank(1, 2, 1, "", 2), {}) == max(1, cores // 2)
    assert rank_threads(Rank(1, 999, 1, "", 999), {}) == 1
    assert rank_threads(Rank(1, 2, 1, "", 2), SLURM | {"SLURM_CPUS_PER_TASK": "1"}) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_threads(Rank(1, 2, 1, "", 2), {"OMP_NUM_THREADS": "3"}) == 3


@pytest.mark.parametrize(("visible", "gpu"), [("", 1), ("0,1", 1), ("5", 0)])
def test_the_local_number_chooses_the_gpu_unless_only_one_is_visible(visible: str, gpu: int) -> None:
    assert rank_gpu(Rank(1, 2, 1, "", 2), {"CUDA_VISIBLE_DEVICES": visible}) == gpu
