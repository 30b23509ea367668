"""Architectures by name: built-in, from packages and from a user's files; lookup executes nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from inferometer.agent.architectures import sources
from inferometer.agent.architectures.sources import (
    ARCHITECTURES,
    BUILTIN_ARCHITECTURES,
    Architectures,
    BuiltinArchitecture,
)
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, ConfigurationError

MINE = 'class Mine:\n    implements = "mine"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of a user's, with one architecture for PyTorch."""
    write(tmp_path, "pytorch/mine.py", MINE)
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(name: str, framework: str, *directories: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        Architectures(directories).find(name, framework)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["os", "torch", "..", "inferometer.agent.architectures", "", "resnet51"])
@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_a_name_that_is_no_architecture_is_refused(name: str, framework: str) -> None:
    assert f'unknown {framework} architecture "{name}"; ' in refusal(name, framework)


def test_the_nearest_names_are_told() -> None:
    assert 'did you mean "resnet50"' in refusal("resnet_50", "MXNet")


def test_case_does_not_matter() -> None:
    found = BUILTIN_ARCHITECTURES.find(" RESNET50 ", "PyTorch")
    assert found is not None
    assert (found.name, found.checksum, found.versions) == ("resnet50", None, {})


def test_one_that_a_framework_does_not_have_is_refused_there_only(monkeypatch: pytest.MonkeyPatch) -> None:
    only = BuiltinArchitecture("only_here", (5,), 2, "feed_forward:OnlyHere", frameworks=("PyTorch",))
    monkeypatch.setitem(vars(sources)["ARCHITECTURES"], "only_here", only)
    for framework in ("PyTorch", "ONNXRuntime"):  # which gets PyTorch's by export
        assert BUILTIN_ARCHITECTURES.find("only_here", framework) is not None
    assert "unknown MXNet architecture" in refusal("only_here", "MXNet")


def test_the_sources_import_no_framework_and_no_package() -> None:
    code = (
        "import sys; from inferometer.agent.architectures.sources import BUILTIN_ARCHITECTURES as a; "
        "[a.find(f'{p}:x', 'PyTorch') for p in ('torchvision', 'timm')]; a.find('gluon:x', 'MXNet');"
        "sys.exit(str({'torch', 'mxnet', 'torchvision', 'timm'} & set(sys.modules) or '') or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The average pooling of alexnet_owt takes what is left of 224 pixels, too, as its published weights have it.
OTHER_SHAPES = {"alexnet_owt": (3, 224, 224)}


def test_every_built_in_manifest_names_an_architecture_that_takes_its_input() -> None:
    models = [(model, (model.model.architecture or "").casefold()) for model in Catalog().models]
    assert len([name for _, name in models if name in ARCHITECTURES]) > 30
    for model, name in models:
        if name:
            assert BUILTIN_ARCHITECTURES.find(name, model.framework.name) is not None
        if name in ARCHITECTURES:
            shape = ARCHITECTURES[name].input_shape
            assert model.inputs[0].parameters.dimensions in (shape, OTHER_SHAPES.get(name))
    assert set(ARCHITECTURES) <= {name for _, name in models}


@pytest.mark.parametrize(
    ("name", "framework", "parts"),
    [
        ("torchvison:resnet18", "PyTorch", ['unknown source "torchvison"', 'did you mean "torchvision"']),
        ("torchvision:resnet18", "MXNet", ["is built with PyTorch", "runs in MXNet", "gluon:NAME"]),
        ("gluon:resnet18_v1", "ONNXRuntime", ["is built with MXNet", "torchvision:NAME or timm:NAME"]),
        (":resnet18", "MXNet", ['unknown source ""', "gluon"]),
    ],
)
def test_a_source_of_another_name_or_framework_is_refused(
    name: str, framework: str, parts: list[str]
) -> None:
    message = refusal(name, framework)
    assert message.startswith(f'architecture "{name}": ')
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", ["mine", "MINE", " Mine "])
def test_a_file_of_the_users_is_found_with_its_checksum_and_not_run(folder: Path, name: str) -> None:
    text = f"{MINE}raise RuntimeError('was run')\n"
    write(folder, "pytorch/mine.py", text)
    found = Architectures([folder]).find(name, "PyTorch")
    assert found is not None
    assert found.checksum == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    with pytest.raises(ArtifactError, match="was run"):
        found.build(initialize=True)


def test_nothing_but_the_file_that_is_built_is_run(folder: Path) -> None:
    for name in ("pytorch/other.py", "pytorch/__init__.py", "mxnet/mine.py", "setup.py", "conftest.py"):
        write(folder, name, "raise RuntimeError('was run')\n")
    before = set(folder.rglob("*"))
    found = Architectures([folder]).find("mine", "ONNXRuntime")
    assert found is not None
    assert type(found.build(initialize=True)).__name__ == "Mine"
    assert set(folder.rglob("*")) == before, "no bytecode is left"
    assert not any(str(folder) in entry for entry in sys.path)


def test_a_file_is_of_one_framework(folder: Path) -> None:
    message = refusal("mine", "MXNet", folder)
    assert 'unknown MXNet architecture "mine"' in message
    assert str(folder / "mxnet") in message
    assert 'did you mean "mine"' in refusal("mine2", "PyTorch", folder)


def test_the_file_in_the_earlier_directory_counts(folder: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    write(later, "pytorch/mine.py", MINE.replace("Mine", "Later"))
    for directories, expected in (((folder, later), "Mine"), ((later, folder), "Later")):
        found = Architectures(directories).find("mine", "PyTorch")
        assert found is not None
        assert type(found.build(initialize=True)).__name__ == expected


def test_two_files_that_differ_by_case_are_refused(folder: Path) -> None:
    write(folder, "pytorch/Mine.py", MINE)
    message = refusal("mine", "PyTorch", folder)
    assert str(folder / "pytorch" / "Mine.py") in message
    assert str(folder / "pytorch" / "mine.py") in message


@pytest.mark.parametrize("name", ["resnet50", "ResNet50"])
@pytest.mark.parametrize("framework", ["pytorch", "mxnet"])
def test_a_file_cannot_take_a_name_of_the_programs(tmp_path: Path, name: str, framework: str) -> None:
    path = write(tmp_path, f"{framework}/{name}.py", MINE)
    message = refusal("resnet50", {"pytorch": "ONNXRuntime", "mxnet": "MXNet"}[framework], tmp_path)
    assert message.startswith(f"{path}: ")
    assert 'its own architecture "resnet50"' in message


@pytest.mark.parametrize(
    "name", ["../pytorch/mine", "pytorch/mine", "/etc/passwd", "sub/mine", "..\\pytorch\\mine"]
)
def test_a_path_is_no_name(folder: Path, name: str) -> None:
    write(folder, "pytorch/sub/mine.py", MINE)
    assert "is a path, not a name" in refusal(name, "PyTorch", folder)


def test_a_framework_of_a_plug_in_takes_files_and_leaves_other_names_to_its_predictor(folder: Path) -> None:
    write(folder, "fake/mine.py", MINE)
    architectures = Architectures([folder])
    assert architectures.find("echo", "Fake") is None
    found = architectures.find("mine", "Fake")
    assert found is not None
    assert type(found.build(initialize=True)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "problem"), [("absent", "does not exist"), ("mine.py", "is not a directory")]
)
def test_a_directory_has_to_be_there(folder: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"architecture directory .*{name} {problem}"):
        Architectures([folder, folder / "pytorch" / name])
