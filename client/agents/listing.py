"""``agent info agents``: the served agents that are known."""

from __future__ import annotations

from typing import Any

import click

from client.agent_tls import tls_options
from client.agents.known_agent import KnownAgent
from client.command import Command, database_options
from client.invocation import current_invocation
from client.output import output_options, print_rows
from evaluators.reports.base import Column, Row
from evaluators.reports.writer import Format

_COLUMNS = (
    Column("address", "address"),
    Column("state", "state"),
    Column("hostname", "host"),
    Column("architecture", "arch"),
    Column("cpu_model", "cpu"),
    Column("gpus", "gpu"),
    Column("frameworks", "frameworks"),
    Column("model_count", "models"),
    Column("open_sessions", "open"),
    Column("started_at", "started"),
    Column("inferscope_version", "version"),
    Column("source", "known from"),
)
_MODELS = Column("models", "model names")


@click.command(cls=Command)
@click.option("--model_name", metavar="NAME", help="Only agents that can run this model.")
@click.option("--framework_name", metavar="NAME", help="Only agents with this framework.")
@database_options
@tls_options
@output_options
def agents(
    model_name: str | None,
    framework_name: str | None,
    database_address: str | None,
    database_name: str | None,
    **output: Any,
) -> None:
    """List the served agents that are alive, and those of the configuration.

    Agents are alive that have published themselves in the database and not expired. Those that the
    configuration lists under `agents` are asked, and shown with the reason where they do not answer. csv and
    json also have the names of the models.
    """
    from client.agents.finding import find_agents

    known = find_agents(
        current_invocation(), database_address, database_name, lambda line: click.echo(line, err=True)
    )
    wanted = framework_name.strip().casefold() if framework_name else None
    rows = [
        _row(agent)
        for agent in known
        if (model_name is None or agent.runs(model_name, framework_name))
        and (wanted is None or (agent.facts and wanted in map(str.casefold, agent.facts.frameworks)))
    ]
    names = Format(str(output["format_name"]).lower()) is not Format.TABLE
    print_rows((*_COLUMNS, _MODELS) if names else _COLUMNS, rows, **output)


def _row(agent: KnownAgent) -> Row:
    facts = agent.facts
    row: dict[str, str | int | None] = {column.key: None for column in (*_COLUMNS, _MODELS)}
    row |= {
        "address": agent.address,
        "state": agent.problem.removeprefix(f"agent {agent.address}: ") or "alive",
        "open_sessions": agent.open_sessions,
        "source": agent.source.value,
    }
    if facts is not None:
        row |= {
            "hostname": facts.hostname,
            "architecture": facts.architecture,
            "cpu_model": facts.cpu_model,
            "gpus": "; ".join(facts.gpus) or "none",
            "frameworks": ", ".join(f"{name} {version}" for name, version in facts.frameworks.items()),
            "model_count": len(facts.models),
            "models": ", ".join(dict.fromkeys(model.name for model in facts.models)),
            "started_at": facts.started_at.isoformat(timespec="seconds") if facts.started_at else None,
            "inferscope_version": facts.inferscope_version,
        }
    return row
