"""Which agent a run goes to, without processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from inferometer.evaluators.plans.cell_command import CellCommand
from inferometer.evaluators.plans.cells import Run, cells_of, runs_of
from inferometer.evaluators.plans.plan import plan_of
from inferometer.evaluators.plans.running.driver import Driver
from inferometer.evaluators.plans.running.folder import (
    Ended,
    PlanFolder,
    Result,
    RunFolder,
    RunHistory,
    write_result,
)
from inferometer.evaluators.plans.running.places import AgentsPlace, JobNews, host_of
from inferometer.manifests.errors import AgentError, ConfigurationError

HOSTS = {"a:1": "a", "a:2": "a", "b:1": "b"}
REFUSED = "cannot be reached"


class FakeLocal:
    """Processes that end when they are looked at; those of agents that are down cannot reach them."""

    name = "local"
    survives = False
    poll_s = 0.0
    capacity = 1

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.folders: dict[str, RunFolder] = {}
        self.busy: list[set[str]] = []

    def start(self, folder: Path) -> str:
        job = f"1:{len(self.folders) + 1}"
        self.folders[job] = RunFolder(folder)
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        jobs = list(jobs)
        for job in jobs:
            folder = self.folders[job]
            spec = folder.read()
            address = spec.argv[-1].removeprefix("--agent=")
            bad = "; ".join(f"{each}: {REFUSED}" for each in address.split(",") if each in self.down)
            result = Result(spec.key, Ended.FAILED if bad else Ended.COMPLETE, bad)
            write_result(folder.result, result)
        hosts = [host for job in jobs for host in self.folders[job].read().machines]
        assert len(hosts) == len({*hosts}), "two runs of one host at once"
        self.busy += [{*hosts}] if hosts else []
        return {job: JobNews(True, "its process ended with code 0") for job in jobs}


def place_of(local: FakeLocal, able: Mapping[str, tuple[str, ...]] | None = None) -> AgentsPlace:
    """A place whose agents run what ``able`` says by the model of a cell; all run all without."""
    return AgentsPlace(
        lambda cell: tuple(HOSTS) if able is None else able[str(cell.options["model"])],
        HOSTS,
        lambda result: REFUSED in result.reason,
        local,
    )


def runs_of_models(*models: str, sizes: int = 2) -> tuple[Run, ...]:
    content = {
        "name": "n",
        "command": "predict dataset",
        "variables": {"model": list(models), "size": list(range(sizes))},
    }
    plan = plan_of(content, "n")
    return tuple(runs_of(plan, cells_of(plan)))


def driven(folder: Path, place: AgentsPlace, runs: tuple[Run, ...]) -> Mapping[str, RunHistory]:
    plan = plan_of({"name": "n", "command": "predict dataset"}, "n")
    return Driver(
        plan,
        runs,
        PlanFolder(folder),
        place,
        lambda run: CellCommand(("agent", *run.cell.argv)),
        str(folder),
        claim=place.claim,
        sleep=lambda _: None,
    ).drive()


def test_runs_are_spread_over_hosts_one_at_a_time_on_each(tmp_path: Path) -> None:
    local = FakeLocal()
    place = place_of(local)
    assert place.capacity == 2

    found = driven(tmp_path, place, runs_of_models("m", sizes=6))

    assert {each.result.ended for each in found.values() if each.result} == {Ended.COMPLETE}
    assert local.busy == [{"a", "b"}] * 3
    assert {each.last_job.split("/")[:2][1] for each in found.values()} == {"a:1", "b:1"}


def test_a_run_waits_for_an_agent_that_can_run_it_and_others_go_first(tmp_path: Path) -> None:
    local = FakeLocal()
    runs = sorted(runs_of_models("here", "there"), key=lambda run: str(run.cell.options["model"]))

    found = driven(tmp_path, place_of(local, {"here": ("a:2",), "there": ("b:1",)}), tuple(runs))

    assert local.busy == [{"a", "b"}] * 2
    for run in runs:
        wanted = "a:2" if run.cell.options["model"] == "here" else "b:1"
        assert found[run.key].last_job.startswith(f"agents/{wanted}/1:")


def test_two_agents_of_one_host_take_turns(tmp_path: Path) -> None:
    local = FakeLocal()

    driven(tmp_path, place_of(local, {"m": ("a:2", "a:1")}), runs_of_models("m", sizes=3))

    assert local.busy == [{"a"}] * 3


def test_a_run_whose_agent_does_not_answer_goes_to_another_and_no_other_run_goes_there(
    tmp_path: Path,
) -> None:
    place = place_of(FakeLocal("b:1"))

    found = driven(tmp_path, place, runs_of_models("m", sizes=6))

    assert {each.result.ended for each in found.values() if each.result} == {Ended.COMPLETE}
    assert [each.losses for each in found.values() if each.losses] == [["b:1: cannot be reached"]]
    assert all(each.last_job.startswith("agents/a:1/") for each in found.values())
    assert place.capacity == 1


def test_where_no_agent_is_left_runs_fail_with_why(tmp_path: Path) -> None:
    found = driven(tmp_path, place_of(FakeLocal(*HOSTS)), runs_of_models("m", sizes=9))

    results = [each.result for each in found.values() if each.result]
    assert [each.ended for each in results] == [Ended.FAILED] * 9
    assert {each.reason for each in results} == {
        "no agent is left that can run it: a:1: cannot be reached; a:2: cannot be reached; "
        "b:1: cannot be reached"
    }


def test_a_run_that_no_agent_can_run_fails_and_the_others_go_on(tmp_path: Path) -> None:
    def able(cell: object) -> tuple[str, ...]:
        raise ConfigurationError("no agent has it")

    place = place_of(FakeLocal())
    both = runs_of_models("m", "n", sizes=1)
    place.agents_of = lambda cell: able(cell) if cell.options["model"] == "n" else ("a:1",)

    found = driven(tmp_path, place, both)

    assert sorted(each.result.ended for each in found.values() if each.result) == [
        Ended.COMPLETE,
        Ended.FAILED,
    ]


def test_a_failure_of_the_run_itself_is_its_result(tmp_path: Path) -> None:
    place = place_of(FakeLocal("a:1", "b:1"))
    place.unreachable = lambda _: False

    found = driven(tmp_path, place, runs_of_models("m"))

    assert {each.result.reason for each in found.values() if each.result} == {
        "a:1: cannot be reached",
        "b:1: cannot be reached",
    }


def test_an_agent_is_busy_from_its_claim_on() -> None:
    place = place_of(FakeLocal())
    one, two, three = runs_of_models("m", sizes=3)
    first, second = place.claim(one), place.claim(two)
    assert first is not None
    assert second is not None
    assert (first.machines, second.machines) == (("a",), ("b",))
    assert place.claim(three) is None


SPREAD: dict[str, Any] = {"name": "n", "command": "predict dataset", "parameters": {"model": "m"}}


def claim_of(place: AgentsPlace, **cell: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The words and the machines for a run of a cell with parameters ``cell.NAME``."""
    parameters = {"model": "m", **{f"cell.{name}": value for name, value in cell.items()}}
    (run,) = runs_of(plan := plan_of({**SPREAD, "parameters": parameters}, "n"), cells_of(plan))
    found = place.claim(run)
    return None if found is None else (found.words, found.machines)


