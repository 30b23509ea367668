"""A web server for tests that download, and no proxy between them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from file_server import FileServer, running_file_server

# Before any test imports ONNX Runtime by itself, which would tell its maker of each session.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.fixture
def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of files that asks nobody else for them."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with running_file_server() as server:
        yield server
