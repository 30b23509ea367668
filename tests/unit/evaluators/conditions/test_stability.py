"""The verdict from what happened on the hosts and from the times, and the watch that brings both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from inferometer.agent.hardware.conditions import ConditionCounters, ProcessorTimes, read_counters
from inferometer.evaluators.conditions.conditions import HostConditions, Stability, Watch, judged
from tests.unit.evaluators.dataset_run_fakes import description

QUIET = HostConditions("one", 10.0, 7.0, processors=2, others_share=0.01, steal_share=0.0)
BUSY = replace(QUIET, hostname="two", others_share=0.48, others_time_share=0.97)
SHORT = HostConditions("one", 0.04, 0.03, processors=2)
STEADY = np.full(100, 10_000_000) + np.arange(100) % 7
TWO_LEVELS = np.where(np.arange(100) % 3 == 0, 15_000_000, 10_000_000)


@pytest.mark.parametrize(
    ("hosts", "times", "stability", "text"),
    [
        ([QUIET], STEADY, Stability.STABLE, "stable"),
        ([QUIET], None, Stability.STABLE, "stable"),
        (
            [QUIET],
            STEADY[:59],
            Stability.STABLE,
            "stable (by the counters only: fewer than 60 full batches are too few to judge the times)",
        ),
        (
            [BUSY],
            STEADY,
            Stability.DISTURBED,
            "disturbed: other processes took 48 % of the CPU, in 97 % of the time",
        ),
        (
            [BUSY],
            TWO_LEVELS,
            Stability.DISTURBED,
            "disturbed: other processes took 48 % of the CPU, in 97 % of the time; "
            "two levels: 10 ms, and 15 ms in 34 % of the batches",
        ),
        (
            [QUIET, BUSY],
            STEADY,
            Stability.DISTURBED,
            "disturbed: two: other processes took 48 % of the CPU, in 97 % of the time",
        ),
        (
            [QUIET],
            TWO_LEVELS,
            Stability.UNSTABLE,
            "unstable: two levels: 10 ms, and 15 ms in 34 % of the batches",
        ),
        ([], STEADY, Stability.UNKNOWN, "not known: the server's host is not watched"),
        ([], TWO_LEVELS, Stability.UNSTABLE, "unstable: two levels: 10 ms, and 15 ms in 34 % of the batches"),
        (
            [SHORT],
            STEADY,
            Stability.UNKNOWN,
            "not known: measured for 0.04 s, but the counters need at least 0.5 s",
        ),
        (
            [QUIET, replace(QUIET, processors=None, others_share=None)],
            STEADY,
            Stability.UNKNOWN,
            "not known: this system does not report how its processors are used",
        ),
    ],
)
def test_the_verdict_is_that_of_the_worst(
    hosts: list[HostConditions], times: Any, stability: Stability, text: str
) -> None:
    found = judged(hosts, times)

    assert (found.stability, str(found)) == (stability, text)
    assert found.hosts == tuple(hosts)
    assert found.warning == (text if stability in (Stability.DISTURBED, Stability.UNSTABLE) else "")


class Elsewhere:
    """A system on hosts that tell what they are given: readings at the beginning, and at the end."""

    def __init__(self, *readings: Sequence[ConditionCounters]) -> None:
        self._readings = list(readings)

    def condition_counters(self) -> Sequence[ConditionCounters]:
        return self._readings.pop(0)


def counters(machine: str, process: int, seconds: float, own_s: float, busy_s: float) -> ConditionCounters:
    times = ProcessorTimes(2, busy_s, 2 * seconds - busy_s, 0.0)
    return ConditionCounters(machine, f"host of {machine}", process, round(seconds * 1e9), own_s, times)


def watched(*readings: Sequence[ConditionCounters]) -> Any:
    with Watch(description("classification"), Elsewhere(*readings)) as watch:
        watch.begin()
        return watch.end()


def test_hosts_elsewhere_are_judged_by_their_own_counters() -> None:
    begins = [counters("a", 1, 0.0, 0.0, 0.0), counters("b", 1, 0.0, 0.0, 0.0)]
    ends = [counters("a", 1, 10.0, 7.0, 7.0), counters("b", 1, 10.0, 7.0, 15.0)]

    found = watched(begins, ends)

    assert [host.hostname for host in found.hosts] == ["host of a", "host of b"]
    assert found.reasons == ("host of b: other processes took 40 % of the CPU",)


def test_agents_on_one_machine_are_no_others_to_each_other() -> None:
    begins = [counters("a", 1, 0.0, 0.0, 0.0), counters("a", 2, 0.0, 0.0, 0.0)]
    ends = [counters("a", 1, 10.0, 7.0, 15.0), counters("a", 2, 10.0, 8.0, 15.0)]

    found = watched(begins, ends)

    assert (len(found.hosts), found.stability) == (1, Stability.STABLE)


def test_what_this_process_takes_on_the_machine_of_an_agent_is_no_disturbance() -> None:
    here = read_counters()
    begin = replace(counters(here.machine, 0, 0.0, 0.0, 0.0))
    end = counters(here.machine, 0, 1000.0, 0.0, 0.0)

    found = watched([begin], [end])

    assert len(found.hosts) == 1
    assert found.hosts[0].own_cpu_s > 0


def test_an_agent_that_was_lost_leaves_the_others() -> None:
    begins = [counters("a", 1, 0.0, 0.0, 0.0), counters("b", 1, 0.0, 0.0, 0.0)]

    assert [host.hostname for host in watched(begins, begins[1:]).hosts] == ["host of b"]
    assert watched(begins, []).stability is Stability.UNKNOWN
    assert watched([], []).stability is Stability.UNKNOWN


STOLEN = replace(QUIET, others_share=0.4, steal_share=0.3)


@pytest.mark.parametrize(
    ("hosts", "client", "text"),
    [
        ([QUIET], replace(QUIET, others_share=0.4), "stable"),
        ([], replace(QUIET, others_share=0.4), "not known: the server's host is not watched"),
        ([], STOLEN, "disturbed: on the machine of the client, the host took 30 % of the CPU (steal)"),
        ([QUIET], STOLEN, "disturbed: on the machine of the client, the host took 30 % of the CPU (steal)"),
    ],
)
def test_the_machine_of_the_client_disturbs_but_for_its_other_processes(
    hosts: list[HostConditions], client: HostConditions, text: str
) -> None:
    found = judged(hosts, STEADY, client=client)

    assert (str(found), found.hosts) == (text, tuple(hosts))


@pytest.mark.parametrize(
    ("system", "times", "takes"),
    [
        (object(), None, True),
        (object(), STEADY, True),
        (Elsewhere([counters("b", 1, 0, 0, 0)], [counters("b", 1, 10, 7, 7)]), None, True),
        (Elsewhere([counters("b", 1, 0, 0, 0)], [counters("b", 1, 10, 7, 7)]), STEADY, False),
        (Elsewhere([counters("b", 1, 0, 0, 0)], []), STEADY, True),
    ],
    ids=["server", "batches of a server", "load on an agent", "batches of an agent", "lost agent"],
)
def test_what_the_clients_host_takes_disturbs_where_the_client_takes_the_times(
    monkeypatch: pytest.MonkeyPatch, system: object, times: Any, takes: bool
) -> None:
    readings = [ConditionCounters("a", "here", 1, 0, 0.0, ProcessorTimes(2, 0.0, 0.0, 0.0))]
    readings.append(replace(readings[0], taken_ns=10**10, processors=ProcessorTimes(2, 6.0, 10.0, 4.0)))
    reading = "inferometer.evaluators.conditions.conditions.read_counters"
    monkeypatch.setattr(reading, partial(readings.pop, 0))
    with Watch(description("classification"), system) as watch:
        watch.begin()
        found = watch.end(times)

    stolen = "on the machine of the client, the host took 40 % of the CPU (steal)"
    assert found.reasons == (stolen,) * takes
    assert "here" not in {host.hostname for host in found.hosts}


def test_a_system_that_tells_nothing_is_not_watched() -> None:
    with Watch(description("classification"), object()) as watch:
        watch.begin()
        assert watch.end().reasons == ("the server's host is not watched",)


def test_a_model_in_this_process_is_watched_until_the_end() -> None:
    with Watch(description("classification")) as watch:
        watch.begin()
        [host] = watch.end().hosts

    assert host.hostname == read_counters().hostname
    assert host.duration_s > 0
