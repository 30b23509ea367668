"""The GPUs of the ranks of PyTorch, which this process starts, or a launcher has started."""

from __future__ import annotations

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.client.evaluating.benchmarks import BenchSystem, _devices_of_a_rank, _ranks
from inferometer.evaluators.jobs.request import default_system
from inferometer.manifests.errors import ConfigurationError

GIVEN = {"num_ranks": None, "kv_num_workers": None, "rank": None, "local_rank": 0}
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "a,b",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


@pytest.mark.parametrize(
    ("environ", "values", "ranks"),
    [
        ({}, {}, 2),
        ({}, {"num_ranks": 2}, 2),
        ({}, {"num_ranks": 4}, "num_gpus is 2, but this host has 4 ranks; PyTorch needs one per GPU"),
        ({**TORCHRUN, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, {}, None),
        ({**TORCHRUN, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, {"num_ranks": 4}, 4),
        (
            {**TORCHRUN, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
            {},
            "num_gpus is 2, but this host has 4 ranks",
        ),
        (SRUN, {}, None),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, {}, "num_gpus is 2, but this host has 1 ranks"),
    ],
)
def test_a_host_has_a_rank_for_each_gpu(
    environ: dict[str, str], values: dict[str, int], ranks: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environ)
    gpus = tuple(Device(DeviceKind.GPU, index) for index in range(2))
    system = BenchSystem(default_system(), "pytorch", gpus)
    found = _ranks({**GIVEN, **values}, system)
    if isinstance(ranks, str):
        with pytest.raises(ConfigurationError, match=ranks):
            _devices_of_a_rank(system, found)
    else:
        assert (_devices_of_a_rank(system, found), found.num_ranks) == (gpus[:1], ranks)
