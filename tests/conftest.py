"""A web server for tests that download, with no proxy between; and tests of real time, which are repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from file_server import FileServer, running_file_server

# Before any test imports ONNX Runtime by itself, which would tell its maker of each session.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


_MEASUREMENTS = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets tests of real time measure again where they fail: what else a machine does may disturb one.

    What is at fault in the program fails each time.
    """
    for item in items:
        if item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.flaky(reruns=_MEASUREMENTS - 1))


@pytest.fixture
def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of files that asks nobody else for them."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with running_file_server() as server:
        yield server
