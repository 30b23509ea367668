"""The list of models: a cached manifest is valid while its file is unchanged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferometer.agent.artifacts.locations import Availability, availability, cached_path
from inferometer.agent.inference import model_listing
from inferometer.agent.inference.model_listing import ListedModel, ModelListing, list_models
from inferometer.manifests import loader
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ConfigurationError, ManifestError
from inferometer.manifests.loader import load_manifest

URL = "http://host/net.onnx"


def content(name: str = "Mine", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "ONNXRuntime", "version": ">=1"},
        "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
        "output": {"type": "raw"},
        "model": {"graph_path": URL},
        **changes,
    }


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(content(**changes)))
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read as YAML."""
    names: list[str] = []

    def watched(path: Path) -> Any:
        names.append(path.name)
        return load_manifest(path)

    monkeypatch.setattr(loader, "load_manifest", watched)
    return names


def listed(directories: list[Path], cache: Path) -> ModelListing:
    """Lists a minute later, when what has been written is old enough to be remembered."""
    return list_models(directories, cache, lambda: time.time_ns() + 60 * 10**9)


def named(name: str, directory: Path, cache: Path) -> list[ListedModel]:
    return [model for model in listed([directory], cache).models if model.name == name]


def test_it_lists_what_the_catalogue_has_in_its_order(cache: Path) -> None:
    for _ in range(2):  # read, and then remembered
        listing = listed([], cache)

        models = Catalog().models
        found = [(m.name, m.version, m.framework, m.constraint) for m in listing.models if not m.hidden]
        assert found == [(m.name, m.version, m.framework.name, m.framework.version) for m in models]
        places = [model.availability(cache) for model in listing.models if not model.hidden]
        assert places == [availability(manifest, cache) for manifest in models]
        assert listing.problems == ()


def test_what_is_remembered_is_not_read_again(cache: Path, mine: Path, parsed: list[str]) -> None:
    write(mine / "mine.yml")
    first = listed([mine], cache)
    assert "mine.yml" in parsed
    parsed.clear()

    assert listed([mine], cache) == first
    assert parsed == []


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write(path, description="another"),
        lambda path: os.utime(path, ns=(5, 5)),
        lambda path: write(path.with_suffix(".new"), name="Mine").replace(path),
    ],
)
def test_a_file_that_changed_is_read_again(
    cache: Path, mine: Path, parsed: list[str], change: Callable[[Path], object]
) -> None:
    path = write(mine / "mine.yml")
    listed([mine], cache)
    parsed.clear()
    change(path)

    [model] = named("Mine", mine, cache)

    assert parsed == ["mine.yml"]
    assert model.description == ("another" if "another" in path.read_text() else "")


def test_a_file_that_changed_just_now_is_not_remembered(cache: Path, mine: Path, parsed: list[str]) -> None:
    write(mine / "mine.yml")
    for _ in range(2):  # another change might fall into the same step of the file system's clock
        parsed.clear()
        list_models([mine], cache, lambda: time.time_ns() + 10**9)
        assert "mine.yml" in parsed


def test_a_file_that_could_not_be_read_is_tried_again(
    cache: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine / "mine.yml")

    def refused(path: Path) -> Any:
        raise ManifestError(f"{path}: cannot be read: Permission denied") from PermissionError()

    with monkeypatch.context() as patched:
        patched.setattr(loader, "load_manifest", refused)
        problems = listed([mine], cache).problems
    assert problems[0] == f"{mine / 'mine.yml'}: cannot be read: Permission denied"

    assert listed([mine], cache).problems == ()
    assert named("Mine", mine, cache)


def test_what_is_remembered_holds_in_another_folder(
    cache: Path, mine: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine / "mine.yml", model={"graph_path": "net.onnx"})
    (mine / "net.onnx").touch()
    for folder, directory in ((mine.parent, "mine"), (mine, ".")):
        monkeypatch.chdir(folder)
        [model] = named("Mine", Path(directory), cache)
        assert model.availability(cache) is Availability.LOCAL
    assert parsed.count("mine.yml") == 1


