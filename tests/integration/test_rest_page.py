"""docs/rest.md: its example runs as written, and its tables have every route and every status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.protocol.status import HTTP_STATUSES
from inferometer.agent.server.rest.routes import ROUTES
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.manifests.catalog import Catalog

PAGE = (Path(__file__).parents[2] / "docs" / "rest.md").read_text(encoding="utf-8")


def test_the_example_predicts_on_an_agent_with_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    options = ServerOptions(port=0, http_port=0, secret="open sesame")
    with AgentServer(Catalog(), Registry(), options) as agent:
        assert agent.http_url is not None
        assert "127.0.0.1:8000" in example
        address = agent.http_url.removeprefix("http://")
        exec(example.replace("127.0.0.1:8000", address), {"SECRET": "open sesame"})

    assert capsys.readouterr().out == "(1, 10)\n"


def test_every_route_stands_on_the_page() -> None:
    table = PAGE.partition("## Routes")[2].partition("## Tensors")[0]
    for route in ROUTES:
        if route.path.endswith("/unload"):
            assert "`…/unload`" in table
        else:
            assert f"`{route.verb} {route.path}`" in table


def test_every_status_of_an_error_stands_on_the_page() -> None:
    found = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)}
    assert found >= set(HTTP_STATUSES.values())
