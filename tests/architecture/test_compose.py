"""docker/compose.yml: its files exist, it runs the program's commands, and it contains no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from command_lines import parsed

from inferometer.agent.hardware.environment import DeviceKind
from inferometer.agent.inference.registry import BUILTIN
from inferometer.agent.server.server import ServerOptions
from inferometer.agent.tracing.exporting import TraceAddress
from tools.dockerfile import read_stages

PORT = ServerOptions().port
MONGODB_PORT = 27017
SECRET_NAMES = re.compile(r"SECRET|PASS|TOKEN|CREDENTIAL|_KEY|USER", re.IGNORECASE)
MATRIX = [
    (entry.name.lower(), device.value) for entry in BUILTIN for device in (DeviceKind.CPU, DeviceKind.GPU)
]
IMAGES = {
    f"inferometer/{name}:amd64-{device}": f"docker/{name}-{device}.Dockerfile" for name, device in MATRIX
}


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((root / "docker" / "compose.yml").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


@pytest.fixture(scope="module")
def agents(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if "build" in service}


@pytest.fixture(scope="module")
def evaluations(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if name.startswith("evaluate-")}


def _published(service: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """The addresses of the host, its ports and those of the container."""
    for port in service.get("ports", ()):
        address, outside, inside = port.rsplit(":", 2)
        yield address, int(outside), int(inside)


def test_there_are_an_agent_of_each_framework_its_evaluation_a_database_and_a_trace_server(
    services: dict[str, Any], agents: dict[str, Any], evaluations: dict[str, Any]
) -> None:
    frameworks = {entry.name.lower() for entry in BUILTIN}

    assert set(agents) == {*frameworks, "pytorch-gpu"}
    assert set(evaluations) == {f"evaluate-{framework}" for framework in frameworks}
    assert set(services) - set(agents) - set(evaluations) == {"mongodb", "jaeger"}
    assert {service["restart"] for service in evaluations.values()} == {"no"}


def test_what_is_built_is_the_image_of_its_name(root: Path, agents: dict[str, Any]) -> None:
    for name, service in agents.items():
        context = (root / "docker" / service["build"]["context"]).resolve()
        assert context == root
        assert service["build"]["dockerfile"] == IMAGES[service["image"]], name
        assert (context / service["build"]["dockerfile"]).is_file()


def test_images_of_others_are_pinned_by_tag_and_digest(services: dict[str, Any]) -> None:
    others = {service["image"] for service in services.values()} - set(IMAGES)

    assert len(others) == 2
    for image in others:
        assert re.fullmatch(r"[\w./-]+:\d[\w.]*@sha256:[0-9a-f]{64}", image), image


def test_evaluations_use_an_image_that_is_built_here(
    agents: dict[str, Any], evaluations: dict[str, Any]
) -> None:
    assert {e["image"] for e in evaluations.values()} <= {a["image"] for a in agents.values()}


def test_every_served_agent_runs_a_command_of_the_program_at_the_port_that_is_published(
    agents: dict[str, Any],
) -> None:
    for service in agents.values():
        served = parsed(service["command"])
        assert served.info_name == "agent serve"
        assert (served.params["host"], served.params["port"]) == ("0.0.0.0", PORT)
        # the secret is asked for, and the ports are open on the local address only
        assert served.params["insecure"] is True
        assert [inside for _, _, inside in _published(service)] == [PORT, served.params["http_port"]]
        assert float(service["stop_grace_period"].removesuffix("s")) > served.params["grace_s"]


def test_every_health_check_of_an_agent_is_that_of_its_image(root: Path, agents: dict[str, Any]) -> None:
    for service in agents.values():
        *_, last = read_stages((root / service["build"]["dockerfile"]).read_text(encoding="utf-8"))
        kind, *words = service["healthcheck"]["test"]
        assert kind == "CMD"
        assert words == yaml.safe_load(last.last("HEALTHCHECK").value.removeprefix("CMD "))
        assert parsed(words[1:]).params["address"] == f"127.0.0.1:{PORT}"


def test_every_service_that_stays_says_whether_it_is_healthy(
    services: dict[str, Any], evaluations: dict[str, Any]
) -> None:
    for name, service in services.items():
        check = service["healthcheck"]
        assert check == {"disable": True} if name in evaluations else check["test"][0] == "CMD", name


def test_every_evaluation_reaches_its_agent_the_database_and_the_trace_server(
    services: dict[str, Any], evaluations: dict[str, Any]
) -> None:
    for name, service in evaluations.items():
        framework = name.removeprefix("evaluate-")
        context = parsed(service["command"])
        options = context.params
        tracer = TraceAddress.parse(options["tracer_address"])
        assert options["agent_address"] == f"{framework}:{PORT}"
        assert options["framework_name"].lower() == framework
        assert (context.obj["database_address"], tracer.host, tracer.port) == ("mongodb", "jaeger", 4317)
        assert 4317 in [inside for _, _, inside in _published(services["jaeger"])]
        assert MONGODB_PORT in [inside for _, _, inside in _published(services["mongodb"])]
        for host in (framework, "mongodb", "jaeger"):
            assert set(services[host]["networks"]) & set(service["networks"]), host
            assert service["depends_on"][host] == {"condition": "service_healthy"}


def test_evaluations_run_one_after_the_other(evaluations: dict[str, Any]) -> None:
    before = [
        [host for host, how in service["depends_on"].items() if how["condition"].endswith("successfully")]
        for service in evaluations.values()
    ]

    assert before == [[], *([name] for name in list(evaluations)[:-1])]


def test_served_agents_send_their_spans_to_the_trace_server(
    services: dict[str, Any], agents: dict[str, Any]
) -> None:
    for service in agents.values():
        tracer = TraceAddress.parse(parsed(service["command"]).params["tracer_address"])
        assert (tracer.host, tracer.port) == ("jaeger", 4317)
        assert set(services["jaeger"]["networks"]) & set(service["networks"])


def test_no_agent_reaches_the_database_which_asks_for_no_password(
    services: dict[str, Any], agents: dict[str, Any]
) -> None:
    for service in agents.values():
        assert not set(services["mongodb"]["networks"]) & set(service["networks"])


def test_no_two_services_take_one_port_and_all_are_open_on_the_local_address_only(
    services: dict[str, Any],
) -> None:
    ports = [port for service in services.values() for port in _published(service)]

    assert {address for address, _, _ in ports} == {"127.0.0.1"}
    assert len({outside for _, outside, _ in ports}) == len(ports)
    assert {inside for _, _, inside in _published(services["jaeger"])} == {4317, 16686}


@pytest.mark.parametrize("kind", ["volumes", "networks", "secrets"])
def test_what_the_services_use_is_declared_and_nothing_else(compose: dict[str, Any], kind: str) -> None:
    used = {
        str(name).partition(":")[0]
        for service in compose["services"].values()
        for name in service.get(kind, ())
    }

    assert used == set(compose[kind])


def test_the_secret_is_in_a_file_that_is_in_no_commit(root: Path, compose: dict[str, Any]) -> None:
    (secret,) = compose["secrets"].values()
    file = Path("docker") / secret["file"]

    assert set(secret) == {"file"}
    assert f"{file.parent}/" in (root / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_agents_and_evaluations_get_the_secret_as_a_file(
    compose: dict[str, Any], agents: dict[str, Any], evaluations: dict[str, Any]
) -> None:
    (name,) = compose["secrets"]

    for service in (*agents.values(), *evaluations.values()):
        assert service["secrets"] == [name]
        assert service["environment"] == {"AGENT_SECRET_FILE": f"/run/secrets/{name}"}
        assert not [word for word in service["command"] if word.startswith(("--secret", "-s"))]


def test_no_secret_stands_in_the_environment(services: dict[str, Any]) -> None:
    for service in services.values():
        names = set(service.get("environment", ()))
        assert {name for name in names if SECRET_NAMES.search(name)} <= {"AGENT_SECRET_FILE"}


def test_the_variable_of_the_secret_file_is_one_that_the_program_reads() -> None:
    options = [option for option in parsed(["serve"]).command.params if isinstance(option, click.Option)]

    assert [option.name for option in options if option.envvar == "AGENT_SECRET_FILE"] == ["secret_file"]


def test_no_container_gets_more_rights_than_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert "privileged" not in service
        assert "no-new-privileges:true" in service["security_opt"], name
        # MongoDB's image begins as root, and becomes its own user
        assert service.get("cap_drop") == ["ALL"] or name == "mongodb", name
