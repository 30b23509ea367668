"""The default number of threads: from the variable, else from the cores, less those that are spared."""

from __future__ import annotations

import os

import psutil
import pytest

from inferometer.agent.hardware import environment
from inferometer.agent.hardware.environment import default_threads, pinned_processors, usable_physical_cores
from inferometer.manifests.errors import ConfigurationError

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system has no processor affinity"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine whose processors have the given siblings, of which this process may use some."""

    def make(siblings, usable):
        for number, text in siblings.items():
            folder = tmp_path / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
        return tmp_path

    return make


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("usable", "cores"), [({0, 1, 2, 3}, 2), ({0, 1}, 2), ({0, 2}, 1), ({3}, 1), ({0, 1, 2}, 2)]
)
def test_processors_of_one_core_count_once_and_those_of_others_not(machine, usable, cores):
    two_cores = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}

    assert usable_physical_cores(machine(two_cores, usable)) == cores


def test_a_system_that_tells_no_siblings_has_no_more_cores_than_may_be_used(machine, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 64)
    assert usable_physical_cores(machine({}, {4, 5})) == 2
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: None)
    assert usable_physical_cores(machine({}, {4, 5})) == 2


@pytest.mark.parametrize(
    ("usable", "instances", "threads", "places"),
    [
        ({0, 1, 2, 3}, 2, 1, ((0,), (1,))),
        ({0, 1, 2, 3}, 1, 2, ((0, 1),)),
        ({0, 1, 2, 3}, 2, 2, ((0, 1), (2, 3))),
        ({1, 3, 2}, 2, 1, ((1,), (2,))),  # 3 is the second one of the core of 1
        ({5}, 1, 1, ((5,),)),
    ],
)
def test_instances_get_cores_of_their_own(machine, usable, instances, threads, places):
    two_cores = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    assert pinned_processors(instances, threads, machine(two_cores, usable)) == places


@pytest.mark.parametrize(("instances", "threads"), [(3, 1), (1, 3), (2, 2)])
def test_instances_with_more_threads_than_cores_are_refused(machine, instances, threads):
    line = f"pin: instances times threads are {instances} × {threads} = .*, but only 2 cores may be used"
    with pytest.raises(ConfigurationError, match=line):
        pinned_processors(instances, threads, machine({}, {0, 7}))


def test_a_system_without_affinity_binds_nothing(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ConfigurationError, match="pin requires Linux"):
        pinned_processors(1, 1)


def test_the_default_is_a_thread_for_each_core(monkeypatch):
    monkeypatch.setattr(environment, "usable_physical_cores", lambda: 6)
    assert default_threads() == 6


@pytest.mark.parametrize(
    ("value", "number"),
    [("3", 3), (" 12 ", 12), ("4,2", 4), ("", 6), ("0", 6), ("-2", 6), ("two", 6), ("²", 6), ("1.5", 6)],
)
def test_the_variable_of_openmp_goes_first_where_it_holds_a_number(monkeypatch, value, number):
    monkeypatch.setattr(environment, "usable_physical_cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert default_threads() == number


def test_spare_cores_leave_at_least_one_thread_and_never_raise_the_number(monkeypatch):
    monkeypatch.setattr(environment, "usable_physical_cores", lambda: 4)
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)
    assert [default_threads(spare) for spare in (0, 1, 4, 5, 7, 8, 10_000)] == [4, 4, 4, 3, 1, 1, 1]
