"""Values of ``--agent``, and the selection among known agents."""

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from inferometer.agent.hardware.environment import Device, DeviceKind
from inferometer.agent.inference.session import SessionOptions
from inferometer.agent.protocol.agent_info import AgentInfo, RunnableModel
from inferometer.client.api.discovery import (
    AgentSelector,
    KnownAgent,
    Source,
    only_local_elsewhere,
    pick_agent,
    read_agents,
)
from inferometer.evaluators.jobs.job import SystemRequest
from inferometer.manifests.errors import AgentError, ConfigurationError

AGENT_INFO = AgentInfo(
    hostname="gpu-1",
    architecture="x86_64",
    cpu_model="AMD EPYC 7763",
    gpus=("NVIDIA H100 80GB HBM3",),
    frameworks={"PyTorch": "2.13.0+cpu"},
    models=(RunnableModel("ResNet50", "1.0", "PyTorch"), RunnableModel("DigitsCNN", "1.0", "PyTorch")),
    inferometer_version="0.1.0",
    started_at=datetime(2026, 1, 1, tzinfo=timezone.utc),
)


def wanted_of(model_name, *, gpu=False, **more):
    session = SessionOptions(device=Device(DeviceKind.GPU) if gpu else Device())
    return SystemRequest(model_name=model_name, session=session, **more)


DIGITS = wanted_of("DigitsCNN")


def known(address, sessions=0, **agent_info):
    return KnownAgent(address, Source.DATABASE, replace(AGENT_INFO, **agent_info), sessions)


def pick(agents, selector="any", wanted=DIGITS, seed=0, ask=list):
    return pick_agent(agents, AgentSelector.parse(selector), wanted, ask=ask, seed=seed).address


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a:1", ("a:1",)),
        (" a:1, [::1]:2 ", ("a:1", "[::1]:2")),
        ("kserve://a:1", ("kserve://a:1",)),
        ("any", AgentSelector()),
        ("ANY", AgentSelector()),
        ("gpu=H100", AgentSelector((("gpu", "H100"),))),
        ("GPU= H100 ,framework=PyTorch 2", AgentSelector((("gpu", "H100"), ("framework", "PyTorch 2")))),
        ("host=a,host=b", AgentSelector((("host", "a"), ("host", "b")))),
    ],
)
def test_text_with_an_equals_sign_is_a_selector_and_else_addresses(text, named):
    assert read_agents(text) == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus=H100", 'unknown key "gpus"; did you mean "gpu" or "cpu"?'),
        ("gpu=", '"gpu=" is not a condition; write key=part'),
        ("=H100", '"=H100" is not a condition'),
        ("gpu=H100,", '"" is not a condition'),
        ("gpu=H100,a:1", '"a:1" is not a condition'),
        ("a:1,b", 'agent address "b" is not host:port'),
        ("a:1,,b:2", 'agent address "" is not host:port'),
        ("a:1,any", 'agent address "any" is not host:port'),
        ("a:1,b:2,a:1", "names a:1 twice"),
        ("", 'agent address "" is not host:port'),
    ],
)
def test_text_that_is_neither_is_one_clear_line(text, message):
    with pytest.raises(ConfigurationError) as error:
        read_agents(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ("any", True),
        ("gpu=h100", True),
        ("gpu=A100", False),
        ("cpu=epyc", True),
        ("arch=x86", True),
        ("arch=arm", False),
        ("host=gpu-1", True),
        ("framework=pytorch 2.13", True),
        ("framework=PyTorch 1", False),
        ("model=resnet", True),
        ("gpu=H100,framework=MXNet", False),
    ],
)
def test_conditions_are_parts_without_case_and_all_are_met(selector, fits):
    assert (AgentSelector.parse(selector).unmet(AGENT_INFO) == "") is fits


def test_agent_with_the_fewest_open_models_is_picked():
    assert pick([known("a:1", 3), known("b:1", 1), known("c:1", 2)]) == "b:1"


