"""What the configuration file says of safety: of a served agent, and towards one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from client.places import expanded

_Settings = TypeVar("_Settings", bound=BaseModel)
_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AgentTlsSettings(BaseModel):
    """TLS towards agents; paths are relative to the configuration file.

    Attributes:
        ca: Who vouches for agents.
        cert: The certificate that agents are shown.
        key: Its key.
        server_name: The name that the agent's certificate is to be for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None


class SafetySettings(BaseModel):
    """TLS and limits of a served agent, by the names of the flags; None leaves the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    insecure: bool | None = None
    max_message_mb: Annotated[int, Field(ge=1, le=2047)] | None = None
    max_sessions: _Count | None = None
    max_inputs: _Count | None = None
    max_pixels: _Count | None = None
    max_streams: _Count | None = None
    max_client_streams: _Count | None = None
    max_client_rps: _Positive | None = None
    client_burst: _Count | None = None
    max_connections: _Count | None = None
    max_connection_age_s: _Positive | None = None
    max_connection_idle_s: _Positive | None = None


def relative_to(folder: Path, settings: _Settings) -> _Settings:
    """Returns settings whose paths begin at a folder, unless they are whole."""
    paths = {
        name: folder / expanded(value)
        for name in type(settings).model_fields
        if isinstance(value := getattr(settings, name), Path)
    }
    return settings.model_copy(update=paths)
