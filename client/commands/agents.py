"""``agent info agents``: lists the known served agents."""

from __future__ import annotations

from typing import Any

import click

from inferometer.client.cli.command import Command, database_options, option, tls_options
from inferometer.client.cli.current import current_invocation
from inferometer.client.cli.output import output_options, print_rows
from inferometer.client.discovery.finding import KnownAgent, find_agents
from inferometer.evaluators.reports.base import Column, Row
from inferometer.evaluators.reports.writer import Format

_COLUMNS = (
    Column("address", "address"),
    Column("http_url", "http"),
    Column("state", "state", wraps=True),
    Column("hostname", "host"),
    Column("architecture", "arch", detail=2),
    Column("cpu_model", "cpu", detail=1),
    Column("gpus", "gpu"),
    Column("frameworks", "frameworks"),
    Column("model_count", "models"),
    Column("open_sessions", "open"),
    Column("started_at", "started", detail=1, is_time=True),
    Column("inferometer_version", "version", detail=2),
    Column("source", "known from", detail=2),
)
_MODELS = Column("models", "model names")


@click.command(cls=Command)
@option("--model_name", metavar="NAME", help="Only agents that can run this model.")
@option("--framework_name", metavar="NAME", help="Only agents with this framework.")
@database_options
@tls_options
@output_options
def agents(model_name: str | None, framework_name: str | None, **output: Any) -> None:
    """List the published agents that are alive, and the agents of the configuration.

    An agent is alive if it is published in the database and has not expired. Agents that the configuration
    lists under `agents` are queried, and listed with the reason if they do not respond. csv and json also
    have the names of the models.
    """
    invocation = current_invocation()
    known = find_agents(invocation)
    wanted = framework_name.strip().casefold() if framework_name else None
    rows = [
        _row(agent, secure=invocation.agent_tls is not None)
        for agent in known
        if (model_name is None or agent.runs(model_name, framework_name))
        and (
            wanted is None or (agent.agent_info and wanted in map(str.casefold, agent.agent_info.frameworks))
        )
    ]
    is_table = Format(str(output["format_name"]).lower()) is Format.TABLE
    names = not is_table or output["chosen"] is not None
    print_rows((*_COLUMNS, _MODELS) if names else _COLUMNS, rows, **output)


def _row(agent: KnownAgent, *, secure: bool) -> Row:
    info = agent.agent_info
    row: dict[str, str | int | None] = {column.key: None for column in (*_COLUMNS, _MODELS)}
    row |= {
        "address": agent.address,
        "http_url": agent.http_url(secure=secure),
        "state": agent.problem.removeprefix(f"agent {agent.address}: ") or "alive",
        "open_sessions": agent.open_sessions,
        "source": agent.source.value,
    }
    if info is not None:
        row |= {
            "hostname": info.hostname,
            "architecture": info.architecture,
            "cpu_model": info.cpu_model,
            "gpus": "; ".join(info.gpus) or "none",
            "frameworks": ", ".join(f"{name} {version}" for name, version in info.frameworks.items()),
            "model_count": len(info.models),
            "models": ", ".join(dict.fromkeys(model.name for model in info.models)),
            "started_at": info.started_at.isoformat(timespec="seconds") if info.started_at else None,
            "inferometer_version": info.inferometer_version,
        }
    return row
