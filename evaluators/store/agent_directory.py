"""The directory of the agents that serve: the collection ``agent`` of the database of evaluations."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from evaluators.store.agent_records import AgentRecord, agent_document, agent_record, unix_ms
from evaluators.store.collection_store import Connection
from manifests.errors import StoreError

COLLECTION = "agent"
_log = logging.getLogger(__name__)


class AgentDirectory:
    """Publishes agents and finds those that are alive. It is for one thread at a time.

    Documents are never changed: a heartbeat writes a new one and then removes those before it, so that the
    agent is in the directory all the time. Where the database does not remove by itself what has expired,
    whoever publishes does; whoever reads leaves it out in any case.

    Args:
        connection: An open database; closed with this.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = False

    @property
    def location(self) -> str:
        """Where the agents are published: a file's path, or an address without credentials."""
        return self._connection.location

    def publish(self, record: AgentRecord) -> None:
        """Publishes an agent, in place of what was published of it before.

        Raises:
            StoreError: The database cannot be reached.
        """
        with self._wrapped(f"agent {record.address} was not published"), self._connection.transaction():
            document = agent_document(record, str(uuid.uuid4()))
            self._agents.insert_one(document)
            # Another one of this machine at this address was killed: two agents cannot listen at one.
            here = {"address": record.address, "hostname": document["hostname"]}
            for same in ({"agent_id": record.id}, here):
                self._agents.delete_many(same | {"_id": {"$ne": document["_id"]}})
            self._agents.delete_many({"expires_unix_ms": {"$lte": unix_ms(record.published_at)}})

    def remove(self, agent_id: str) -> None:
        """Takes an agent out; one that is not there is not missed.

        Raises:
            StoreError: The database cannot be reached.
        """
        with self._wrapped("an agent that stops cannot be taken out"), self._connection.transaction():
            self._agents.delete_many({"agent_id": agent_id})

    def alive(self, now: datetime) -> Sequence[AgentRecord]:
        """Returns the agents that have published themselves and not expired, by address.

        One that a newer version of the program wrote is left out.

        Args:
            now: The time, in UTC; the clocks of the machines are taken to agree.

        Raises:
            StoreError: The database cannot be reached.
        """
        newest: dict[str, AgentRecord] = {}
        with self._wrapped("agents cannot be read"):
            for document in self._agents.find({"expires_unix_ms": {"$gt": unix_ms(now)}}):
                record = self._read(document)
                if record is None:
                    continue
                known = newest.get(record.id)
                if known is None or known.published_at < record.published_at:
                    newest[record.id] = record
        return sorted(newest.values(), key=lambda record: record.address)

    def close(self) -> None:
        """Closes the connection; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    @property
    def _agents(self) -> Any:
        return self._connection.database[COLLECTION]

    def _read(self, document: Any) -> AgentRecord | None:
        try:
            return agent_record(document)
        except (KeyError, TypeError, ValueError) as error:
            _log.warning(
                "%s: left out an agent that cannot be read: %s: %s",
                self.location,
                type(error).__name__,
                error,
            )
            return None

    @contextmanager
    def _wrapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._connection.errors as error:
            reason = self._connection.reason(error)
            raise StoreError(f"{self._connection.location}: {what}: {reason}") from error
