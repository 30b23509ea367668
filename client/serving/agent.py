"""A served agent: its parts, its evaluations for clients, and its publication with a heartbeat.

The heartbeat keeps the agent in the directory while it serves.
"""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

from inferometer.agent.artifacts.web import fetch_image
from inferometer.agent.inference.session import Session
from inferometer.agent.server.native.call_tracing import ServerTracing
from inferometer.agent.server.native.predict_service import DatasetOrder
from inferometer.agent.server.native.registry_service import RegistryService
from inferometer.agent.server.server import AgentServer, Group, ServerOptions
from inferometer.client.api.invocation import Invocation
from inferometer.client.remote.address import AgentAddress
from inferometer.evaluators.evaluation import Status, utc_now
from inferometer.evaluators.jobs.job import DatasetChoice, JobCallbacks
from inferometer.evaluators.kinds.batches.job import evaluate_open_system
from inferometer.evaluators.kinds.batches.request import BatchOptions
from inferometer.evaluators.store.evaluation_store import evaluation_to_json
from inferometer.evaluators.store.opening import (
    AgentDirectory,
    AgentRecord,
    check_address,
    open_agent_directory,
)
from inferometer.manifests.errors import ConfigurationError, EvaluationInterrupted, StoreError


def run_dataset(
    invocation: Invocation,
    session: Session,
    order: DatasetOrder,
    on_progress: Callable[[int, int], None],
    stop_requested: Callable[[], bool],
) -> str:
    """Evaluates a model on a dataset of the catalogue, and returns the evaluation as JSON.

    With the invocation bound, it satisfies the server's ``DatasetRunner``.
    """
    given = asdict(order)
    evaluation = evaluate_open_system(
        session,
        DatasetChoice(name=given.pop("dataset_name"), category=given.pop("dataset_category")),
        BatchOptions(**given),
        invocation.catalog,
        invocation.cache,
        JobCallbacks(
            on_progress=lambda progress: on_progress(progress.done, progress.total),
            stop_requested=stop_requested,
        ),
    )
    if evaluation.status is Status.INTERRUPTED:
        raise EvaluationInterrupted("the evaluation was stopped before its end")
    return evaluation_to_json(evaluation)


def make_agent(
    invocation: Invocation,
    options: ServerOptions,
    *,
    allow_private_urls: bool = False,
    tracing: ServerTracing | None = None,
    group: Group | None = None,
) -> AgentServer:
    """Returns an agent that is bound to its address but not started.

    With ``allow_private_urls``, inputs at private and local addresses are fetched too. ``tracing`` of None
    exports no traces.

    Raises:
        ConfigurationError: The address cannot be bound, or the options are not safe; see ``AgentServer``.
        UnknownModelError: A version policy or ``models`` names a model that does not exist.
    """
    for name in (*options.serving.versions.by_model, *options.serving.by_model):
        invocation.catalog.find_models(name)
    return AgentServer(
        invocation.catalog,
        invocation.registry,
        options,
        dataset_runner=partial(run_dataset, invocation),
        architectures=invocation.architectures,
        cache=invocation.cache,
        fetch=partial(fetch_image, allow_private=allow_private_urls),
        tracing=tracing,
        group=group,
    )


INTERVAL_S = 10.0
LIFETIMES = 3.0
"""The lifetime of a record in intervals; it tolerates two lost beats and as large a clock difference."""
_MAX_INTERVALS_BETWEEN_TRIES = 6
_LEAVING_S = 5.0
_log = logging.getLogger(__name__)


class Heartbeat:
    """Publishes an agent periodically, in its own thread, which opens and closes the directory.

    An unreachable directory is logged once and retried with growing pauses; the agent continues to serve.
    ``address`` is the address for clients, ``interval_s`` the time between two beats in seconds, and ``now``
    a clock in UTC.
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
        """Starts publishing."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Starts removing the agent from the directory without waiting."""
        self._stopping.set()

    def stop(self, timeout_s: float = _LEAVING_S) -> None:
        """Waits until the agent is removed; on timeout, leaves its entry to expire."""
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
            _log.warning("%s; it expires on its own", error)
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


NONE = "none"
AUTOMATIC = "auto"
_WILDCARDS = frozenset({"0.0.0.0", "::", "[::]", ""})  # noqa: S104 - recognised, not bound


def is_published(advertise: str | None, database_address: str | None) -> bool:
    """Returns whether to publish an agent: if publication or a database is requested, unless disabled."""
    if advertise is None:
        return database_address is not None
    return advertise.strip().casefold() != NONE


def advertised_address(advertise: str | None, bound: str, hostname: str | None = None) -> str:
    """Returns the published address of an agent.

    Args:
        advertise: ``host:port``, or a host alone; None or ``auto`` means the address that the agent listens
            on, with this machine's name in place of an unspecified address.
        bound: The address that it listens on, as ``host:port``.
        hostname: This machine's name; None asks the system.

    Raises:
        ConfigurationError: The address is invalid.
    """
    host, _, port = bound.rpartition(":")
    given = (advertise or AUTOMATIC).strip()
    if given.casefold() == AUTOMATIC:
        return f"{hostname or socket.gethostname()}:{port}" if host in _WILDCARDS else bound
    for address in (given, f"{given}:{port}"):
        with suppress(ConfigurationError):
            return str(AgentAddress.parse(address))
    raise ConfigurationError(
        f'--advertise "{given}" is not an address; allowed: HOST:PORT, HOST, {AUTOMATIC} or {NONE}'
    )


def make_heartbeat(
    invocation: Invocation,
    agent: RegistryService,
    bound: str,
    secure: bool,
    advertise: str | None,
    heartbeat_s: float,
) -> Heartbeat | None:
    """Returns the heartbeat that keeps an agent published; None unless publication is requested.

    ``bound`` is the address that the agent listens on, as ``host:port``, with TLS if ``secure``; its
    published address then says so. The other arguments are options.
    """
    database, name = invocation.database
    if not is_published(advertise, database):
        return None
    address = advertised_address(advertise, bound)
    if secure and "://" not in address:
        address = f"grpcs://{address}"
    checked = check_address(database) if database else None
    directory = partial(open_agent_directory, checked, name, invocation.data_directory)
    return Heartbeat(agent, address, directory, heartbeat_s)
