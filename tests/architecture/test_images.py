"""Every framework and device has an image, built from files that exist. No image is built here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_lines import parsed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from inferometer.agent import __version__
from inferometer.agent.hardware.environment import DeviceKind
from inferometer.agent.inference.registry import BUILTIN, FrameworkEntry
from inferometer.agent.server.server import ServerOptions
from inferometer.manifests.catalog import Catalog
from tools.dockerfile import DockerfileError, Instruction, Stage, read_stages

MATRIX = [(entry, device.value) for entry in BUILTIN for device in (DeviceKind.CPU, DeviceKind.GPU)]
NAMES = [f"{entry.name.lower()}-{device}" for entry, device in MATRIX]
PACKAGES = {"inferometer", "agent", "client", "evaluators", "manifests", "protos"}
SECRET_NAMES = re.compile(r"SECRET|PASS|TOKEN|CREDENTIAL|_KEY", re.IGNORECASE)
PORT = str(ServerOptions().port)

# What MXNet's libraries ask of the system, and nothing else is installed by apt.
RUNTIME_LIBRARIES = {"libgomp1", "libquadmath0"}


@pytest.fixture(scope="module")
def stages_of(root: Path) -> Callable[[str], list[Stage]]:
    """Reads the Dockerfile of an image."""
    return lambda name: read_stages((root / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8"))


def _requirements(path: Path) -> list[Requirement]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "--"))]


def _steps(stage: Stage) -> list[str]:
    return [step for run in stage.all("RUN") for step in run.value.split(" && ")]


def _health_check(stage: Stage) -> Instruction:
    check = stage.last("HEALTHCHECK")
    return Instruction("CMD", check.value.removeprefix("CMD "), {}, check.line)


def test_every_framework_and_device_has_its_dockerfile_and_requirements_and_none_is_left_over(
    root: Path,
) -> None:
    docker = root / "docker"

    assert sorted(path.name for path in docker.glob("*ockerfile*")) == sorted(
        f"{n}.Dockerfile" for n in NAMES
    )
    assert sorted(path.name for path in (docker / "requirements").iterdir()) == sorted(
        f"{n}.txt" for n in NAMES
    )


@pytest.mark.parametrize(("entry", "device"), MATRIX, ids=lambda value: getattr(value, "name", value))
def test_the_framework_of_an_image_has_the_version_of_the_constraints(
    root: Path, entry: FrameworkEntry, device: str
) -> None:
    file = root / "docker" / "requirements" / f"{entry.name.lower()}-{device}.txt"
    constraints = {r.name: r for r in _requirements(root / "constraints.txt")}

    (framework, *_) = (r for r in _requirements(file) if r.name in entry.distributions)
    (pin,) = framework.specifier
    # the builds for a GPU have names of their own and the same versions
    assert constraints[entry.distributions[0]].specifier.contains(Version(pin.version).public)


@pytest.mark.parametrize("name", NAMES)
def test_all_requirements_of_an_image_are_pinned(root: Path, name: str) -> None:
    for requirement in _requirements(root / "docker" / "requirements" / f"{name}.txt"):
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement


def test_the_manifests_and_the_documentation_name_the_images_of_the_matrix(root: Path) -> None:
    images = {f"inferometer/{entry.name.lower()}:amd64-{device}" for entry, device in MATRIX}
    images |= {f"inferometer/{entry.name.lower()}:arm64-cpu" for entry in BUILTIN}
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


def test_all_images_have_the_same_base_with_the_python_of_the_pins(
    stages_of: Callable[[str], list[Stage]],
) -> None:
    bases = {
        stage.base
        for name in NAMES
        for stage in stages_of(name)
        if stage.base not in ("framework", "program")
    }

    (base,) = bases
    # constraints.txt pins what is installed on Python 3.11
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_is_there_and_reaches_the_builder(
    root: Path, stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    ignore = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    known: set[str] = set()
    copied: list[str] = []
    for stage in stages_of(name):
        for copy in stage.all("COPY"):
            if source := copy.flags.get("from"):
                assert source in known, f"line {copy.line}: no stage {source} before"
            else:
                copied += copy.words[:-1]
        known.add(stage.name)

    assert ignore[1] == "*"
    assert {*PACKAGES, "constraints.txt", f"docker/requirements/{name}.txt"} <= set(copied)
    for source in copied:
        assert (root / source).exists(), source
        assert any(Path(source).is_relative_to(path) for path in let_in), f"{source} is ignored"


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_installed_with_the_pins_and_leaves_no_cache(
    root: Path, stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    pins = {canonicalize_name(requirement.name) for requirement in _requirements(root / "constraints.txt")}
    steps = [step for stage in stages_of(name) for step in _steps(stage)]
    installs = [step for step in steps if re.search(r"\bpip (--python \S+ )?install\b", step)]

    assert len(installs) == 3
    for step in installs:
        assert "--no-cache-dir --constraint constraints.txt" in step
        by_name = step.partition("constraints.txt")[2].split()
        if not by_name[0].startswith("--"):
            assert set(by_name) <= pins, step
    assert any(step.endswith("pip --python /opt/inferometer/bin/python check") for step in steps)
    extras = "[http,coco,text]"  # agents are served over HTTP, too, and every shipped model runs
    assert any(f'"$(echo dist/*.whl){extras}"' in step for step in steps)


@pytest.mark.parametrize("name", NAMES)
def test_the_image_holds_what_was_installed_and_none_of_the_tools(
    stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    *_, last = stages_of(name)
    copies = [(copy.flags.get("from"), *copy.words) for copy in last.all("COPY")]
    apt = [step.split() for step in _steps(last) if step.startswith("apt-get install")]

    assert copies == [
        ("framework", "/opt/inferometer", "/opt/inferometer"),
        ("program", "/program", "/opt/inferometer"),
    ]
    assert {word for step in apt for word in step[2:] if not word.startswith("--")} <= RUNTIME_LIBRARIES
    assert all("--no-install-recommends" in step for step in apt)
    assert any("rm -rf /var/lib/apt/lists/*" in step for step in _steps(last)) == bool(apt)
    assert any(step.startswith("pip uninstall") and "pip" in step.split()[2:] for step in _steps(last))


@pytest.mark.parametrize("name", NAMES)
def test_the_image_runs_as_an_ordinary_user_who_may_write_its_volume(
    stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    *_, last = stages_of(name)
    (user,) = last.all("USER")
    uid = user.value.partition(":")[0]

    assert uid.isdecimal()
    assert int(uid) >= 1000
    assert any(f"--uid {uid} agent" in step for step in _steps(last))
    assert "install --directory --owner=agent --group=agent /data" in _steps(last)
    assert last.last("VOLUME").words == ["/data"]
    assert last.merged("ENV")["AGENT_DATA_DIR"] == "/data"
    assert Path(last.merged("ENV")["AGENT_CACHE_DIR"]).is_relative_to("/data")
    assert all(run.line < user.line for run in last.all("RUN")), "what is installed belongs to root"


@pytest.mark.parametrize("name", NAMES)
def test_the_commands_of_the_image_are_the_programs_and_at_its_port(
    stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    *_, last = stages_of(name)
    check = _health_check(last)
    served = parsed(last.last("CMD").words)
    asked = parsed(check.words[1:])

    assert last.last("ENTRYPOINT").words == ["agent"]
    assert check.words[0] == "agent"
    assert served.info_name == "agent serve"
    assert last.last("EXPOSE").value == PORT == str(served.params["port"])
    assert asked.info_name == "agent status"
    assert asked.params["address"] == f"127.0.0.1:{PORT}"


@pytest.mark.parametrize("name", NAMES)
def test_no_image_holds_a_secret(stages_of: Callable[[str], list[Stage]], name: str) -> None:
    for stage in stages_of(name):
        for keyword in ("ENV", "ARG", "LABEL"):
            assert not [key for key in stage.merged(keyword) if SECRET_NAMES.search(key)]


@pytest.mark.parametrize("name", NAMES)
def test_an_image_says_what_it_is(stages_of: Callable[[str], list[Stage]], name: str) -> None:
    labels = {
        key.removeprefix("org.opencontainers.image."): value
        for key, value in stages_of(name)[-1].merged("LABEL").items()
    }

    assert labels["title"] == f"inferometer/{name.partition('-')[0]}"
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["revision"] == "$REVISION"


@pytest.mark.parametrize("name", NAMES)
def test_an_image_for_a_gpu_asks_the_container_toolkit_for_it(
    stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    environment = stages_of(name)[-1].merged("ENV")

    wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    found = {key: value for key, value in environment.items() if key.startswith("NVIDIA")}
    assert found == (wanted if name.endswith("-gpu") else {})


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_dockerfiles_differ_only_where_frameworks_and_devices_do(
    stages_of: Callable[[str], list[Stage]], name: str
) -> None:
    def common(image: str) -> list[tuple[str, str]]:
        return [
            (instruction.keyword, re.sub(r" NVIDIA_\w+=\S+", "", instruction.value.replace(image, "IMAGE")))
            for stage in stages_of(image)
            for instruction in stage.instructions
            if instruction.keyword != "LABEL" and not re.search(r"apt-get|ldconfig", instruction.value)
        ]

    assert common(name) == common(NAMES[0])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("RUN true\n", "before the first FROM"),
        ("# nothing\n", "no FROM"),
        ("FROM a\nADD http://host/x /\n", "ADD is not supported"),
        ("FROM a\nRUN one \\\n", "continues after the end"),
    ],
)
def test_a_dockerfile_that_is_not_understood_is_refused(text: str, part: str) -> None:
    with pytest.raises(DockerfileError, match=part):
        read_stages(text)


def test_a_dockerfile_is_read_with_its_comments_continued_lines_and_arguments() -> None:
    text = "ARG BASE=python:3\nFROM ${BASE} AS one\nRUN a \\\n # no\n && b\nFROM one\nCOPY --from=one /x /y\n"
    one, two = read_stages(text)

    assert (one.base, one.name, two.base, two.name) == ("python:3", "one", "one", "")
    assert [(run.value, run.line) for run in one.all("RUN")] == [("a && b", 3)]
    assert two.last("COPY").flags == {"from": "one"}
