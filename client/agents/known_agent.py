"""An agent that is known from the database or the configuration."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from agent.facts import AgentFacts
from manifests.versions import Constraint

_LOOPBACK_NAMES = frozenset({"localhost", "::1", "[::1]"})


class Source(str, Enum):
    """Where an agent is known from."""

    CONFIGURATION = "configuration"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent, whether or not it answers.

    Attributes:
        address: Where it listens, as ``host:port``.
        source: Where it is known from.
        facts: What it is; None for one that did not answer.
        open_sessions: How many models it had open when that was last heard; None where it is not known.
        problem: Why it cannot be used, in one line; empty for one that can.
        published_at: Its last heartbeat; None for one of the configuration.
    """

    address: str
    source: Source
    facts: AgentFacts | None
    open_sessions: int | None = None
    problem: str = ""
    published_at: datetime | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be used, as far as is known."""
        return self.facts is not None and not self.problem

    def with_problem(self, problem: str) -> KnownAgent:
        """Returns the same agent as one that cannot be used."""
        return replace(self, problem=problem)

    def runs(
        self, model_name: str, framework_name: str | None = None, model_version: str | None = None
    ) -> bool:
        """Whether it can run a model; names compare without case, None means any.

        Raises:
            InvalidConstraintError: The version is no constraint.
        """
        if self.facts is None:
            return False
        model = model_name.strip().casefold()
        framework = framework_name.strip().casefold() if framework_name else None
        versions = Constraint(model_version or "*")
        return any(
            each.name.casefold() == model
            and framework in {None, each.framework.casefold()}
            and versions.allows(each.version)
            for each in self.facts.models
        )


def only_local_elsewhere(address: str, hostname: str, here: str | None = None) -> bool:
    """Whether an address means another machine's own: here it would mean this machine.

    Args:
        address: The agent's, as ``host:port`` or ``grpcs://host:port``.
        hostname: The machine that it runs on.
        here: This machine's name; None asks the system.
    """
    host = address.rpartition("://")[2].rpartition(":")[0].casefold()
    loopback = host in _LOOPBACK_NAMES or host.startswith("127.")
    return loopback and hostname != (here or socket.gethostname())
