"""Opens the database that an address names: the store of evaluations, and the directory of agents.

The directory of serving agents is kept in the collection ``agent``.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.evaluators.documents import restored, storable
from inferometer.evaluators.store.evaluation_store import Collections, Connection, EvaluationStore
from inferometer.manifests.errors import ConfigurationError

_COLLECTION = "agent"
SCHEMA_VERSION = 1
_TEXTS = ("hostname", "architecture", "cpu_model", "inferometer_version")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """The state of an agent at its last heartbeat.

    Attributes:
        id: An id that is unique to one run of the server.
        address: The address for clients, as ``host:port``.
        agent_info: The agent and the models that it can run.
        open_sessions: The number of open models.
        published_at: The time of the heartbeat by the agent's clock, in UTC, to the millisecond.
        expires_at: The time when the record expires unless there is another heartbeat.
    """

    id: str
    address: str
    agent_info: AgentInfo
    open_sessions: int
    published_at: datetime
    expires_at: datetime


def _document(record: AgentRecord, document_id: str) -> dict[str, Any]:
    """Returns a record as a document of the collection ``agent``, one for each heartbeat."""
    agent_info = record.agent_info
    return {
        "_id": document_id,
        "schema_version": SCHEMA_VERSION,
        "agent_id": record.id,
        "address": record.address,
        **{name: storable(getattr(agent_info, name)) for name in (*_TEXTS, "gpus")},
        "frameworks": [{"name": n, "version": v} for n, v in agent_info.frameworks.items()],
        "models": storable(agent_info.models),
        "started_at": agent_info.started_at,
        "http_port": agent_info.http_port,
        "open_sessions": record.open_sessions,
        "published_at": record.published_at,
        "expires_at": record.expires_at,
        "expires_unix_ms": unix_ms(record.expires_at),
    }


def _record(document: Mapping[str, Any]) -> AgentRecord:
    """Returns the record in a document; raises KeyError, TypeError or ValueError if it is damaged."""
    if document["schema_version"] > SCHEMA_VERSION:
        raise ValueError(f"its schema version is {document['schema_version']}")
    frameworks = {str(each["name"]): str(each["version"]) for each in document["frameworks"]}
    models = [restored(each) for each in document["models"]]
    http_port = document.get("http_port")  # earlier versions of the program did not publish it
    return AgentRecord(
        id=str(document["agent_id"]),
        address=str(document["address"]),
        agent_info=AgentInfo(
            **{name: str(document[name]) for name in _TEXTS},
            gpus=tuple(map(str, document["gpus"])),
            frameworks=frameworks,
            models=tuple(
                RunnableModel(str(m["name"]), str(m["version"]), str(m["framework"])) for m in models
            ),
            started_at=_time(document["started_at"]),
            http_port=None if http_port is None else int(http_port),
        ),
        open_sessions=int(document["open_sessions"]),
        published_at=_time(document["published_at"]),
        expires_at=_time(document["expires_at"]),
    )


def unix_ms(time: datetime) -> int:
    """Returns a time as milliseconds since 1970, which compare the same way in every database."""
    return round(time.timestamp() * 1000)


def _time(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError(f"a time is {type(value).__name__}")
    return value


class AgentDirectory(Collections):
    """Publishes agents and finds those that are alive. It is not thread-safe.

    Each method raises StoreError if the database cannot be reached.

    Documents are never changed: a heartbeat inserts a new one and then deletes the previous ones, so the
    agent is always listed. Readers skip expired documents; publishers delete them if the database does not.
    """

    def publish(self, record: AgentRecord) -> None:
        """Publishes an agent, replacing its previous record."""
        document = _document(record, str(uuid.uuid4()))
        # An earlier agent of this machine at this address was killed: only one can listen there.
        here = {"address": record.address, "hostname": document["hostname"]}
        with self._wrapped(f"agent {record.address} was not published"):
            self._connection.prepare_to_write()
            with self._connection.transaction():
                self._agents.insert_one(document)
                for same in ({"agent_id": record.id}, here):
                    self._agents.delete_many(same | {"_id": {"$ne": document["_id"]}})
                self._agents.delete_many({"expires_unix_ms": {"$lte": unix_ms(record.published_at)}})

    def remove(self, agent_id: str) -> None:
        """Removes an agent; does nothing if it is unknown."""
        with self._wrapped("the stopped agent was not removed"), self._connection.transaction():
            self._agents.delete_many({"agent_id": agent_id})

    def alive(self, now: datetime) -> Sequence[AgentRecord]:
        """Returns the agents that have not expired, sorted by address.

        Records that cannot be read, such as those of a newer version, are logged and skipped.

        Args:
            now: The time in UTC; the clocks of the machines are assumed to agree.
        """
        newest: dict[str, AgentRecord] = {}
        with self._wrapped("agents cannot be read"):
            for document in self._agents.find({"expires_unix_ms": {"$gt": unix_ms(now)}}):
                try:
                    record = _record(document)
                except (KeyError, TypeError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    _log.warning("%s: skipped an unreadable agent: %s", self.location, reason)
                    continue
                known = newest.get(record.id)
                if known is None or known.published_at < record.published_at:
                    newest[record.id] = record
        return sorted(newest.values(), key=lambda record: record.address)

    @property
    def _agents(self) -> Any:
        return self._connection.database[_COLLECTION]


_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_WITHOUT_STORE = "evaluate with --publish=false"
_SCHEMES = ("mongodb://", "mongodb+srv://")


def open_store(address: str | None, name: str, data_dir: Path) -> EvaluationStore:
    """Opens the store of evaluations; the caller closes it.

    A database that cannot be reached fails here, within a few seconds.

    Args:
        address: None for a local file; else ``host``, ``host:port``, ``mongodb://…`` or ``mongodb+srv://…``.
        name: The database; dots in it become ``_``.
        data_dir: The folder of the local file ``<name>.db``; it is created if it is missing.

    Raises:
        ConfigurationError: The address or the name is invalid.
        StoreError: The database cannot be reached or opened.
    """
    return EvaluationStore(_connect(address, name, data_dir, _WITHOUT_STORE))


def open_agent_directory(address: str | None, name: str, data_dir: Path) -> AgentDirectory:
    """Opens the directory of agents in a database; see ``open_store``."""
    return AgentDirectory(_connect(address, name, data_dir))


def local_file(name: str, data_dir: Path) -> Path:
    """Returns the file of a database that has no address.

    Raises:
        ConfigurationError: The name cannot be used.
    """
    return data_dir / f"{_database_name(name)}.db"


def check_address(address: str) -> str:
    """Returns the address of a database without surrounding blanks; contacts nothing.

    Raises:
        ConfigurationError: It is invalid.
    """
    if not address.strip() or ("://" in address and not address.startswith(_SCHEMES)):
        from inferometer.evaluators.store.mongodb import without_credentials

        raise ConfigurationError(
            f'database address "{without_credentials(address)}" makes no sense; allowed: host, host:port, '
            "mongodb://… or mongodb+srv://…"
        )
    return address.strip()


def _connect(address: str | None, name: str, data_dir: Path, otherwise: str = "") -> Connection:
    # either driver takes long to import, and only one is needed
    if address is None:
        from inferometer.evaluators.store.sqlite import connect_sqlite

        return connect_sqlite(local_file(name, data_dir), otherwise)
    from inferometer.evaluators.store.mongodb import MongoConnection

    return MongoConnection(check_address(address), _database_name(name), otherwise)


def _database_name(name: str) -> str:
    """Returns the name in the form that both a file and MongoDB accept."""
    sanitised = name.strip().replace(".", "_")
    if not _NAME.fullmatch(sanitised):
        raise ConfigurationError(
            f"database name {name!r} cannot be used; allowed: up to 60 letters, digits, _ and -, and dots, "
            "which become _"
        )
    return sanitised