def test_nodes_are_hosts_and_tasks_are_agents_on_each_of_them() -> None:
    both = (("--agent=a:1,b:1",), ("a", "b"))
    assert claim_of(place_of(FakeLocal()), nodes=2) == both
    assert claim_of(place_of(FakeLocal()), tasks_per_node=2) == (("--agent=a:1,a:2",), ("a",))
    place = place_of(FakeLocal())
    assert claim_of(place) == (("--agent=a:1",), ("a",))
    assert claim_of(place, nodes=2) is None  # it waits
    assert claim_of(place, tasks_per_node=2) is None
    for cell in ({"nodes": 3}, {"nodes": 2, "tasks_per_node": 2}, {"tasks_per_node": 3}):
        with pytest.raises(AgentError, match="too few agents are left that can run it"):
            claim_of(place, **cell)


def test_of_several_agents_the_one_that_cannot_be_reached_is_away(tmp_path: Path) -> None:
    plan = plan_of({**SPREAD, "parameters": {"model": "m", "cell.nodes": 2}}, "n")
    place = place_of(FakeLocal("a:1"))

    [history] = driven(tmp_path, place, tuple(runs_of(plan, cells_of(plan)))).values()

    assert history.losses == ["a:1: cannot be reached"]
    assert history.last_job.startswith("agents/a:2,b:1/")


def test_without_agents_to_go_to_a_claim_says_why() -> None:
    place = place_of(FakeLocal(), {"m": ()})
    with pytest.raises(AgentError, match="no agent is left that can run it"):
        place.claim(runs_of_models("m")[0])


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("localhost", "127.0.0.1"),
        ("LOCALHOST", "127.0.0.1"),
        ("[::1]", "127.0.0.1"),
    ],
)
def test_names_of_one_host_are_one(name: str, host: str) -> None:
    assert host_of(name) == host


def test_a_name_that_is_not_known_is_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise OSError("not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert host_of("GPU-7") == "gpu-7"
