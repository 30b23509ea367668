"""``agent status``: whether a served agent answers, and how it is."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from datetime import datetime, timedelta

import click

from client.agent_tls import tls_options
from client.command import Command
from client.exit_codes import NOT_SERVING, SUCCESS
from client.finite_float import FiniteFloatRange
from client.invocation import current_invocation
from client.remote.agent_status import AgentDetails, AgentStatus, ask_status
from evaluators.reports.base import Column
from evaluators.reports.writer import Format, write

SERVING = "SERVING"
_BYTES_PER_MIB = 1024 * 1024
_log = logging.getLogger(__name__)
_COLUMNS = (
    Column("name", "model"),
    Column("version", "version"),
    Column("framework", "framework"),
    Column("device", "device"),
    Column("waiting_requests", "waiting"),
    Column("busy_s", "busy (s)"),
    Column("predicted_inputs", "predicted inputs"),
)


@click.command(cls=Command)
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--timeout_s",
    type=FiniteFloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Wait so long for the answer.",
)
@click.option(
    "-f",
    "--format",
    "format_name",
    type=click.Choice([Format.TABLE.value, Format.JSON.value], case_sensitive=False),
    default=Format.TABLE.value,
    show_default=True,
    help="How it is printed.",
)
@tls_options
def status(address: str, timeout_s: float, format_name: str) -> int:
    """Ask a served agent how it is: its health first, then what it has loaded and has to do.

    The exit code is that of the health: 0 for SERVING, 1 for anything else that an agent answers, such as
    NOT_SERVING while it stops, and 6 where none answers. An agent with a secret tells its health alone to who
    does not show it, as does one that is too busy for more.
    """
    invocation = current_invocation()
    found = ask_status(address, timeout_s, invocation.secret, invocation.agent_tls)
    if format_name.lower() == Format.JSON.value:
        click.echo(json.dumps(_document(found), indent=2))
    else:
        _print(found)
    if found.untold is not None:
        if found.refused and invocation.secret is None:
            _log.info("%s", found.untold)  # the health alone is what was asked for
        else:
            click.echo(f"agent {address}: {found.untold}", err=True)
    return SUCCESS if found.health == SERVING else NOT_SERVING


def _document(found: AgentStatus) -> dict[str, object]:
    document: dict[str, object] = {"health": found.health}
    if found.details is not None:
        document |= asdict(found.details)
        started_at = found.details.started_at
        document["started_at"] = started_at.isoformat() if started_at else None
    return document


def _print(found: AgentStatus) -> None:
    click.echo(found.health)
    if found.details is None:
        return
    for trouble in found.details.troubles:
        click.echo(trouble)
    click.echo(_line(found.details))
    if found.details.models:
        write(_COLUMNS, [asdict(model) for model in found.details.models], Format.TABLE, sys.stdout)


def _line(details: AgentDetails) -> str:
    uptime = timedelta(seconds=int(details.uptime_s))
    parts = [
        f"inferscope {details.version}",
        f"up {uptime}" + (f" since {_minute(details.started_at)}" if details.started_at else ""),
        f"open sessions: {details.open_sessions}",
        f"memory: {details.resident_memory_bytes / _BYTES_PER_MIB:,.0f} MiB",
        f"GPUs: {', '.join(details.gpus) or 'none'}",
    ]
    return ", ".join(parts)


def _minute(when: datetime) -> str:
    return when.strftime("%Y-%m-%d %H:%M UTC")
