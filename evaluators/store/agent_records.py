"""What is published of an agent that serves: for how long it holds, and how it is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.facts import AgentFacts, RunnableModel
from evaluators.store.values import restored, storable

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent as it was at its last heartbeat.

    Attributes:
        id: The same as long as it serves.
        address: Where clients reach it, as ``host:port``.
        facts: What it is.
        open_sessions: How many models it had open.
        published_at: When that was, in UTC and to the millisecond, by the agent's clock.
        expires_at: When it is taken for gone unless it has published itself again.
    """

    id: str
    address: str
    facts: AgentFacts
    open_sessions: int
    published_at: datetime
    expires_at: datetime


def agent_document(record: AgentRecord, document_id: str) -> dict[str, Any]:
    """Returns a record as a document of the collection ``agent``.

    Args:
        record: The record.
        document_id: Its own; each heartbeat is a document of its own.
    """
    facts = record.facts
    return {
        "_id": document_id,
        "schema_version": SCHEMA_VERSION,
        "agent_id": record.id,
        "address": record.address,
        "hostname": storable(facts.hostname),
        "architecture": storable(facts.architecture),
        "cpu_model": storable(facts.cpu_model),
        "gpus": storable(facts.gpus),
        "frameworks": [{"name": n, "version": v} for n, v in facts.frameworks.items()],
        "models": [
            storable({"name": m.name, "version": m.version, "framework": m.framework}) for m in facts.models
        ],
        "inferscope_version": facts.inferscope_version,
        "started_at": facts.started_at,
        "open_sessions": record.open_sessions,
        "published_at": record.published_at,
        "expires_at": record.expires_at,
        "expires_unix_ms": unix_ms(record.expires_at),
    }


def agent_record(document: Mapping[str, Any]) -> AgentRecord:
    """Returns the record that ``agent_document`` was given.

    Raises:
        KeyError, TypeError, ValueError: It is none, or is damaged.
    """
    if document["schema_version"] > SCHEMA_VERSION:
        raise ValueError(f"it is of version {document['schema_version']}")
    frameworks = {str(each["name"]): str(each["version"]) for each in document["frameworks"]}
    models = [restored(each) for each in document["models"]]
    return AgentRecord(
        id=str(document["agent_id"]),
        address=str(document["address"]),
        facts=AgentFacts(
            hostname=str(document["hostname"]),
            architecture=str(document["architecture"]),
            cpu_model=str(document["cpu_model"]),
            gpus=tuple(map(str, document["gpus"])),
            frameworks=frameworks,
            models=tuple(
                RunnableModel(str(m["name"]), str(m["version"]), str(m["framework"])) for m in models
            ),
            inferscope_version=str(document["inferscope_version"]),
            started_at=_time(document["started_at"]),
        ),
        open_sessions=int(document["open_sessions"]),
        published_at=_time(document["published_at"]),
        expires_at=_time(document["expires_at"]),
    )


def unix_ms(time: datetime) -> int:
    """Returns a time as milliseconds since 1970, which every database compares alike."""
    return round(time.timestamp() * 1000)


def _time(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError(f"a time is {type(value).__name__}")
    return value
