"""Where an agent that was found serves over HTTP."""

from __future__ import annotations

import pytest

from inferometer.agent.protocol.agent_info import AgentInfo
from inferometer.client.api.discovery import KnownAgent, Source


@pytest.mark.parametrize(
    ("address", "secure", "port", "url"),
    [
        ("gpu-1:50051", False, 8000, "http://gpu-1:8000"),
        ("gpu-1:50051", True, 8000, "https://gpu-1:8000"),
        ("grpcs://gpu-1:50051", False, 8000, "https://gpu-1:8000"),
        ("grpc://[::1]:50051", True, 8000, "http://[::1]:8000"),
        ("gpu-1:50051", False, None, None),
        ("kserve://nowhere:1", False, 8000, None),
    ],
)
def test_url_has_the_host_of_the_address(
    address: str, secure: bool, port: int | None, url: str | None
) -> None:
    described = AgentInfo("gpu-1", "x86_64", "EPYC", (), {}, (), "0.1", None, port)
    assert KnownAgent(address, Source.DATABASE, described).http_url(secure=secure) == url


def test_agent_that_does_not_answer_has_none() -> None:
    assert KnownAgent("gpu-1:50051", Source.CONFIGURATION, None).http_url() is None
