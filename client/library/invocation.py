"""Loads the configuration for a call of the library, without a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from inferometer.agent.hardware.allocator import use_allocator_of_environment
from inferometer.client.api.invocation import Invocation

VARIABLES: Mapping[str, str] = {
    "secret": "AGENT_SECRET",
    "secret_file": "AGENT_SECRET_FILE",
    "database_address": "AGENT_DATABASE_ADDRESS",
    "tls_ca": "AGENT_TLS_CA",
    "tls_cert": "AGENT_TLS_CERT",
    "tls_key": "AGENT_TLS_KEY",
    "tls_server_name": "AGENT_TLS_SERVER_NAME",
}
"""The environment variables of global flags, by the flag; those of folders are read where they are used."""
FRAMEWORK = "AGENT_FRAMEWORK"
"""The variable of the framework where none is named."""
MANIFESTS = "AGENT_MANIFESTS"
"""The variable of the user's directories with manifests."""


def library_invocation(**flags: Any) -> Invocation:
    """Returns the configuration and what the environment sets; ``flags`` take precedence, unless None.

    Also sets the process's allocator to the one that the environment names.
    """
    use_allocator_of_environment()
    found: dict[str, Any] = {name: os.environ[key] for name, key in VARIABLES.items() if os.environ.get(key)}
    if directories := os.environ.get(MANIFESTS):
        found["manifests"] = directories.split(os.pathsep)
    return Invocation(found | {name: value for name, value in flags.items() if value is not None})
