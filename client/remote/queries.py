"""What an agent is asked without an open model: what it is, and what it can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from client.remote.connection import CONNECT_TIMEOUT_S, Connection
from client.remote.retrying import retried
from protos.inferscope.v1 import registry_pb2

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class RemoteFramework:
    """A framework of an agent.

    Attributes:
        name: Its name.
        version: The installed version, or None.
        install: The command that installs it.
    """

    name: str
    version: str | None
    install: str


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model of an agent.

    Attributes:
        name: Its name.
        version: Its version.
        framework_name: The framework that it needs.
        framework_constraint: The versions of the framework that will do.
        description: What it is.
        runnable: Whether the agent can run it.
    """

    name: str
    version: str
    framework_name: str
    framework_constraint: str
    description: str
    runnable: bool


def describe(connection: Connection, timeout_s: float = CONNECT_TIMEOUT_S) -> registry_pb2.DescribeResponse:
    """Returns what an agent says of itself; asks again where the connection was lost, as all of these do.

    Raises:
        grpc.RpcError: It does not answer, or refuses; see ``client.remote.failures.told``.
    """
    return _ask(connection.registry.Describe, registry_pb2.DescribeRequest(), connection, timeout_s)


def ask_load(connection: Connection, timeout_s: float = CONNECT_TIMEOUT_S) -> registry_pb2.StatusResponse:
    """Returns how an agent is: what it has loaded, and how much it has to do.

    Raises:
        grpc.RpcError: It does not answer, or refuses; see ``client.remote.failures.told``.
    """
    return _ask(connection.registry.Status, registry_pb2.StatusRequest(), connection, timeout_s)


def list_frameworks(
    connection: Connection, timeout_s: float = CONNECT_TIMEOUT_S
) -> tuple[RemoteFramework, ...]:
    """Returns the frameworks of an agent, installed or not.

    Raises:
        grpc.RpcError: It does not answer, or refuses; see ``client.remote.failures.told``.
    """
    request = registry_pb2.ListFrameworksRequest()
    response = _ask(connection.registry.ListFrameworks, request, connection, timeout_s)
    return tuple(RemoteFramework(f.name, f.version or None, f.install) for f in response.frameworks)


def list_models(
    connection: Connection, timeout_s: float = CONNECT_TIMEOUT_S, framework_name: str | None = None
) -> tuple[RemoteModel, ...]:
    """Returns the models of an agent, of all frameworks or of one.

    Raises:
        grpc.RpcError: It does not answer, or refuses; see ``client.remote.failures.told``.
    """
    request = registry_pb2.ListModelsRequest(framework_name=framework_name or "")
    response = _ask(connection.registry.ListModels, request, connection, timeout_s)
    return tuple(
        RemoteModel(m.name, m.version, m.framework_name, m.framework_constraint, m.description, m.runnable)
        for m in response.models
    )


def _ask(
    method: Callable[..., _Answer], request: object, connection: Connection, timeout_s: float
) -> _Answer:
    return retried(lambda left_s: method(request, timeout=left_s, metadata=connection.metadata), timeout_s)
