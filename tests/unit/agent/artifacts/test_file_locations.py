"""Locations of a model's files: next to the manifest, elsewhere on this machine, or at a URL."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.artifacts.files import resolve_artifacts, with_labels
from inferometer.agent.artifacts.locations import Availability, availability, cached_path
from inferometer.manifests.errors import ArtifactError, InferometerError
from inferometer.manifests.schema import ModelManifest

URL = "http://models.example/a/b"


def model(folder: Path, output: dict[str, object] | None = None, **files: object) -> ModelManifest:
    """A small model for images of 3 × 8 × 8 that lies in ``folder``."""
    content: dict[str, Any] = {
        "name": "Old",
        "framework": {"name": "Fake"},
        "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
        "output": {"type": "feature", "parameters": output or {}},
        "model": {"graph_path": "graph", **files},
    }
    found = ModelManifest.model_validate(content)
    found._source = folder / "old.yml"
    return found


def refusal(of: Callable[[], object]) -> str:
    with pytest.raises(InferometerError) as caught:
        of()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("files", "address", "name"),
    [
        ({"graph_path": f"{URL}/net.json"}, f"{URL}/net.json", "net.json"),
        ({"graph_path": f"{URL}/my%20net.json?x=/y"}, f"{URL}/my%20net.json?x=/y", "my net.json"),
        ({"graph_path": "net.json", "base_url": URL}, f"{URL}/net.json", "net.json"),
        ({"graph_path": " c/net.json ", "base_url": f" {URL}/ "}, f"{URL}/c/net.json", "net.json"),
        (
            {"graph_path": f"{URL}/net.json", "base_url": "http://other.example"},
            f"{URL}/net.json",
            "net.json",
        ),
    ],
)
def test_a_file_at_a_url_is_taken_from_beside_the_manifest_and_else_said_where_to_put(
    tmp_path: Path, files: dict[str, object], address: str, name: str
) -> None:
    old = model(tmp_path, **files)
    message = refusal(lambda: resolve_artifacts(old))
    assert f"field model.graph_path: {address} is not downloaded" in message
    assert message.endswith(f"put it at {tmp_path / name}")
    (tmp_path / name).write_bytes(b"graph")
    found = resolve_artifacts(old)
    assert found.graph == tmp_path / name


def test_a_file_below_the_manifest_comes_before_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "net.json").write_bytes(b"below")
    (tmp_path / "net.json").write_bytes(b"beside")
    found = resolve_artifacts(model(tmp_path, graph_path="c/net.json", base_url=URL))
    assert found.graph == tmp_path / "c" / "net.json"


def test_the_checksum_of_a_file_at_a_url_counts(tmp_path: Path) -> None:
    checksum = hashlib.md5(b"graph", usedforsecurity=False).hexdigest()
    old = model(tmp_path, graph_path=f"{URL}/net.json", graph_checksum=checksum)
    (tmp_path / "net.json").write_bytes(b"graph")
    assert resolve_artifacts(old).graph == tmp_path / "net.json"
    (tmp_path / "net.json").write_bytes(b"grap")
    assert "changed or truncated" in refusal(lambda: resolve_artifacts(old))


def test_weights_that_are_not_wanted_need_not_be_there(tmp_path: Path) -> None:
    old = model(tmp_path, graph_path=None, architecture="alexnet", weights_path=f"{URL}/w.pt")
    assert resolve_artifacts(old, weights=False).weights is None
    with pytest.raises(ArtifactError, match=r"field model\.weights_path: .*/w\.pt is not downloaded"):
        resolve_artifacts(old)


@pytest.mark.parametrize("address", ["http://models.example", "http://models.example/a/?b", "x://"])
def test_a_url_without_a_file_name_is_refused(tmp_path: Path, address: str) -> None:
    message = refusal(lambda: resolve_artifacts(model(tmp_path, graph_path=address)))
    assert address in message


def labelled(folder: Path, **parameters: object) -> ModelManifest:
    values = {"features_url": f"{URL}/synset.txt", "labels": ["own"], **parameters}
    return model(folder, values)


def test_the_labels_of_a_file_beside_the_manifest_replace_its_own(tmp_path: Path) -> None:
    old = labelled(tmp_path)
    assert with_labels(old).output.parameters.labels == ("own",)
    (tmp_path / "synset.txt").write_text("n01 tench, Tinca\r\nn02 Füße \n\nn03 hen\n\n", encoding="utf-8")
    found = with_labels(old)
    assert found.output.parameters.labels == ("n01 tench, Tinca", "n02 Füße", "", "n03 hen")
    assert found.source == old.source


@pytest.mark.parametrize(
    ("content", "checksum", "said"),
    [
        (b"a\nb\n", "0" * 32, "changed or truncated"),
        (b"\xff\xfe\xff", "", "cannot be read"),
        (b"\n \n", "", "holds no labels"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path: Path, content: bytes, checksum: str, said: str) -> None:
    (tmp_path / "synset.txt").write_bytes(content)
    assert said in refusal(lambda: with_labels(labelled(tmp_path, features_checksum=checksum)))


ADDRESSES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["..", "http://[", "file:///etc/passwd", "a://b/%00", "http://h/..", "/", "~"]),
)


@given(ADDRESSES, ADDRESSES, ADDRESSES)
def test_any_address_is_opened_or_refused_by_an_error_of_the_tree(graph: str, base: str, labels: str) -> None:
    content = model(Path("/nowhere"), {"labels": ["first", "second"]}).model_dump(mode="json")
    content["model"].update(graph_path=graph or "graph", base_url=base)
    content["output"]["parameters"]["features_url"] = labels
    with suppress(ValueError):  # pydantic refuses it, as the loader does
        old = ModelManifest.model_validate(content)
        old._source = Path("/nowhere/old.yml")
        assert availability(old, Path("/nowhere")) in Availability
        with suppress(ArtifactError):
            resolve_artifacts(with_labels(old))


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"graph_path": None, "architecture": "resnet18"}, Availability.NONE_NEEDED),
        ({"graph_path": "here"}, Availability.LOCAL),
        ({"graph_path": f"{URL}/here"}, Availability.LOCAL),
        ({"graph_path": f"{URL}/cached"}, Availability.CACHED),
        ({"graph_path": "cached", "base_url": URL}, Availability.CACHED),
        ({"graph_path": f"{URL}/elsewhere"}, Availability.TO_DOWNLOAD),
        ({"graph_path": "nowhere"}, Availability.MISSING),
        ({"graph_path": "file:///nowhere"}, Availability.MISSING),
        ({"graph_path": "s3://bucket/key"}, Availability.MISSING),
        ({"graph_path": "http://models.example"}, Availability.MISSING),
        ({"graph_path": "here", "weights_path": f"{URL}/cached"}, Availability.CACHED),
        ({"graph_path": f"{URL}/cached", "weights_path": f"{URL}/elsewhere"}, Availability.TO_DOWNLOAD),
        ({"graph_path": f"{URL}/elsewhere", "weights_path": "nowhere"}, Availability.MISSING),
        ({"graph_path": "inner", "base_url": "here", "is_archive": True}, Availability.LOCAL),
        ({"graph_path": "inner", "base_url": f"{URL}/cached", "is_archive": True}, Availability.CACHED),
        ({"graph_path": "inner", "is_archive": True}, Availability.MISSING),
    ],
)
def test_listings_say_where_a_models_files_are(
    tmp_path: Path, files: dict[str, object], where: Availability
) -> None:
    (tmp_path / "here").touch()
    cached = cached_path(tmp_path / "cache", f"{URL}/cached")
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert availability(model(tmp_path, **files), tmp_path / "cache") is where


@given(
    st.one_of(
        st.text(),
        st.builds("http://{}/{}".format, st.text(), st.text()),
        st.sampled_from(
            ["http://../..", "http://./.", "http://h/%2e%2e", "http://h/a%2f..%2f..", "http://[/x"]
        ),
    )
)
def test_whatever_a_url_holds_its_place_is_in_the_cache(url: str) -> None:
    place = cached_path(Path("/cache"), url).relative_to("/cache/downloads")
    assert len(place.parts) == 3
    assert not {"..", "."} & set(place.parts)
    assert all(part.isprintable() and part.isascii() for part in place.parts)


def test_two_urls_have_two_places() -> None:
    urls = [
        f"{URL}/net.pt",
        f"{URL}/net.pt?version=2",
        f"{URL}/b/net.pt",
        "https://models.example/a/b/net.pt",
    ]
    assert len({cached_path(Path(), url) for url in urls}) == len(urls)
    assert {cached_path(Path(), url).name for url in urls} == {"net.pt"}
