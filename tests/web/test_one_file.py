"""``agent report``: one file with the same content, which loads nothing and runs its own script alone."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from inferometer.client.cli.main import run
from inferometer.client.web.page import MODULES, content_of, in_one_script
from tests.page_samples import IMAGE, SCRIPT, samples
from tests.web.conftest import Page

IDS = [each.id for each in samples()]
Written = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def written(data: Path, tmp_path: Path) -> Written:
    """The text of a report, and its parts by name."""

    def write(*words: str) -> tuple[str, dict[str, Any]]:
        file = tmp_path / "report.html"
        assert run(["report", "-o", str(file), "--overwrite", *words]) == 0
        text = file.read_text(encoding="utf-8")
        parts = re.findall(r'<script type="text/plain" id="part-([\w-]+)">([\w+/=]*)</script>', text)
        return text, {name: json.loads(gzip.decompress(base64.b64decode(part))) for name, part in parts}

    return write


def _resolved(value: Any, shared: Sequence[Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(each, shared) for each in value]
    return shared[value["$"]] if isinstance(value, dict) and "$" in value else value


def test_it_has_what_the_server_gives(written: Written, page: Page) -> None:
    _, parts = written("--include_interrupted")
    served = page.get("/api/evaluations").json

    assert parts["list"]["columns"] == served["columns"]
    assert parts["list"]["rows"] == served["rows"]
    served_filters = {name: set(values) for name, values in page.get("/api/filters").json.items()}
    assert {name: set(values) for name, values in parts["list"]["filters"].items()} == served_filters
    for evaluation_id in IDS:
        kept = {
            name: _resolved(value, parts["shared"])
            for name, value in parts["details-0"][evaluation_id].items()
        }
        assert kept == page.get(f"/api/evaluations/{evaluation_id}").json


def test_the_newest_are_compared_with_each_other(written: Written, page: Page) -> None:
    _, parts = written("--model_name=DigitsCNN", "--compared=20", "--details=0")
    key = f"{IDS[0]} {IDS[1]}"

    assert parts["comparisons"][key] == page.get(f"/api/compare?a={IDS[0]}&b={IDS[1]}").json
    assert f"{IDS[1]} {IDS[0]}" in parts["comparisons"]


def test_only_the_newest_have_pictures_and_layers_and_the_others_say_so(written: Written) -> None:
    _, parts = written("--details=2", "--compared=0", "--include_interrupted")
    details = parts["details-0"]

    assert [bool(details[each]["charts"]) for each in reversed(IDS)] == [True, True] + [False] * 7
    assert details[IDS[3]]["tables"] == []
    assert f"--id={IDS[3]}" in details[IDS[3]]["omitted"]
    assert details[IDS[0]]["figures"]
    assert parts["comparisons"] == {}


def test_the_filters_are_those_of_the_reports(written: Written) -> None:
    _, parts = written("--framework_name=MXNet", "--include_interrupted")
    assert [row["id"] for row in parts["list"]["rows"]] == [IDS[7]]

    _, parts = written(f"--id={IDS[4]}")
    assert [row["id"] for row in parts["list"]["rows"]] == [IDS[4]]


def test_its_policy_allows_its_own_script_and_style_and_no_request(written: Written) -> None:
    text, _ = written()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)

    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for content in (script, style):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.search(r"<(?:link|img|iframe|script)[^>]*(?:src|href)=", text)
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_no_text_of_an_evaluation_stands_in_it_as_markup(written: Written) -> None:
    text, parts = written()

    assert SCRIPT not in text
    assert IMAGE not in text
    assert SCRIPT in json.dumps(parts["list"]["rows"])


def test_the_modules_are_one_script_in_which_no_name_is_taken_twice() -> None:
    text = in_one_script()
    declared = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)

    assert len(declared) > 40
    assert sorted(declared) == sorted(set(declared))
    assert not re.search(r"^\s*(?:import|export)\b", text, re.MULTILINE)


def test_no_module_reads_text_as_markup() -> None:
    for name in MODULES:
        text = content_of(name).decode()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text
        )


def test_a_file_in_the_way_stays(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.html"
    file.write_text("mine")

    assert run(["report", "-o", str(file)]) != 0
    assert "overwrite it (--overwrite), or name another file" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_a_report_on_nothing_is_a_page_that_says_so(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    _, parts = written("--model_name=nothing")

    assert parts["list"]["rows"] == []
    assert "matches" in capsys.readouterr().err
