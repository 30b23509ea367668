"""The report in a real browser, from a file: no request, every number that of the reports, markup inert."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from inferometer.client.cli.main import run
from tests.browser.webdriver import Browser
from tests.page_samples import IMAGE, SCRIPT, samples

IDS = [each.id for each in samples()]
Told = Callable[..., Any]
_FIGURES = """
return [...document.querySelectorAll(".figures tbody tr")].map((row) => [
  row.dataset.report, row.dataset.key,
  [...row.querySelectorAll("td")].map((cell) => cell.querySelector("data")?.value ?? null),
  [...row.querySelectorAll("td")].map((cell) => cell.innerText),
])
"""
_CARDS = """
return [...document.querySelectorAll(".card")].map((card) => [
  card.dataset.report, card.dataset.key, [...card.querySelectorAll("data")].map((each) => each.value),
])
"""
_TABLES = """
return [...document.querySelectorAll("table[data-report]")].map((table) => [
  table.dataset.report,
  [...table.tBodies[0].rows].map((row) => Object.fromEntries(
    [...row.cells].map((cell) => [cell.dataset.key, cell.querySelector("data")?.value ?? null]))),
])
"""
_ROWS = """
return [...document.querySelectorAll("#evaluations tbody tr")].map((row) => [row.dataset.id,
  Object.fromEntries([...row.cells].filter((cell) => cell.dataset.key)
    .map((cell) => [cell.dataset.key, cell.querySelector("data")?.value ?? null]))])
"""
_COMPARED = """
return [...document.querySelectorAll(".comparison tbody tr")].map((row) => [row.dataset.figure,
  Object.fromEntries([...row.cells].filter((cell) => cell.dataset.key)
    .map((cell) => [cell.dataset.key, cell.querySelector("data")?.value ?? null]))])
"""


@pytest.fixture
def told(data: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a command prints with ``-f json``."""
    monkeypatch.setenv("AGENT_DATA_DIR", str(data))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(data))

    def tell(*words: str) -> Any:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
            run([*words, "-f", "json"])
        return json.loads(out.getvalue())

    return tell


