"""``agent measure``: the options of a kind are those that its request declares."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from inferometer.client.commands import predict
from inferometer.evaluators.jobs.options import check_options, declared
from inferometer.evaluators.kinds.kind import Kind
from inferometer.manifests.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class NapRequest:
    naps: int = declared(2, "How often.", "N")
    deep: bool = declared(False, "Whether deeply.")
    place: str = declared("bed", "Where.", "PLACE")


class NapKind(Kind[object]):
    """Sleep."""

    name = "naps"
    title = "naps"
    phrase = "a nap"
    request = NapRequest


def test_a_request_without_a_system_has_no_options_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "known_kinds", lambda: ("naps",))
    monkeypatch.setattr(predict, "find_kind", lambda name: NapKind())

    command = predict.measure.get_command(click.Context(predict.measure), "naps")

    assert command is not None
    assert command.help == "Sleep."
    names = {each.name for each in command.params}
    assert {"naps", "deep", "place", "publish", "require_stable"} <= names
    assert not {"model_name", "gpu", "agent_address"} & names


def test_a_mix_whose_models_are_on_agents_can_use_tls() -> None:
    command = predict.measure.get_command(click.Context(predict.measure), "mix")

    assert command is not None
    assert {"tls_ca", "tls_cert", "tls_key", "tls_server_name"} <= {each.name for each in command.params}


def test_only_kinds_with_a_request_are_commands() -> None:
    shown = CliRunner().invoke(predict.measure, ["--help"])
    refused = CliRunner().invoke(predict.measure, ["load"])

    assert shown.exit_code == 0, shown.output
    commands = set(re.findall(r"^  ([a-z]+)  ", shown.output, re.MULTILINE))
    assert {"memory", "mix", "tuning"} <= commands
    assert "load" not in commands
    assert str(refused.exception) == "kind load declares no request, so it has no command"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"naps": True}, "naps is True; it must be a whole number"),
        ({"naps": 1.5}, "naps is 1.5; it must be a whole number"),
        ({"deep": "yes"}, "deep is 'yes'; it must be True or False"),
        ({"place": 3}, "place is 3; it must be text"),
    ],
)
def test_a_value_of_another_type_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_options(NapRequest(**given))  # type: ignore[arg-type]
