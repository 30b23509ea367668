"""The description of a session as a message, between agents and clients of different versions."""

from __future__ import annotations

import json

from inferometer.agent.protocol.conversion import open_response, read_description
from tests.contract.store_fixtures import make_system

TOLD = ("libraries", "build", "settings", "governor")


def test_what_a_framework_tells_of_itself_makes_the_round_trip() -> None:
    environment = make_system().environment
    assert all(getattr(environment, name) for name in TOLD)

    assert read_description(open_response("id", make_system()), "host:1").environment == environment


def test_an_older_agent_tells_nothing_and_what_a_newer_one_adds_is_left_out() -> None:
    response = open_response("id", make_system())
    environment = json.loads(response.environment_json)
    for name in TOLD:
        del environment[name]
    response.environment_json = json.dumps({**environment, "moon_phase": "full"})

    read = read_description(response, "host:1").environment
    assert [getattr(read, name) for name in TOLD] == [{}, "", {}, ""]
    assert read.hostname == "Bench-1"
