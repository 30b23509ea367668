"""Loading a manifest's file: only safe and unambiguous YAML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manifest_content import MODEL, model, write

from inferometer.manifests.errors import ManifestError
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest

GOOD = yaml.safe_dump(MODEL, sort_keys=False)


def refusal(path: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    assert len(message) - len(str(path)) < 400
    return message


def test_a_manifest_is_read_and_knows_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, "tiny.yml", MODEL)
    found = load_manifest(path)
    assert isinstance(found, ModelManifest)
    assert found.name == "Tiny"
    assert found.source == path


def test_text_is_utf8(tmp_path: Path) -> None:
    found = load_manifest(write(tmp_path, "tiny.yml", model(description="Füße, 手書き")))
    assert isinstance(found, ModelManifest)
    assert found.description == "Füße, 手書き"


@pytest.mark.parametrize("version", ["1.10", "1.0", "2", "1_0.5", "0x10", "1e3"])
def test_a_version_without_quotes_is_the_text_that_was_written(tmp_path: Path, version: str) -> None:
    path = write(tmp_path, "tiny.yml", GOOD.replace("version: '1.0'", f"version: {version}"))
    if version in {"1.10", "1.0", "2"}:
        found = load_manifest(path)
        assert isinstance(found, ModelManifest)
        assert found.version == version
    else:
        assert f"field version: found '{version}'" in refusal(path)


def test_a_constraint_without_quotes_is_the_text_that_was_written(tmp_path: Path) -> None:
    found = load_manifest(write(tmp_path, "tiny.yml", GOOD.replace("'>=1.9, <2'", "1.10")))
    assert isinstance(found, ModelManifest)
    assert found.runs_in("1.10.3")
    assert not found.runs_in("1.1.0")


def test_a_field_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "tiny.yml", GOOD + "name: Other\n"))
    assert "found the field name twice" in message
    assert "line " in message


def test_a_field_may_have_the_name_of_one_in_another_part(tmp_path: Path) -> None:
    load_manifest(write(tmp_path, "tiny.yml", model(attributes={"name": "a", "version": "b"})))


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]\n",
        "attributes: &x {<<: *x}\n",
        "a: &a [x,x,x,x,x,x,x,x]\n"
        + "".join(
            f"{c}: &{c} [{','.join([f'*{p}'] * 8)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
        )
        + "name: *i\n",
    ],
    ids=["recursive", "merge", "billion laughs"],
)
def test_aliases_that_could_fill_the_memory_are_refused(tmp_path: Path, text: str) -> None:
    assert "found the alias *" in refusal(write(tmp_path, "tiny.yml", text))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:os.system ['touch {marker}']",
        "name: !!python/name:os.system",
        '!!python/object/apply:builtins.eval [\'open("{marker}", "w")\']',
    ],
)
def test_python_objects_are_neither_built_nor_called(tmp_path: Path, text: str) -> None:
    marker = tmp_path / "marker"
    assert "could not determine a constructor" in refusal(
        write(tmp_path, "tiny.yml", text.replace("{marker}", str(marker)))
    )
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: b: c",
        "a: [1",
        "{",
        "- a\nb: c",
        "\ttab: a",
        "a: 'open",
        "a\n---\nb",
        "a: \x00",
        "%YAML 9.9\n---\na",
        "? [a]\n: b",
        "a: =",
        "a: !!float ''",
        "a: !!int ''",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: 2020-13-45",
        "a: !!binary x",
        "a: " + ":".join(["1"] * 400) + ".5",
        "[" * 3000,
        "{a: " * 3000,
        "a: !unknown b",
    ],
)
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    assert "cannot be read as YAML" in refusal(write(tmp_path, "tiny.yml", text))


@pytest.mark.parametrize(
    ("text", "shown"), [("", "None"), ("# nothing", "None"), ("- a", "['a']"), ("a", "'a'")]
)
def test_yaml_that_is_no_mapping_is_refused(tmp_path: Path, text: str, shown: str) -> None:
    assert f"holds {shown}; allowed: a mapping" in refusal(write(tmp_path, "tiny.yml", text))


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yml"
    path.write_bytes("name: Füße".encode("latin-1"))
    assert "utf-8" in refusal(path)


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yml"
    path.write_bytes(bytes(range(256)) * 4)
    refusal(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.yml")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yml").mkdir()
    assert "is not a file" in refusal(tmp_path / "folder.yml")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yml")
    assert "is not a file" in refusal(tmp_path / "pipe.yml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "tiny.yml", MODEL)
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "larger than" in refusal(path)


def test_a_bad_field_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "tiny.yml", model(licence="MIT")))
    assert message.endswith('tiny.yml: field licence: is not known; did you mean "license"?')


yaml_text = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="ab01:.-_[]{}&*!?|>%@'\"\\#,\n <=~", max_size=40),
    st.lists(
        st.sampled_from(
            [
                *GOOD.splitlines(keepends=True),
                "!!",
                "int",
                "float ",
                "? ",
                "- ",
                ": ",
                "&a ",
                "*a",
                "<<: ",
                "'",
                "\n",
            ]
        ),
        max_size=30,
    ).map("".join),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(yaml_text)
def test_any_text_is_read_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiny.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        answer = load_manifest(path).source
    except ManifestError as error:
        answer = error
    assert len(str(answer).splitlines()) == 1
    assert str(answer).startswith(str(path))
