"""Served agents: ``agent info agents`` lists them, ``agent status`` shows the health and state of one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from inferometer.client.cli.command import (
    POSITIVE,
    Command,
    current_invocation,
    database_options,
    format_option,
    option,
    tls_options,
)
from inferometer.client.cli.output import NOT_SERVING, SUCCESS, output_options, print_rows
from inferometer.evaluators.reports.base import Column, Row, row_of
from inferometer.evaluators.reports.writer import Format, write

if TYPE_CHECKING:
    from inferometer.client.api.discovery import KnownAgent
    from inferometer.client.remote.native.connection import AgentStatus

_AGENT_COLUMNS = (
    Column("address", "address", value="address"),
    Column("http_url", "http"),
    Column("state", "state", wraps=True),
    Column("hostname", "host", value="agent_info.hostname"),
    Column("architecture", "arch", detail=2, value="agent_info.architecture"),
    Column("cpu_model", "cpu", detail=1, value="agent_info.cpu_model"),
    Column("gpus", "gpu"),
    Column("frameworks", "frameworks"),
    Column("model_count", "models"),
    Column("open_sessions", "open", value="open_sessions"),
    Column("started_at", "started", detail=1, is_time=True),
    Column("inferometer_version", "version", detail=2, value="agent_info.inferometer_version"),
    Column("source", "known from", detail=2, value="source.value"),
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
    from inferometer.client.api.discovery import find_agents  # loads grpc

    known = find_agents(invocation)
    wanted = framework_name.strip().casefold() if framework_name else None
    rows = [
        _agent_row(agent, secure=invocation.agent_tls is not None)
        for agent in known
        if (model_name is None or agent.runs(model_name, framework_name))
        and (
            wanted is None or (agent.agent_info and wanted in map(str.casefold, agent.agent_info.frameworks))
        )
    ]
    is_table = Format(str(output["format_name"]).lower()) is Format.TABLE
    names = not is_table or output["chosen"] is not None
    print_rows((*_AGENT_COLUMNS, _MODELS) if names else _AGENT_COLUMNS, rows, **output)


def _agent_row(agent: KnownAgent, *, secure: bool) -> Row:
    info, state = agent.agent_info, agent.problem.removeprefix(f"agent {agent.address}: ") or "alive"
    row = dict.fromkeys(column.key for column in (*_AGENT_COLUMNS, _MODELS)) | row_of(_AGENT_COLUMNS, agent)
    row |= {"http_url": agent.http_url(secure=secure), "state": state}
    if info is not None:
        row |= {
            "gpus": "; ".join(info.gpus) or "none",
            "frameworks": ", ".join(f"{name} {version}" for name, version in info.frameworks.items()),
            "model_count": len(info.models),
            "models": ", ".join(dict.fromkeys(model.name for model in info.models)),
            "started_at": info.started_at.isoformat(timespec="seconds") if info.started_at else None,
        }
    return row


SERVING = "SERVING"
_BYTES_PER_MIB = 1024 * 1024
_log = logging.getLogger(__name__)
_MODEL_COLUMNS = (
    Column("name", "model"),
    Column("version", "version"),
    Column("framework", "framework"),
    Column("device", "device"),
    Column("waiting_requests", "waiting"),
    Column("busy_s", "busy (s)"),
    Column("predicted_inputs", "predicted inputs"),
    Column("instances", "instances"),
    Column("instances_alive", "alive"),
)


@click.command(cls=Command)
@click.argument("address", metavar="HOST:PORT")
@option("--timeout_s", type=POSITIVE, default=5.0, metavar="S", help="Timeout of each call.")
@format_option(Format.TABLE.value, Format.JSON.value)
@tls_options
def status(address: str, timeout_s: float, format_name: str) -> int:
    """Show the status of a served agent: its health, its loaded models and its load.

    The exit code reflects the health: 0 for SERVING, 1 for any other response, such as NOT_SERVING while the
    agent stops, and 6 if nothing responds. An agent that requires a secret reports only its
    health to a client without the secret; an agent that is too busy reports only its health, too.
    """
    invocation = current_invocation()
    from inferometer.client.remote.native.connection import ask_status  # loads grpc

    found = ask_status(address, timeout_s, invocation.secret, invocation.agent_tls)
    if format_name.lower() == Format.JSON.value:
        document: dict[str, object] = {"health": found.health}
        if found.details is not None:
            started_at = found.details["started_at"]
            document |= found.details
            document["started_at"] = started_at.isoformat() if started_at else None
        click.echo(json.dumps(document, indent=2))
    else:
        _print_status(found)
    if found.problem is not None:
        if found.refused and invocation.secret is None:
            _log.info("%s", found.problem)  # without a secret, only the health is expected
        else:
            click.echo(f"agent {address}: {found.problem}", err=True)
    return SUCCESS if found.health == SERVING else NOT_SERVING


def _print_status(found: AgentStatus) -> None:
    click.echo(found.health)
    if found.details is None:
        return
    details = found.details
    for trouble in details["troubles"]:
        click.echo(trouble)
    uptime, started_at = timedelta(seconds=int(details["uptime_s"])), details["started_at"]
    since = f" since {started_at:%Y-%m-%d %H:%M} UTC" if started_at else ""
    click.echo(
        f"inferometer {details['version']}, up {uptime}{since}, open sessions: {details['open_sessions']}, "
        f"memory: {details['resident_memory_bytes'] / _BYTES_PER_MIB:,.0f} MiB, "
        f"GPUs: {', '.join(details['gpus']) or 'none'}"
    )
    if details["models"]:
        write(_MODEL_COLUMNS, details["models"], Format.TABLE, sys.stdout)
