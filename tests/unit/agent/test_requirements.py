"""What a manifest asks for and cannot have is refused when it is opened; files at URLs lie beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import manifest

from agent.artifacts import resolve_artifacts
from agent.registry import Registry
from agent.requirements import require_supported, unsupported, with_labels, with_local_files
from agent.session import SessionOptions, open_session
from manifests.errors import ArtifactError, InferscopeError, ManifestError
from manifests.schema import ModelManifest

URL = "http://models.example/a/b"
Change = Callable[[dict[str, Any]], object]


def model(folder: Path, change: Change = lambda _: None, **files: object) -> ModelManifest:
    """A small model for images of 3 × 8 × 8, as ``change`` makes it, that lies in ``folder``."""
    content: dict[str, Any] = {
        "name": "Old",
        "framework": {"name": "Fake"},
        "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
        "output": {"type": "feature", "parameters": {}},
        "model": {"graph_path": "graph", **files},
    }
    change(content)
    found = ModelManifest.model_validate(content)
    found._source = folder / "old.yml"
    return found


def refusal(of: Callable[[], object]) -> str:
    with pytest.raises(InferscopeError) as caught:
        of()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def image(**values: object) -> Change:
    return lambda content: content["inputs"][0]["parameters"].update(values)


def output(kind: str, **parameters: object) -> Change:
    return lambda content: content.update(output={"type": kind, "parameters": parameters})


UNSUPPORTED: list[tuple[Change, str]] = [
    (output("boundingbox", boxes_layer=2), "field output.type: found 'boundingbox'"),
    (output("semanticsegment", element_type="int64"), "field output.type: found 'semanticsegment'"),
    (output("instancesegment"), "field output.type: found 'instancesegment'"),
    (output("image"), "field output.type: found 'image'"),
    (output("classification", element_type="int64"), "field output.parameters.element_type: found 'int64'"),
    (lambda c: c.update(inputs=c["inputs"] * 2), "field inputs: found 2"),
    (image(max_dimension=300), "field inputs.0.parameters.max_dimension: found 300"),
    (image(layout="HWC"), "field inputs.0.parameters.dimensions: found [3, 8, 8]"),
    (image(input_layer=1), "field inputs.0.parameters.input_layer: found 1"),
    (lambda c: c["model"].update(is_archive=True), "field model.is_archive: is true"),
    *(
        (lambda c, hook=f"{when}{what}process": c.update({hook: "import os"}), f"field {when}{what}process: ")
        for when in ("", "before_", "after_")
        for what in ("pre", "post")
    ),
]


@pytest.mark.parametrize(("change", "said"), UNSUPPORTED, ids=[said for _, said in UNSUPPORTED])
def test_what_is_not_supported_is_said_when_the_model_is_opened(
    tmp_path: Path, change: Change, said: str
) -> None:
    old = model(tmp_path, change)  # listing it is no error
    message = refusal(lambda: open_session(old, SessionOptions(), Registry([])))
    assert message.startswith(f"{tmp_path / 'old.yml'}: model Old 1.0 cannot be opened: {said}")


def test_images_of_any_size_are_not_supported(tmp_path: Path) -> None:
    def any_size(content: dict[str, Any]) -> None:
        del content["inputs"][0]["parameters"]["dimensions"]
        content["output"]["type"] = "image"

    assert "field inputs.0.parameters.dimensions: is missing; images of any size are not supported" in (
        unsupported(model(tmp_path, any_size))
    )


def test_the_first_of_several_is_said_and_the_others_counted(tmp_path: Path) -> None:
    old = model(tmp_path, lambda c: c.update(preprocess="x", postprocess="y"))
    assert "field preprocess: " in refusal(lambda: require_supported(old))
    assert refusal(lambda: require_supported(old)).endswith("(and 1 more)")


@pytest.mark.parametrize(
    "change", [output("raw", element_type="int64"), image(input_layer=0), lambda _: None]
)
def test_what_is_supported_is_opened(tmp_path: Path, change: Change) -> None:
    old = model(tmp_path, change)
    assert require_supported(old) is old


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
    message = refusal(lambda: with_local_files(old))
    assert f"field model.graph_path: {address} is not downloaded" in message
    assert message.endswith(f"put it at {tmp_path / name}")
    (tmp_path / name).write_bytes(b"graph")
    found = resolve_artifacts(with_local_files(old))
    assert found.graph == tmp_path / name


def test_a_file_below_the_manifest_comes_before_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "net.json").write_bytes(b"below")
    (tmp_path / "net.json").write_bytes(b"beside")
    found = resolve_artifacts(with_local_files(model(tmp_path, graph_path="c/net.json", base_url=URL)))
    assert found.graph == tmp_path / "c" / "net.json"


def test_the_checksum_of_a_file_at_a_url_counts(tmp_path: Path) -> None:
    checksum = hashlib.md5(b"graph", usedforsecurity=False).hexdigest()
    old = model(tmp_path, graph_path=f"{URL}/net.json", graph_checksum=checksum)
    (tmp_path / "net.json").write_bytes(b"graph")
    assert resolve_artifacts(with_local_files(old)).graph == tmp_path / "net.json"
    (tmp_path / "net.json").write_bytes(b"grap")
    assert "changed or truncated" in refusal(lambda: resolve_artifacts(with_local_files(old)))


def test_weights_that_are_not_wanted_need_not_be_there(tmp_path: Path) -> None:
    old = model(tmp_path, graph_path=None, architecture="alexnet", weights_path=f"{URL}/w.pt")
    assert with_local_files(old, weights=False).model.architecture == "alexnet"
    with pytest.raises(ArtifactError, match=r"field model\.weights_path: .*/w\.pt is not downloaded"):
        with_local_files(old)


@pytest.mark.parametrize("address", ["http://models.example", "http://models.example/a/?b", "x://"])
def test_a_url_without_a_file_name_is_refused(tmp_path: Path, address: str) -> None:
    message = refusal(lambda: with_local_files(model(tmp_path, graph_path=address)))
    assert address in message


def labelled(folder: Path, **parameters: object) -> ModelManifest:
    values = {"features_url": f"{URL}/synset.txt", "labels": ["own"], **parameters}
    return model(folder, output("feature", **values))


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
    content = manifest().model_dump(mode="json")
    content["model"].update(graph_path=graph or "graph", base_url=base)
    content["output"]["parameters"]["features_url"] = labels
    with suppress(ValueError):  # pydantic refuses it, as the loader does
        old = ModelManifest.model_validate(content)
        old._source = Path("/nowhere/old.yml")
        with suppress(ArtifactError, ManifestError):
            resolve_artifacts(with_local_files(with_labels(require_supported(old))))
