"""The catalogue: lookup by name, version and installed frameworks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from manifest_content import DATASET, model, write

from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import (
    ConfigurationError,
    FrameworkUnavailableError,
    NotFoundError,
    UnknownDatasetError,
    UnknownModelError,
)
from inferometer.manifests.files import BUILTIN
from inferometer.manifests.schema import ModelManifest

INSTALLED = {"PyTorch": "2.13.0+cpu", "MXNet": "1.9.1", "ONNXRuntime": "1.20.0"}


def add(folder: Path, name: str, version: str = "1.0", framework: str = "MXNet", needs: str = "*") -> Path:
    return write(
        folder,
        f"{name}-{version}-{framework}-{len(list(folder.rglob('*')))}.yml",
        model(name=name, version=version, framework={"name": framework, "version": needs}),
    )


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_programs_own_manifests_are_always_there() -> None:
    catalog = Catalog()
    assert catalog.find_model("DigitsCNN", None, INSTALLED).framework.name == "PyTorch"
    assert catalog.find_dataset("digits_validation").source is not None
    assert catalog.problems == ()


@pytest.mark.parametrize("name", ["Tiny", "tiny", "TINY", " tInY "])
def test_names_compare_without_case(tmp_path: Path, name: str) -> None:
    add(tmp_path, "Tiny", framework="mxnet")
    assert Catalog([tmp_path]).find_model(name, None, {"MXNET": "1.9.1"}).name == "Tiny"


def test_the_highest_version_wins_by_number_and_not_by_letter(tmp_path: Path) -> None:
    for version in ("1.9", "1.10", "1.2", "1.10rc1"):
        add(tmp_path, "Tiny", version)
    assert Catalog([tmp_path]).find_model("Tiny", None, INSTALLED).version == "1.10"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("1.9", "1.9.2"),
        ("<1.10", "1.9.2"),
        ("^1", "1.10"),
        ("1.9.0", "1.9.0"),
        (">=1 || 3", "2.0"),
        ("*", "2.0"),
    ],
)
def test_the_highest_version_that_meets_the_constraint_wins(tmp_path: Path, asked: str, found: str) -> None:
    for version in ("1.9.2", "1.10", "1.9.0", "2.0"):
        add(tmp_path, "Tiny", version)
        write(tmp_path, f"data-{version}.yml", {**DATASET, "version": version})
    catalog = Catalog([tmp_path])
    assert catalog.find_model("Tiny", asked, INSTALLED).version == found
    assert catalog.find_dataset("pets", asked).version == found


def test_models_are_listed_by_name_and_the_highest_version_first(tmp_path: Path) -> None:
    for version in ("1.0", "1.0.1", "2.0rc1", "1.10", "2.0", "1.9"):
        add(tmp_path, "Tiny", version)
    add(tmp_path, "another")
    add(tmp_path, "Tiny", "1.9", framework="Alpha")
    listed = [(m.name, m.version, m.framework.name) for m in Catalog([tmp_path]).models]
    assert [entry for entry in listed if entry[0] in {"another", "Tiny"}] == [
        ("another", "1.0", "MXNet"),
        ("Tiny", "2.0", "MXNet"),
        ("Tiny", "2.0rc1", "MXNet"),
        ("Tiny", "1.10", "MXNet"),
        ("Tiny", "1.9", "Alpha"),
        ("Tiny", "1.9", "MXNet"),
        ("Tiny", "1.0.1", "MXNet"),
        ("Tiny", "1.0", "MXNet"),
    ]


def test_a_version_that_no_installed_framework_runs_is_passed_over(tmp_path: Path) -> None:
    add(tmp_path, "Tiny", "2.0", needs=">=2")
    add(tmp_path, "Tiny", "1.0", needs=">=1")
    assert Catalog([tmp_path]).find_model("Tiny", None, INSTALLED).version == "1.0"


def test_of_the_frameworks_that_run_the_highest_version_the_first_is_taken(tmp_path: Path) -> None:
    for framework in ("MXNet", "ONNXRuntime", "PyTorch"):
        add(tmp_path, "Tiny", "1.0", framework)
    add(tmp_path, "Tiny", "0.9", "PyTorch")
    catalog = Catalog([tmp_path])

    def chosen(order: list[str]) -> str:
        return catalog.find_model("tiny", None, {name: INSTALLED[name] for name in order}).framework.name

    assert chosen(["PyTorch", "MXNet", "ONNXRuntime"]) == "PyTorch"
    assert chosen(["ONNXRuntime", "MXNet", "PyTorch"]) == "ONNXRuntime"
    assert chosen(["MXNet"]) == "MXNet"


def test_a_higher_version_comes_before_a_preferred_framework(tmp_path: Path) -> None:
    add(tmp_path, "Tiny", "1.0", "PyTorch")
    add(tmp_path, "Tiny", "2.0", "MXNet")
    assert Catalog([tmp_path]).find_model("Tiny", None, INSTALLED).framework.name == "MXNet"


def test_a_framework_that_is_not_installed_is_passed_over(tmp_path: Path) -> None:
    add(tmp_path, "Tiny", "2.0", "PyTorch")
    add(tmp_path, "Tiny", "1.0", "MXNet")
    found = Catalog([tmp_path]).find_model("Tiny", None, {"PyTorch": None, "MXNet": "1.9.1"})
    assert (found.version, found.framework.name) == ("1.0", "MXNet")


def test_without_a_framework_to_run_it_the_error_names_what_is_needed_and_what_is_there(
    tmp_path: Path,
) -> None:
    add(tmp_path, "Tiny", "1.0", "PyTorch", ">=3")
    add(tmp_path, "Tiny", "1.0", "MXNet", "1.9")
    with pytest.raises(FrameworkUnavailableError) as caught:
        Catalog([tmp_path]).find_model("tiny", None, {"PyTorch": "2.13.0+cpu", "MXNet": None})
    message = one_line(caught)
    assert 'model "Tiny" needs MXNet 1.9 or PyTorch >=3' in message
    assert "installed: PyTorch 2.13.0+cpu, MXNet (not installed)" in message


def test_a_model_of_another_framework_names_the_one_that_it_has(tmp_path: Path) -> None:
    add(tmp_path, "Tiny", framework="MXNet")
    with pytest.raises(UnknownModelError) as caught:
        Catalog([tmp_path]).find_model("Tiny", None, {"PyTorch": "2.13.0"})
    assert one_line(caught) == 'model "Tiny" has no manifest for PyTorch; it has one for: MXNet'


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UnknownModelError) as caught:
        Catalog().find_model("DigitCNN", None, INSTALLED)
    assert one_line(caught).startswith('unknown model "DigitCNN"; did you mean "DigitsCNN" or ')
    with pytest.raises(UnknownDatasetError) as caught_dataset:
        Catalog().find_dataset("digits-validation")
    assert one_line(caught_dataset) == (
        'unknown dataset "digits-validation"; did you mean "digits_validation" or '
        '"digits_detection" or "statements_validation"?'
    )


def test_a_name_that_is_near_to_none_lists_the_first_and_counts_them_all(tmp_path: Path) -> None:
    add(tmp_path, "Aaa")
    with pytest.raises(UnknownModelError) as caught:
        Catalog([tmp_path]).find_model("qqqqqqqq", None, INSTALLED)
    count = len({model.name for model in Catalog([tmp_path]).models})
    assert re.fullmatch(rf'unknown model "qqqqqqqq"; known: Aaa, .*, … \({count} in all\)', one_line(caught))


def test_an_unknown_version_lists_those_that_there_are(tmp_path: Path) -> None:
    for version in ("1.0", "2.0"):
        add(tmp_path, "Tiny", version)
        write(tmp_path, f"data-{version}.yml", {**DATASET, "version": version})
    catalog = Catalog([tmp_path])
    with pytest.raises(UnknownModelError) as caught:
        catalog.find_model("Tiny", "^3", INSTALLED)
    assert one_line(caught) == 'model "Tiny" has no version ^3; it has: 2.0, 1.0'
    with pytest.raises(UnknownDatasetError) as caught_dataset:
        catalog.find_dataset("pets", "3")
    assert one_line(caught_dataset) == 'dataset "pets" has no version 3; it has: 2.0, 1.0'


def test_a_version_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='">>1" is not a version constraint') as caught:
        Catalog().find_model("DigitsCNN", ">>1", INSTALLED)
    one_line(caught)


def test_a_dataset_is_found_within_its_category(tmp_path: Path) -> None:
    write(tmp_path, "text.yml", {**DATASET, "name": "words", "category": "Text"})
    catalog = Catalog([tmp_path])
    assert catalog.find_dataset("words", category="text").name == "words"
    with pytest.raises(UnknownDatasetError):
        catalog.find_dataset("words", category="vision")
    with pytest.raises(
        UnknownDatasetError, match='no dataset is of category "sound"; known: Text, text, vision'
    ):
        catalog.find_dataset("words", category="sound")


def test_the_users_directories_come_first_in_their_order_and_the_programs_own_last(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    own = BUILTIN / "models" / "DigitsCNN" / "mxnet.yml"
    for folder in (first, second):
        write(folder, "digits.yml", own.read_text(encoding="utf-8"))
    add(second, "Tiny")

    def source(*folders: Path) -> Path | None:
        return Catalog(folders).find_model("DigitsCNN", None, {"MXNet": "1.9.1"}).source

    assert source(first, second) == first / "digits.yml"
    assert source(second, first) == second / "digits.yml"
    assert source() == own
    assert Catalog([first, second]).find_model("Tiny", None, INSTALLED).name == "Tiny"


def test_of_two_manifests_for_the_same_thing_only_the_earlier_is_listed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    add(first, "tiny", "1")
    add(second, "Tiny", "1.0.0")
    catalog = Catalog([first, second])
    assert [(m.name, m.version) for m in catalog.models if m.name.casefold() == "tiny"] == [("tiny", "1")]


def test_subdirectories_are_searched_and_other_files_left_alone(tmp_path: Path) -> None:
    add(tmp_path / "a" / "b", "Tiny")
    write(tmp_path, "notes.txt", "no: [manifest")
    write(tmp_path, "other.yaml", {**DATASET, "name": "other"})
    catalog = Catalog([tmp_path])
    assert isinstance(catalog.find_model("Tiny", None, INSTALLED), ModelManifest)
    assert catalog.find_dataset("other").name == "other"
    assert catalog.problems == ()


def test_a_broken_file_takes_no_other_down_and_is_mentioned_where_a_name_is_missing(tmp_path: Path) -> None:
    add(tmp_path, "Tiny")
    broken = write(tmp_path, "broken.yml", "name: Broken\nversoin: 1\n")
    write(tmp_path, "worse.yml", "{")
    catalog = Catalog([tmp_path])
    assert catalog.find_model("Tiny", None, INSTALLED).name == "Tiny"
    assert sorted(Path(str(p).partition(": ")[0]).name for p in catalog.problems) == [
        "broken.yml",
        "worse.yml",
    ]
    with pytest.raises(NotFoundError) as caught:
        catalog.find_model("Broken", None, INSTALLED)
    message = one_line(caught)
    assert 'unknown model "Broken"' in message
    assert f"2 manifests could not be read, the first: {broken}: field versoin" in message


def test_a_directory_that_is_missing_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="absent does not exist"):
        Catalog([tmp_path / "absent"])
    with pytest.raises(ConfigurationError, match="is not a directory"):
        Catalog([write(tmp_path, "file.yml", "")])


def test_the_files_are_read_when_first_asked_for(tmp_path: Path) -> None:
    catalog = Catalog([tmp_path])
    add(tmp_path, "Tiny")
    assert catalog.find_model("Tiny", None, INSTALLED).name == "Tiny"


def test_a_dataset_of_another_category_is_said_to_be_of_that() -> None:
    with pytest.raises(UnknownDatasetError) as caught:
        Catalog().find_dataset("digits_validation", category="text")
    assert one_line(caught) == 'dataset "digits_validation" is of category "vision", not "text"'