def test_what_is_remembered_stays_while_other_directories_are_listed(
    cache: Path, mine: Path, parsed: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(mine / "mine.yml")
    write(other / "other.yml")
    both = [listed([directory], cache) for directory in (mine, other)]
    written = (cache / "models.json").stat().st_ino
    parsed.clear()

    assert [listed([directory], cache) for directory in (mine, other)] == both
    assert parsed == []
    assert (cache / "models.json").stat().st_ino == written


def test_files_that_come_and_go_are_seen_at_once(cache: Path, mine: Path) -> None:
    path = write(mine / "mine.yml")
    listed([mine], cache)
    write(mine / "more.yaml", name="More")
    assert named("More", mine, cache)
    path.unlink()

    assert named("Mine", mine, cache) == []
    assert named("More", mine, cache)


def test_what_is_wrong_is_said_each_time(cache: Path, mine: Path) -> None:
    write(mine / "bad.yml", model={})
    for _ in range(2):
        [problem] = listed([mine], cache).problems
        assert problem.startswith(f"{mine / 'bad.yml'}: field model: ")


def test_a_hidden_model_and_what_it_runs_in_are_told(cache: Path, mine: Path) -> None:
    write(mine / "mine.yml", hidden=True)

    [model] = named("Mine", mine, cache)

    assert model.hidden
    assert model.architecture is None
    assert model.problem == ""
    assert model.runs_in("1.2")
    assert not model.runs_in("0.9")
    assert not model.runs_in(None)


def test_the_earlier_directory_counts(cache: Path, mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(mine / "mine.yml", description="first")
    write(other / "mine.yml", description="second")

    models = listed([mine, other], cache).models

    assert [model.description for model in models if model.name == "Mine"] == ["first"]


def test_versions_that_mean_the_same_are_one(cache: Path, mine: Path) -> None:
    write(mine / "a.yml", version="1.0", description="first")
    write(mine / "b.yml", version="1", description="second")

    assert [model.description for model in named("Mine", mine, cache)] == ["first"]
    assert [m.description for m in Catalog([mine]).models if m.name == "Mine"] == ["first"]


def test_where_the_files_are_is_looked_up_each_time(cache: Path, mine: Path) -> None:
    write(mine / "mine.yml")
    [model] = named("Mine", mine, cache)
    assert model.availability(cache) is Availability.TO_DOWNLOAD

    place = cached_path(cache, URL)
    place.parent.mkdir(parents=True)
    place.touch()
    [model] = named("Mine", mine, cache)
    assert model.availability(cache) is Availability.CACHED

    (mine / "net.onnx").touch()
    assert model.availability(cache) is Availability.LOCAL


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"program": ["0"]}),
        lambda text: json.dumps(json.loads(text) | {"files": {"a": {}}}),
        lambda text: text.replace('"state"', '"stat"'),
        lambda text: text.replace('"name": "Mine"', '"naem": "Mine"'),
    ],
)
def test_what_is_remembered_wrongly_is_read_again(
    cache: Path, mine: Path, parsed: list[str], damage: Callable[[str], str]
) -> None:
    write(mine / "mine.yml")
    first = listed([mine], cache)
    index = cache / "models.json"
    index.write_text(damage(index.read_text()))
    parsed.clear()

    assert listed([mine], cache) == first
    assert "mine.yml" in parsed
    parsed.clear()
    assert listed([mine], cache) == first
    assert parsed == []


def test_without_a_place_to_remember_in_the_files_are_read_each_time(
    tmp_path: Path, mine: Path, parsed: list[str]
) -> None:
    (tmp_path / "file").touch()
    write(mine / "mine.yml")
    for _ in range(2):
        parsed.clear()
        assert named("Mine", mine, tmp_path / "file" / "cache")
        assert "mine.yml" in parsed


def test_a_directory_that_is_not_there_is_an_error(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"manifest directory .*nowhere does not exist"):
        listed([tmp_path / "nowhere"], cache)


def test_another_reading_of_manifests_forgets_all(
    cache: Path, mine: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine / "mine.yml")
    listed([mine], cache)
    parsed.clear()
    monkeypatch.setattr(model_listing, "__version__", "9.9")

    assert named("Mine", mine, cache)
    assert "mine.yml" in parsed
