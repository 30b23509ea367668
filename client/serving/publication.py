"""The publication of a served agent: from the options to the heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from client.command import database_options
from client.finite_float import FiniteFloatRange
from client.invocation import DEFAULT_DATABASE, Invocation
from client.serving.advertising import advertised_address, is_published
from client.serving.heartbeat import INTERVAL_S, Heartbeat, PublishedAgent
from evaluators.store.opening import check_address, open_agent_directory


def publication_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where an agent is published, and as what."""
    advertise = click.option(
        "--advertise",
        metavar="ADDRESS",
        help="Publish this agent in the database so that others find it, as HOST:PORT, as HOST, or as auto; "
        "none does not.  [default: auto where a database is given or configured]",
    )
    heartbeat = click.option(
        "--heartbeat_s",
        type=FiniteFloatRange(min=0.1),
        default=INTERVAL_S,
        show_default=True,
        metavar="S",
        help="Publish it again so often; after three times as long without, it is taken for gone.",
    )
    return database_options(advertise(heartbeat(function)))


class Publication:
    """Keeps an agent published while it serves; does nothing where that is not asked for.

    Args:
        invocation: Has the configured database.
        agent: The agent.
        bound: Where it listens, as ``host:port``.
        secure: Whether it listens with TLS, which its address then says.
        advertise: What ``--advertise`` says.
        heartbeat_s: The time between two beats, in seconds.
        database_address: The database; None for the one that is configured.
        database_name: Its name; None for the one that is configured.

    Raises:
        ConfigurationError: An address makes no sense.
    """

    def __init__(
        self,
        invocation: Invocation,
        agent: PublishedAgent,
        bound: str,
        *,
        secure: bool = False,
        advertise: str | None,
        heartbeat_s: float,
        database_address: str | None,
        database_name: str | None,
    ) -> None:
        settings = invocation.configuration.database
        database = database_address or settings.address
        self._heartbeat: Heartbeat | None = None
        if not is_published(advertise, database):
            return
        address = advertised_address(advertise, bound)
        if secure and "://" not in address:
            address = f"grpcs://{address}"
        directory = partial(
            open_agent_directory,
            check_address(database) if database else None,
            database_name or settings.name or DEFAULT_DATABASE,
            invocation.data_directory,
        )
        self._heartbeat = Heartbeat(agent, address, directory, heartbeat_s)

    def start(self) -> None:
        """Begins to publish."""
        if self._heartbeat is not None:
            self._heartbeat.start()

    def begin_stop(self) -> None:
        """Has the agent taken out, so that nobody new finds it while it finishes; waits for nothing."""
        if self._heartbeat is not None:
            self._heartbeat.begin_stop()

    def stop(self) -> None:
        """Waits, not for long, until it is taken out."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
