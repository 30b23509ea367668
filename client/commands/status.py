"""``agent status``: shows the health and the state of a served agent."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from datetime import timedelta

import click

from inferometer.client.cli.command import POSITIVE, Command, format_option, option, tls_options
from inferometer.client.cli.current import current_invocation
from inferometer.client.cli.exit_codes import NOT_SERVING, SUCCESS
from inferometer.client.remote.native.registry import AgentDetails, AgentStatus, ask_status
from inferometer.evaluators.reports.base import Column
from inferometer.evaluators.reports.writer import Format, write

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
@option("--timeout_s", type=POSITIVE, default=5.0, metavar="S", help="Timeout of each call.")
@format_option(Format.TABLE.value, Format.JSON.value)
@tls_options
def status(address: str, timeout_s: float, format_name: str) -> int:
    """Show the status of a served agent: its health, its loaded models and its load.

    The exit code reflects the health: 0 for SERVING, 1 for any other response, such as NOT_SERVING while the
    agent stops, and 6 if nothing responds. Without the secret, an agent that has one reports only its health;
    so does an agent that is too busy.
    """
    invocation = current_invocation()
    found = ask_status(address, timeout_s, invocation.secret, invocation.agent_tls)
    if format_name.lower() == Format.JSON.value:
        click.echo(json.dumps(_document(found), indent=2))
    else:
        _print(found)
    if found.problem is not None:
        if found.refused and invocation.secret is None:
            _log.info("%s", found.problem)  # without a secret, only the health is expected
        else:
            click.echo(f"agent {address}: {found.problem}", err=True)
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
        f"inferometer {details.version}",
        f"up {uptime}" + (f" since {details.started_at:%Y-%m-%d %H:%M} UTC" if details.started_at else ""),
        f"open sessions: {details.open_sessions}",
        f"memory: {details.resident_memory_bytes / _BYTES_PER_MIB:,.0f} MiB",
        f"GPUs: {', '.join(details.gpus) or 'none'}",
    ]
    return ", ".join(parts)
