"""Opening the model that the options name, in this process or on a served agent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import click

from agent.fetching import fetch_image
from agent.selection import select_model
from agent.session import Session, SessionOptions, open_session
from agent.tracing.scope import TraceScope
from client.invocation import Invocation
from client.remote.defaults import ANSWER_TIMEOUT_S
from client.remote.kserve.address import is_kserve

if TYPE_CHECKING:
    from client.remote.agent import RemoteAgent
    from client.remote.pool.pool import AgentPool


class SystemChoice(Protocol):
    """The options that choose a model and where it runs."""

    @property
    def model_name(self) -> str: ...  # noqa: D102
    @property
    def model_version(self) -> str | None: ...  # noqa: D102
    @property
    def framework_name(self) -> str | None: ...  # noqa: D102
    @property
    def agent_address(self) -> str | None: ...  # noqa: D102
    @property
    def open_timeout(self) -> float: ...  # noqa: D102
    @property
    def session_options(self) -> SessionOptions: ...  # noqa: D102


def agent_address(invocation: Invocation, choice: SystemChoice) -> str | None:
    """Returns where the agent is that runs the model; None for this process."""
    return choice.agent_address or invocation.configuration.agent or None


def open_shared_system(
    invocation: Invocation,
    choice: SystemChoice,
    scope: TraceScope | None,
    *,
    warm_up: bool,
    answer_timeout_s: float,
) -> Session | RemoteAgent | AgentPool:
    """Opens the model as ``open_system`` does, or on several agents that share what is to be done.

    Args:
        invocation: Has the configuration and the secret.
        choice: What to open; its agents are addresses with commas between.
        scope: What spans of the opening hang under; None records none.
        warm_up: Whether the first run only warms up.
        answer_timeout_s: How long an agent may take for one batch, in seconds.

    Raises:
        InferscopeError: It cannot be opened; see ``open_system`` and ``open_agent_pool``.
    """
    addresses = (agent_address(invocation, choice) or "").split(",")
    if len(addresses) == 1 or is_kserve(addresses[0]):
        return open_system(invocation, choice, scope, answer_timeout_s)
    from client.remote.pool.opening import open_agent_pool

    return open_agent_pool(
        addresses,
        lambda address: _open_remote(invocation, choice, address, scope, answer_timeout_s),
        warm_up=warm_up,
        say=lambda line: click.echo(line, err=True),
    )


def _open_remote(
    invocation: Invocation,
    choice: SystemChoice,
    address: str,
    scope: TraceScope | None,
    answer_timeout_s: float,
) -> RemoteAgent:
    from client.remote.agent import RemoteOptions, open_remote_agent

    return open_remote_agent(
        address,
        choice.model_name,
        choice.model_version,
        choice.framework_name or invocation.configuration.framework,
        choice.session_options,
        RemoteOptions(invocation.secret, invocation.agent_tls, choice.open_timeout, answer_timeout_s),
        trace=scope,
    )


def _open_kserve(
    invocation: Invocation, choice: SystemChoice, address: str, answer_timeout_s: float
) -> Session:
    from client.remote.kserve.model_choice import ModelChoice
    from client.remote.kserve.opening import KServeOptions, open_kserve

    return open_kserve(
        address,
        invocation.catalog,
        # the framework of the configuration is that of models which run here
        ModelChoice(choice.model_name, choice.model_version, choice.framework_name),
        choice.session_options,
        KServeOptions(invocation.secret, invocation.agent_tls, choice.open_timeout, answer_timeout_s),
        cache=invocation.cache,
        fetch=partial(fetch_image, allow_private=True),
        say=lambda line: click.echo(line, err=True),
    )


def open_system(
    invocation: Invocation,
    choice: SystemChoice,
    scope: TraceScope | None = None,
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
) -> Session | RemoteAgent:
    """Opens the model, in this process or on a served agent.

    Raises:
        InferscopeError: It cannot be opened; see ``open_session`` and ``open_remote_agent``.
    """
    address = agent_address(invocation, choice)
    if address and is_kserve(address):
        return _open_kserve(invocation, choice, address, answer_timeout_s)
    if address:
        return _open_remote(invocation, choice, address, scope, answer_timeout_s)
    framework = choice.framework_name or invocation.configuration.framework
    manifest = select_model(
        invocation.catalog,
        invocation.registry,
        choice.model_name,
        choice.model_version,
        framework,
        choice.session_options.weights,
    )
    # The user names the URLs, so that they may lead to this machine and its network.
    fetch = partial(fetch_image, allow_private=True)
    return open_session(
        manifest,
        choice.session_options,
        invocation.registry,
        architectures=invocation.architectures,
        cache=invocation.cache,
        fetch=fetch,
        trace=scope,
    )
