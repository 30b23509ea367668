"""The request of ranks: what contradicts, and which rank this process is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from inferometer.agent.training.trainer import Rank
from inferometer.evaluators.jobs.job import JobCallbacks, Progress
from inferometer.evaluators.kinds.training.job import held_address, local_ranks, run_ranks
from inferometer.evaluators.kinds.training.request import RankRequest
from inferometer.manifests.errors import ConfigurationError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


HERE = TORCHRUN | {"MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts whose addresses were looked up, of which this machine knows none."""
    found: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> None:
        found.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_ranks": 0}, "num_ranks is 0; allowed: 1 to 1024"),
        ({"num_ranks": 10**9}, "num_ranks is 1000000000; allowed"),
        ({"num_servers": 0}, "num_servers is 0; allowed"),
        ({"rank": 0}, "rank needs num_ranks and rank_address"),
        ({"rank": 0, "num_ranks": 2}, "rank needs num_ranks and rank_address"),
        ({"rank": 2, "num_ranks": 2, "rank_address": "a:1"}, "rank is 2; allowed: 0 to num_ranks - 1, 1"),
        ({"rank": -1, "num_ranks": 2, "rank_address": "a:1"}, "rank is -1; allowed"),
        (
            {"rank": 0, "num_ranks": 2, "rank_address": "a"},
            "rank_address is 'a'; it must be like node1:29500",
        ),
        ({"rank": 0, "num_ranks": 2, "rank_address": "a:0"}, "rank_address is 'a:0'"),
        ({"rank": 0, "num_ranks": 2, "rank_address": ":1"}, "rank_address is ':1'"),
        ({"rank": 0, "num_ranks": 2, "rank_address": "a:1", "local_rank": 1}, "local_rank is 1; allowed"),
        ({"rank_address": "a:1"}, "rank_address needs rank"),
        ({"local_rank": 1}, "local_rank needs rank"),
    ],
)
def test_fields_that_are_out_of_range_or_contradict_are_one_line(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        RankRequest(**fields)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("request_", "environ", "rank"),
    [
        (RankRequest(), {}, None),
        (RankRequest(num_ranks=2), {}, None),
        (RankRequest(), TORCHRUN, Rank(1, 2, 0, "node1:29500", 1)),
        (RankRequest(num_ranks=2), TORCHRUN, Rank(1, 2, 0, "node1:29500", 1)),
        (RankRequest(3, 2, "a:1", 1), TORCHRUN, Rank(2, 3, 1, "a:1", 2)),
    ],
)
def test_the_fields_count_before_the_environment(
    request_: RankRequest, environ: dict[str, str], rank: Rank | None
) -> None:
    assert request_.of_this_process(environ) == rank


def test_another_number_of_ranks_than_the_launchers_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"num_ranks is 3, but a launcher .* as rank 1 of 2; leave"):
        RankRequest(num_ranks=3).of_this_process(TORCHRUN)


def test_a_held_port_is_given_to_nobody_and_can_be_listened_on() -> None:
    with held_address() as address:
        host, _, port = address.partition(":")
        others = [socket.create_server((host, 0)) for _ in range(50)]
        try:
            assert int(port) not in {other.getsockname()[1] for other in others}
            with socket.create_server((host, int(port))) as server:  # sets SO_REUSEADDR
                assert server.getsockname()[1] == int(port)
        finally:
            for other in others:
                other.close()


def test_local_ranks_share_their_host() -> None:
    here = os.getpid()
    assert local_ranks(2, "127.0.0.1:9") == (
        Rank(0, 2, 0, "127.0.0.1:9", 2, launcher=here),
        Rank(1, 2, 1, "127.0.0.1:9", 2, launcher=here),
    )


def told(seen: list[Rank], rank: Rank, callbacks: JobCallbacks) -> Iterator[Any]:
    seen.append(rank)
    callbacks.on_progress(Progress(1, 1))
    callbacks.on_warning("the disk is full")
    yield rank.number


@pytest.mark.parametrize(("number", "evaluations", "progress"), [("0", [0], 1), ("1", [], 0)])
def test_of_a_launchers_ranks_all_warn_and_rank_0_tells(
    number: str, evaluations: list[int], progress: int
) -> None:
    seen: list[Rank] = []
    shown: list[Progress] = []
    warnings: list[str] = []
    callbacks = JobCallbacks(on_progress=shown.append, on_warning=warnings.append)

    found = list(run_ranks(partial(told, seen), RankRequest(), callbacks, HERE | {"RANK": number}))

    assert found == evaluations
    assert [rank.number for rank in seen] == [int(number)]
    assert len(shown) == progress
    assert warnings == ["the disk is full"]


def test_without_a_launcher_the_one_process_is_the_only_rank() -> None:
    seen: list[Rank] = []
    assert list(run_ranks(partial(told, seen), RankRequest(), JobCallbacks(), {})) == [0]
    assert seen == [Rank()]


@pytest.mark.parametrize(
    ("request_", "environ"),
    [
        (RankRequest(2, 0, "node1.invalid:29500"), {}),
        (RankRequest(2, 1, "node1.invalid:29500"), {}),
        (RankRequest(), TORCHRUN | {"MASTER_ADDR": "node1.invalid"}),
        (
            RankRequest(),
            {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": "0",
                "DMLC_NUM_WORKER": "2",
                "DMLC_PS_ROOT_URI": "node1.invalid",
                "DMLC_PS_ROOT_PORT": "29500",
            },
        ),
        (
            RankRequest(),
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NODELIST": "node[1-2].invalid",
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                "MASTER_PORT": "29500",
            },
        ),
    ],
    ids=["rank 0", "rank 1", "torchrun", "a tracker of MXNet", "srun"],
)
def test_a_host_that_nobody_knows_is_said_before_anything_waits(
    request_: RankRequest, environ: dict[str, str], asked: list[str]
) -> None:
    seen: list[Rank] = []

    with pytest.raises(ConfigurationError) as refusal:
        list(run_ranks(partial(told, seen), request_, JobCallbacks(), environ))

    assert str(refusal.value) == (
        f"node1.invalid: the ranks meet at node1.invalid:29500, but {socket.gethostname()} finds no address "
        "for it: Name or service not known; name a host that it finds, or an IP address"
    )
    assert (asked, seen) == (["node1.invalid"], [])
