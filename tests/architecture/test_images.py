"""There is an image for every framework and device, from files that are there. No image is built here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from agent.device import DeviceKind
from agent.registry import BUILTIN, FrameworkEntry
from manifests.catalog import Catalog

MATRIX = [(entry, device.value) for entry in BUILTIN for device in DeviceKind]


@pytest.fixture(scope="module")
def dockerfile(root: Path) -> str:
    return (root / "docker" / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose(root: Path) -> Any:
    return yaml.safe_load((root / "docker" / "compose.yaml").read_text(encoding="utf-8"))


def _requirements(path: Path) -> list[Requirement]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "--"))]


def _copied(dockerfile: str) -> list[str]:
    """What the Dockerfile copies from the checkout."""
    return [
        source
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]


@pytest.mark.parametrize(("entry", "device"), MATRIX, ids=lambda value: getattr(value, "name", value))
def test_every_framework_and_device_has_its_requirements(
    root: Path, entry: FrameworkEntry, device: str
) -> None:
    file = root / "docker" / "requirements" / f"{entry.name.lower()}-{device}.txt"
    constraints = {r.name: r for r in _requirements(root / "constraints.txt")}

    (framework, *_) = (r for r in _requirements(file) if r.name in entry.distributions)
    (pin,) = framework.specifier
    # the builds for a GPU have names of their own and the same versions
    assert constraints[entry.distributions[0]].specifier.contains(Version(pin.version).public)


def test_no_requirements_are_left_over(root: Path) -> None:
    files = {path.stem for path in (root / "docker" / "requirements").iterdir()}

    assert files == {f"{entry.name.lower()}-{device}" for entry, device in MATRIX}


def test_the_manifests_and_the_documentation_name_the_images_of_the_matrix(root: Path) -> None:
    images = {f"inferscope/{entry.name.lower()}:amd64-{device}" for entry, device in MATRIX}
    images |= {f"inferscope/{entry.name.lower()}:arm64-cpu" for entry in BUILTIN}
    readme = (root / "docker" / "README.md").read_text(encoding="utf-8")
    catalog = Catalog()
    named = {
        image
        for manifest in (*catalog.models, *catalog.frameworks)
        for devices in manifest.model_dump(mode="json")["container"].values()
        for image in devices.values()
    }

    assert named == images
    assert all(f"`{image}`" in readme for image in images)


def test_what_the_dockerfile_copies_is_there_and_reaches_the_builder(root: Path, dockerfile: str) -> None:
    ignore = (root / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    copied = [
        source.replace("${FRAMEWORK}", "mxnet").replace("${DEVICE}", "cpu") for source in _copied(dockerfile)
    ]

    assert {"agent", "client", "evaluators", "manifests", "protos", "constraints.txt"} <= set(copied)
    for source in copied:
        assert (root / source).exists(), source
        assert any(Path(source).is_relative_to(path) for path in let_in), f"{source} is ignored"


def test_the_image_runs_the_agent_as_an_ordinary_user(dockerfile: str) -> None:
    lines = dockerfile.splitlines()

    assert lines.index("USER agent") < lines.index('ENTRYPOINT ["agent"]')
    assert not [line for line in lines if line.startswith("USER") and line != "USER agent"]
    assert "git clone" not in dockerfile


def test_the_compose_file_serves_an_agent_beside_mongodb_and_jaeger(root: Path, compose: Any) -> None:
    services = compose["services"]

    assert set(services) == {"agent", "mongodb", "jaeger"}
    build = services["agent"]["build"]
    context = (root / "docker" / build["context"]).resolve()
    assert context == root
    assert (context / build["dockerfile"]).is_file()
    assert services["agent"]["command"][:3] == ["serve", "--host", "0.0.0.0"]
    assert {port.split(":")[-1] for port in services["jaeger"]["ports"]} == {"4317", "16686"}


def test_the_compose_file_opens_ports_on_the_local_address_only(compose: Any) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_compose_file_declares_its_volumes(compose: Any) -> None:
    used = {
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
    }

    assert used == set(compose["volumes"])
