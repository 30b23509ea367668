"""Opening the model that the options name, in this process or on a served agent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.fetching import fetch_image
from agent.selection import select_model
from agent.session import Session, SessionOptions, open_session
from agent.tracing.scope import TraceScope
from client.invocation import Invocation

if TYPE_CHECKING:
    from client.remote.agent import RemoteAgent


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
    def session_options(self) -> SessionOptions: ...  # noqa: D102


def agent_address(invocation: Invocation, choice: SystemChoice) -> str | None:
    """Returns where the agent is that runs the model; None for this process."""
    return choice.agent_address or invocation.configuration.agent or None


def open_system(
    invocation: Invocation, choice: SystemChoice, scope: TraceScope | None = None
) -> Session | RemoteAgent:
    """Opens the model, in this process or on a served agent.

    Raises:
        InferscopeError: It cannot be opened; see ``open_session`` and ``open_remote_agent``.
    """
    framework = choice.framework_name or invocation.configuration.framework
    if address := agent_address(invocation, choice):
        from client.remote.agent import RemoteOptions, open_remote_agent

        return open_remote_agent(
            address,
            choice.model_name,
            choice.model_version,
            framework,
            choice.session_options,
            RemoteOptions(secret=invocation.secret),
            trace=scope,
        )
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