def _number(value: Any) -> float | None:
    """What a cell has to show of a value; None for no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(text: str | None) -> float | None:
    return None if text is None else float(text)


def _go(browser: Browser, path: str) -> None:
    browser.run("location.hash = arguments[0]", path)
    browser.wait("return document.body.dataset.ready === arguments[0]", path)


def test_it_opens_without_a_request_whatever_is_looked_at(browser: Browser, report_url: str) -> None:
    browser.open(report_url)
    for evaluation_id in IDS[:7]:
        _go(browser, f"/evaluations/{evaluation_id}")
    _go(browser, f"/compare?a={IDS[0]}&b={IDS[1]}")

    asked = {url.partition("#")[0] for url in browser.requests()}
    assert asked == {report_url}


def test_every_number_of_the_table_is_that_of_the_report(
    browser: Browser, report_url: str, told: Told
) -> None:
    browser.open(report_url)
    browser.click("button[aria-pressed]")
    browser.wait("return document.querySelector('#evaluations th.of-threads')")
    rows = {row["id"]: row for row in told("info", "evaluations", "--include_interrupted")}

    found = dict(browser.run(_ROWS))
    assert set(found) == set(rows)
    for evaluation_id, cells in found.items():
        expected = {key: _number(rows[evaluation_id][key]) for key in cells}
        assert {key: _shown(text) for key, text in cells.items()} == expected
        assert sum(value is not None for value in expected.values()) >= 2


@pytest.mark.parametrize("place", range(len(IDS)))
def test_every_number_of_an_evaluation_is_that_of_its_reports(
    browser: Browser, report_url: str, told: Told, place: int
) -> None:
    names = {
        "max_qps": ["max-qps"],
        "probes": ["max-qps", "--probes"],
        "latency": ["latency", "--include_profiled"],
    }
    reports: dict[str, Any] = {}

    def rows_of(name: str) -> Any:
        words = names.get(name, [name])
        if name not in reports:
            reports[name] = told("info", "evaluation", *words, "--include_interrupted", "--id", IDS[place])
        return reports[name]

    browser.open(f"{report_url}#/evaluations/{IDS[place]}")
    figures, tables = browser.run(_FIGURES), browser.run(_TABLES)

    assert figures
    for name, key, values, texts in figures:
        (row,) = rows_of(name)
        expected = [row[key], row.get(f"{key}_low"), row.get(f"{key}_high")]
        assert [_shown(value) for value in values] == [_number(value) for value in expected], key
        assert all(float(text) == pytest.approx(v, abs=0.06) for text, v in _known(texts, expected)), key
    for name, key, values in browser.run(_CARDS):
        (row,) = rows_of(name)
        expected = [row[key], row.get(f"{key}_low"), row.get(f"{key}_high")]
        assert [float(value) for value in values] == [value for value in expected if value is not None]
    for name, shown in tables:
        for cells, row in zip(shown, rows_of(name), strict=True):
            assert {key: _shown(text) for key, text in cells.items()} == {
                key: _number(row[key]) for key in cells
            }
    if place in (3, 6):
        assert tables


def _known(texts: list[str], values: list[Any]) -> Iterator[tuple[str, float]]:
    return ((text, value) for text, value in zip(texts, values, strict=True) if value is not None)


def test_every_number_of_a_comparison_is_that_of_the_command(
    browser: Browser, report_url: str, told: Told
) -> None:
    browser.open(f"{report_url}#/compare?a={IDS[0]}&b={IDS[1]}")
    found = dict(browser.run(_COMPARED))

    for row in told("compare", IDS[0], IDS[1]):
        cells = found[row["figure"]]
        assert {key: _shown(text) for key, text in cells.items()} == {key: _number(row[key]) for key in cells}
    assert "REGRESSION" in browser.text(".conclusion")
    assert "p50" in browser.texts(".comparison tbody th")


def test_a_name_that_is_a_script_is_inert(browser: Browser, report_url: str) -> None:
    browser.open(report_url)
    assert SCRIPT in browser.texts("td.of-model_name a")
    _go(browser, f"/evaluations/{IDS[2]}")

    assert browser.text("h1") == f"{SCRIPT} 1.0"
    assert IMAGE in " ".join(browser.texts(".facts dd"))
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
    assert browser.run("return [...document.scripts].every((each) => !each.text.startsWith('alert'))")


def test_it_is_used_with_the_keyboard_alone(browser: Browser, report_url: str) -> None:
    browser.open(report_url)
    browser.press("tab")
    assert browser.run("return document.activeElement.className") == "skip"
    browser.run("document.querySelector('#evaluations tbody tr').focus()")
    browser.press("down", "down", "up", "space", "down", "space")
    assert browser.text(".selection button.main") == "Compare"
    assert browser.texts(".selection span")[0].startswith("A: ")
    browser.press("enter")
    browser.wait("return document.querySelector('article.evaluation')")
    assert browser.run("return document.activeElement.id") == "content"
    browser.press("escape")
    browser.wait("return document.querySelector('#evaluations tbody tr')")
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "filter-model_name"


def test_sorting_and_filters_are_in_the_address(browser: Browser, report_url: str) -> None:
    browser.open(report_url)
    browser.click("th.of-latency_ms_p50 button")
    browser.wait(
        "return document.querySelector('th.of-latency_ms_p50').getAttribute('aria-sort') === 'descending'"
    )
    assert browser.run("return location.hash") == "#/?sort=latency_ms_p50"
    shown = [float(text) for text in browser.texts("td.of-latency_ms_p50") if text not in ("–", "inf")]
    assert shown == sorted(shown, reverse=True)

    browser.run(
        "const s = document.getElementById('filter-framework_name'); s.value = 'MXNet';"
        "s.dispatchEvent(new Event('change'))"
    )
    browser.wait("return document.querySelectorAll('#evaluations tbody tr').length === 1")
    assert browser.run("return location.hash") == "#/?sort=latency_ms_p50&framework_name=MXNet"
    browser.open(f"{report_url}#/?kind=workload")
    assert browser.text(".count") == "1–2 of 2 (of 9)"


def test_the_cursor_shows_values_and_the_buttons_zoom(browser: Browser, report_url: str) -> None:
    browser.open(f"{report_url}#/evaluations/{IDS[0]}")
    browser.wait("return document.querySelector('.u-over')")
    point = """
      const over = document.querySelector(".u-over"), box = over.getBoundingClientRect();
      const at = {clientX: box.left + 3, clientY: box.top + 20, bubbles: true};
      for (const name of ["mouseenter", "mousemove"]) over.dispatchEvent(new MouseEvent(name, at));
      return [...document.querySelectorAll(".at-cursor")].map((each) => each.textContent);
    """
    browser.wait(f"return (() => {{{point}}})()[0] === '0'")
    assert float(browser.run(point)[1]) > 0
    browser.click("button[aria-label='Zoom in']")
    browser.wait(f"return Number((() => {{{point}}})()[0]) > 10")
    browser.click("button[aria-label='Show the whole']")
    browser.wait(f"return (() => {{{point}}})()[0] === '0'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, report_url: str, axe: str, dark: bool) -> None:
    paths = ["/", f"/evaluations/{IDS[3]}", f"/evaluations/{IDS[6]}", f"/compare?a={IDS[0]}&b={IDS[1]}"]
    browser.look(dark=dark)
    browser.open(report_url)
    browser.run(f"{axe}; window.axe = axe")
    for path in paths:
        _go(browser, path)
        found = browser.run_async(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((all) => done(all.violations.map("
            "(each) => [each.impact, each.id, each.nodes.slice(0, 3).map((node) => node.html)])))"
        )
        assert [each for each in found if each[0] in ("serious", "critical")] == [], path


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, report_url: str) -> None:
    browser.look(width=390, height=844)
    browser.open(report_url)
    for path in (
        "/",
        *(f"/evaluations/{IDS[place]}" for place in (0, 2, 4, 6)),
        f"/compare?a={IDS[0]}&b={IDS[1]}",
    ):
        _go(browser, path)
        assert browser.run("return document.scrollingElement.scrollWidth") <= 390, path
