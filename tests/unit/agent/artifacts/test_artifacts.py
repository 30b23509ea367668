"""A model's files: found next to their manifest, and verified by their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.artifacts.downloads import CheckedFile, digest, digests
from inferometer.agent.artifacts.files import Artifacts, get_file, resolve_artifacts
from inferometer.agent.artifacts.locations import refer
from inferometer.manifests.errors import ArtifactError
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import Manifest

GRAPH = b"the graph"
WEIGHTS = b"the weights"
SHA256 = "sha256:" + hashlib.sha256(GRAPH).hexdigest()
MD5 = hashlib.md5(WEIGHTS).hexdigest()


def manifest_in(folder: Path, **model: str) -> Manifest:
    return parse_manifest(
        {
            "name": "Net",
            "framework": {"name": "MXNet"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
            "output": {"type": "raw"},
            "model": model,
        },
        folder / "net.yml",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.json").write_bytes(GRAPH)
    (tmp_path / "net.params").write_bytes(WEIGHTS)
    return tmp_path


def test_finds_the_files_beside_the_manifest_and_records_their_checksums(folder):
    manifest = manifest_in(
        folder, graph_path="net.json", graph_checksum=SHA256, weights_path="net.params", weights_checksum=MD5
    )
    assert resolve_artifacts(manifest) == Artifacts(
        graph=folder / "net.json",
        weights=folder / "net.params",
        checksums={"graph": SHA256, "weights": "sha256:" + hashlib.sha256(WEIGHTS).hexdigest()},
    )


def test_a_file_that_the_manifest_does_not_name_is_none(folder):
    artifacts = resolve_artifacts(manifest_in(folder, architecture="Net", weights_path="net.params"))
    assert artifacts.graph is None
    assert set(artifacts.checksums) == {"weights"}


@pytest.mark.parametrize(
    "checksum",
    [
        "",
        hashlib.md5(GRAPH).hexdigest(),
        SHA256,
        "sha256:" + SHA256[7:15],
        "sha1:" + hashlib.sha1(GRAPH).hexdigest(),
    ],
)
def test_a_checksum_has_an_algorithm_and_may_be_the_first_digits(folder, checksum):
    found = get_file(refer(manifest_in(folder, graph_path="x"), "path", "net.json", checksum))
    assert found == CheckedFile(folder / "net.json", SHA256[7:])
    assert found.checksum == SHA256


@pytest.mark.parametrize("checksum", [SHA256, "sha256:" + SHA256[7:].upper()])
def test_a_checksum_may_be_written_in_capitals(folder, checksum):
    file = refer(manifest_in(folder, graph_path="x"), "path", "net.json", checksum)
    assert get_file(file).path == folder / "net.json"


@pytest.mark.parametrize(
    "checksum",
    [SHA256, SHA256[:15], hashlib.md5(GRAPH).hexdigest(), "sha1:" + hashlib.sha1(GRAPH).hexdigest()],
)
@pytest.mark.parametrize("content", [GRAPH[:-1], GRAPH + b"!", b"", b"another"])
def test_a_changed_file_is_an_error_that_says_both_checksums(folder, checksum, content):
    (folder / "net.json").write_bytes(content)
    with pytest.raises(ArtifactError, match="changed or truncated") as caught:
        resolve_artifacts(manifest_in(folder, graph_path="net.json", graph_checksum=checksum))
    message = str(caught.value)
    assert "\n" not in message
    assert checksum.rpartition(":")[2] in message
    assert str(folder / "net.json") in message
    assert str(folder / "net.yml") in message


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_missing_file_is_an_error_that_names_it(folder, path):
    with pytest.raises(ArtifactError, match=r"net\.yml: the file .* is missing"):
        resolve_artifacts(manifest_in(folder, graph_path=path))


def test_a_file_that_cannot_be_read_is_an_error(folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(ArtifactError, match="is missing"):
        resolve_artifacts(manifest_in(folder, graph_path="pipe"))
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        digest(folder)


def test_an_absolute_path_is_taken_as_it_is(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    manifest = manifest_in(elsewhere, graph_path=str(folder / "net.json"), graph_checksum=SHA256)
    assert resolve_artifacts(manifest).graph == folder / "net.json"


@given(content=st.binary(max_size=300))
def test_the_digest_is_that_of_the_whole_content(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "digested"
    path.write_bytes(content)
    assert digest(path) == hashlib.sha256(content).hexdigest()
    assert digests(path, MD5)["md5"] == hashlib.md5(content).hexdigest()


def test_the_digest_of_a_file_larger_than_a_chunk(tmp_path):
    content = os.urandom(1024 * 1024 + 17)
    (tmp_path / "large").write_bytes(content)
    assert digest(tmp_path / "large") == hashlib.sha256(content).hexdigest()
