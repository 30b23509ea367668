"""The heartbeat: keeps an agent in the directory as long as it serves, and never stands in its way."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Protocol

from agent.facts import AgentFacts
from evaluators.store.agent_records import AgentRecord
from manifests.errors import ConfigurationError, StoreError

INTERVAL_S = 10.0
LIFETIMES = 3.0
"""How long a record holds, in intervals: two beats may be lost, and clocks be apart by as much."""
_MAX_INTERVALS_BETWEEN_TRIES = 6
_LEAVING_S = 5.0
_log = logging.getLogger(__name__)


class Directory(Protocol):
    """Where agents are published; ``evaluators.store.agent_directory`` has one."""

    @property
    def location(self) -> str: ...  # noqa: D102

    def publish(self, record: AgentRecord) -> None: ...  # noqa: D102

    def remove(self, agent_id: str) -> None: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


class PublishedAgent(Protocol):
    """What the heartbeat asks of an agent; ``agent.server.registry_service`` has one."""

    @property
    def facts(self) -> AgentFacts: ...  # noqa: D102
    @property
    def open_sessions(self) -> int: ...  # noqa: D102


def utc_now() -> datetime:
    """Returns the time in UTC, to the millisecond as databases keep it."""
    now = datetime.now(timezone.utc)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


class Heartbeat:
    """Publishes an agent again and again, in a thread of its own that opens and closes the directory.

    A directory that cannot be reached is said once, and tried again with growing pauses; the agent serves on.

    Args:
        agent: The agent.
        address: Where clients reach it, as ``host:port``.
        open_directory: Opens the directory.
        interval_s: The time between two beats, in seconds.
        now: The clock, in UTC.
    """

    def __init__(
        self,
        agent: PublishedAgent,
        address: str,
        open_directory: Callable[[], Directory],
        interval_s: float = INTERVAL_S,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._agent = agent
        self._address = address
        self._open_directory = open_directory
        self._interval_s = interval_s
        self._now = now
        self._id = str(uuid.uuid4())
        self._directory: Directory | None = None
        self._failures = 0
        self._published = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to publish."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Has the agent taken out of the directory, and waits for nothing."""
        self._stopping.set()

    def stop(self, timeout_s: float = _LEAVING_S) -> None:
        """Waits until the agent is taken out, or for a time: then it expires by itself."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def beat(self) -> float:
        """Publishes the agent once.

        Returns:
            The time until the next beat, in seconds.

        Raises:
            ConfigurationError: The directory can never be opened.
        """
        try:
            if self._directory is None:
                self._directory = self._open_directory()
            self._directory.publish(self._record())
        except StoreError as error:
            self._close()
            self._failures += 1
            if self._failures == 1:
                _log.warning("the agent serves, but cannot be found: %s; it is tried again", error)
            return self._interval_s * min(self._failures, _MAX_INTERVALS_BETWEEN_TRIES)
        if self._failures or not self._published:
            _log.log(
                logging.WARNING if self._failures else logging.INFO,
                "published as %s in %s",
                self._address,
                self._directory.location,
            )
        self._failures, self._published = 0, True
        return self._interval_s

    def leave(self) -> None:
        """Takes the agent out, if it is in, and closes the directory."""
        try:
            if self._directory is not None and self._published:
                self._directory.remove(self._id)
        except StoreError as error:
            _log.warning("%s; it expires by itself", error)
        finally:
            self._close()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self.beat()):
                pass
        except ConfigurationError as error:
            _log.error("the agent serves, but cannot be found: %s", error)
        finally:
            self.leave()

    def _record(self) -> AgentRecord:
        now = self._now()
        return AgentRecord(
            id=self._id,
            address=self._address,
            facts=self._agent.facts,
            open_sessions=self._agent.open_sessions,
            published_at=now,
            expires_at=now + timedelta(seconds=self._interval_s * LIFETIMES),
        )

    def _close(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()
