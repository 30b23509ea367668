"""Runs on served agents: processes of this machine, each with an agent of its own, one at a time per host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferometer.evaluators.plans.cells import Cell, Run
from inferometer.evaluators.plans.running.folder import RunFolder
from inferometer.evaluators.plans.running.local import LocalPlace
from inferometer.evaluators.plans.running.places import Claim, JobNews, Place
from inferometer.evaluators.plans.running.results import Result, read_result
from inferometer.manifests.errors import AgentError

AGENTS = "agents"


@dataclass(slots=True)
class AgentsPlace:
    """Served agents; see ``Place``. The driver asks ``claim`` for an agent before it starts a run.

    An agent that a run could not reach gets no run any more.

    Attributes:
        agents_of: Returns the addresses of the agents that can run a cell, or raises why there is none.
        hosts: The host of each address. Agents of one host never run at once.
        unreachable: Whether a result says that the agent could not be reached.
        local: Starts the processes, which ask the agents.
    """

    agents_of: Callable[[Cell], Sequence[str]]
    hosts: Mapping[str, str]
    unreachable: Callable[[Result], bool]
    local: Place = field(default_factory=LocalPlace)
    name: str = AGENTS
    survives: bool = False
    poll_s: float = 0.05
    _claimed: dict[str, str] = field(default_factory=dict)
    _working: dict[str, tuple[str, Path]] = field(default_factory=dict)
    _away: dict[str, str] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """The hosts with an agent that may answer; 1 if there is none, so that what waits is told so."""
        return max(1, len({host for address, host in self.hosts.items() if address not in self._away}))

    def claim(self, run: Run) -> Claim | None:
        """Claims a free agent for a run, which starts next; None if those that can run it are busy.

        Raises:
            InferometerError: None can run it, or none of those that can answers any more.
        """
        able = self.agents_of(run.cell)
        left = [each for each in able if each not in self._away]
        if not left:
            reasons = "; ".join(self._away[each] for each in able)
            raise AgentError(f"no agent is left that can run it: {reasons}")
        working = [*self._claimed.values(), *(address for address, _ in self._working.values())]
        busy = {self.hosts[address] for address in working}
        for address in left:
            if self.hosts[address] not in busy:
                self._claimed[run.key] = address
                return Claim((f"--agent={address}",), self.hosts[address])
        return None

    def start(self, folder: Path) -> str:
        """Starts the process of a run that has claimed an agent; see ``Place``."""
        address = self._claimed.pop(folder.name)
        job = f"{address}/{self.local.start(folder)}"
        self._working[job] = (address, folder)
        return job

    def look(self, jobs: Iterable[str]) -> Mapping[str, JobNews]:
        """See ``Place``. Jobs of an earlier driver have ended with it."""
        by_process = {job.rpartition("/")[2]: job for job in jobs}
        found = {by_process[each]: news for each, news in self.local.look(by_process).items()}
        for job in found.keys() & self._working.keys():
            if found[job].ended:
                found[job] = self._ended(found[job], *self._working.pop(job))
        return found

    def _ended(self, news: JobNews, address: str, folder: Path) -> JobNews:
        result = read_result(RunFolder(folder).result)
        if result is None:
            return JobNews(True, f"{news.reason}, with agent {address}", counts=news.counts)
        if not self.unreachable(result):
            return news
        self._away[address] = result.reason
        return JobNews(True, result.reason, void=True)


def host_of(name: str) -> str:
    """Returns what tells a host from others: its first address by number, or its name if that is not known.

    The loopback address of IPv6 is that of IPv4; other loopback addresses count as hosts of their own.
    """
    plain = name.strip("[]").casefold()
    try:
        found = socket.getaddrinfo(plain, None, type=socket.SOCK_STREAM)
    except OSError:
        return plain
    *_, address = min(found, key=lambda each: (each[0] != socket.AF_INET, each[4]))
    return "127.0.0.1" if address[0] == "::1" else str(address[0])
