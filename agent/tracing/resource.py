"""The resource of a trace's spans: the process that recorded them, by OpenTelemetry's conventions."""

from __future__ import annotations

import os
import platform
import socket
import sys
import uuid

import psutil

from inferometer.agent import __version__
from inferometer.agent.hardware.environment import container_architecture
from inferometer.agent.tracing.span import Attributes, AttributeValue

CLIENT_SERVICE = "inferometer"
"""The ``service.name`` of a process that evaluates."""
AGENT_SERVICE = "inferometer-agent"
"""The ``service.name`` of a served agent."""
_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")  # OpenTelemetry's, for service.instance.id
_VARIABLES = ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME")


def process_resource(service: str = CLIENT_SERVICE, instance: str = "") -> Attributes:
    """Returns the attributes of this process, sorted by name.

    ``service.instance.id`` is the same at every call; ``instance`` tells several services of one process
    apart. ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` take precedence. The command line is left
    out, because it may have a secret.
    """
    host, process = socket.gethostname(), psutil.Process()
    name = f"{host}/{process.pid}/{process.create_time()}/{service}/{instance}"
    found: dict[str, AttributeValue] = {
        "host.arch": container_architecture(platform.machine()),
        "host.name": host,
        "os.type": sys.platform,
        "process.executable.name": os.path.basename(sys.executable),  # noqa: PTH119 - it may be empty
        "process.pid": process.pid,
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "service.instance.id": str(uuid.uuid5(_NAMESPACE, name)),
        "service.name": service,
        "service.version": __version__,
    }
    return tuple(sorted((found | _configured()).items()))


def _configured() -> dict[str, AttributeValue]:
    """Returns the attributes that the environment sets."""
    if not any(os.environ.get(name) for name in _VARIABLES):  # as nearly always: this loads no library
        return {}
    from opentelemetry.sdk.resources import OTELResourceDetector

    given = OTELResourceDetector().detect().attributes
    return {name: value for name, value in given.items() if isinstance(value, str)}
