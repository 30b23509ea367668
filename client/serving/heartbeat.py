"""The heartbeat, which keeps an agent in the directory as long as it serves."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from inferometer.evaluators.evaluation import utc_now
from inferometer.evaluators.store.agent_directory import AgentDirectory, AgentRecord
from inferometer.manifests.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from inferometer.agent.server.native.registry_service import RegistryService

INTERVAL_S = 10.0
LIFETIMES = 3.0
"""The lifetime of a record in intervals: tolerates two lost beats and as much clock difference."""
_MAX_INTERVALS_BETWEEN_TRIES = 6
_LEAVING_S = 5.0
_log = logging.getLogger(__name__)


class Heartbeat:
    """Publishes an agent periodically, in its own thread, which opens and closes the directory.

    A directory that cannot be reached is logged once, and retried with growing pauses; the agent serves on.

    Args:
        agent: The agent.
        address: Where clients reach it, as ``host:port``.
        open_directory: Opens the directory.
        interval_s: The time between two beats, in seconds.
        now: The clock, in UTC.
    """

    def __init__(
        self,
        agent: RegistryService,
        address: str,
        open_directory: Callable[[], AgentDirectory],
        interval_s: float = INTERVAL_S,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._agent = agent
        self._address = address
        self._open_directory = open_directory
        self._interval_s = interval_s
        self._now = now
        self._id = str(uuid.uuid4())
        self._directory: AgentDirectory | None = None
        self._failures = 0
        self._published = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to publish."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Begins to remove the agent from the directory without waiting."""
        self._stopping.set()

    def stop(self, timeout_s: float = _LEAVING_S) -> None:
        """Waits until the agent is removed; after the timeout, leaves its entry to expire by itself."""
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
                _log.warning("the agent serves, but cannot be found: %s; publication is retried", error)
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
        """Removes the agent, if it is published, and closes the directory."""
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
            agent_info=self._agent.agent_info,
            open_sessions=self._agent.open_sessions,
            published_at=now,
            expires_at=now + timedelta(seconds=self._interval_s * LIFETIMES),
        )

    def _close(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()