def test_equals_are_drawn_by_the_seed():
    agents = [known(f"{name}:1") for name in "abcdefgh"]
    drawn = [pick(agents, seed=seed) for seed in range(40)]
    assert drawn == [pick(agents, seed=seed) for seed in range(40)]
    assert len(set(drawn)) > 4


def test_agent_that_was_too_busy_to_say_its_load_comes_last():
    busy = replace(known("a:1"), open_sessions=None)
    assert pick([busy, known("b:1", 9)]) == "b:1"
    assert pick([busy]) == "a:1"


def test_load_is_that_of_the_moment_and_who_does_not_answer_is_not_picked():
    def ask(agents):
        return [
            replace(agent, problem="gone")
            if agent.address == "a:1"
            else replace(agent, open_sessions=sessions)
            for agent, sessions in zip(agents, (0, 5, 2), strict=True)
        ]

    assert pick([known("a:1"), known("b:1"), known("c:1", 9)], ask=ask) == "c:1"


def test_only_agents_that_fit_are_asked():
    asked = []

    def ask(agents):
        asked.extend(agent.address for agent in agents)
        return agents

    agents = [
        known("a:1", gpus=()),
        known("b:1"),
        known("c:1", models=()),
        replace(known("d:1"), problem="gone"),
    ]
    assert pick(agents, "gpu=H100", ask=ask) == "b:1"
    assert asked == ["b:1"]


@pytest.mark.parametrize(
    "wanted",
    [
        wanted_of("digitscnn", framework_name="pytorch"),
        wanted_of("DigitsCNN", model_version="1.x"),
        wanted_of("DigitsCNN", gpu=True),
    ],
)
def test_agent_that_can_run_what_is_wanted_is_found(wanted):
    assert pick([known("a:1")], wanted=wanted) == "a:1"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (wanted_of("DigitCNN"), 'can run DigitCNN: did you mean "DigitsCNN"?'),
        (wanted_of("DigitsCNN", framework_name="MXNet"), "can run DigitsCNN in MXNet"),
        (wanted_of("DigitsCNN", model_version="2"), "can run DigitsCNN 2"),
        (wanted_of("DigitsCNN", model_version="?"), "--model_version: "),
        (wanted_of("DigitsCNN", gpu=True), "has a GPU"),
    ],
)
def test_model_that_nobody_can_run_is_one_clear_line(wanted, message):
    with pytest.raises(ConfigurationError) as error:
        pick([known("a:1", gpus=()), known("b:1", gpus=())], wanted=wanted)
    assert message in str(error.value)


def test_conditions_that_nobody_meets_are_named():
    with pytest.raises(ConfigurationError, match=r"none of the 2 agents .* \(not met: gpu=A100\)"):
        pick([known("a:1"), known("b:1")], "gpu=A100,host=gpu")


def test_nobody_alive_or_answering_is_an_agent_error():
    with pytest.raises(AgentError, match=r"no agent is alive .* none is published or configured"):
        pick([])
    with pytest.raises(AgentError, match=r"no agent is alive .*: agent a:1: refused"):
        pick([replace(known("a:1"), problem="agent a:1: refused")])
    with pytest.raises(AgentError, match=r"none of the 1 agents that fit .* responds"):
        pick([known("a:1")], ask=lambda agents: [replace(agent, problem="gone") for agent in agents])


@pytest.mark.parametrize(
    ("address", "host", "elsewhere"),
    [
        ("127.0.0.1:1", "here", False),
        ("127.0.0.1:1", "there", True),
        ("localhost:1", "there", True),
        ("[::1]:1", "there", True),
        ("grpcs://127.0.0.1:1", "there", True),
        ("10.0.0.1:1", "there", False),
        ("there:1", "there", False),
    ],
)
def test_loopback_address_of_another_machine_is_known_as_such(address, host, elsewhere):
    assert only_local_elsewhere(address, host, "here") is elsewhere
