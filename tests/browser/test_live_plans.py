"""Plans of the served page in a real browser: they follow the journal, and keep what was chosen."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from inferometer.evaluators.plans.running.folder import Ended
from tests.browser.webdriver import Browser
from tests.page_plans import KeptRuns, keep_plan
from tests.page_samples import IMAGE, SCRIPT, keep, steady
from tests.web.conftest import served

IDS = [steady(number).id for number in (1, 2, 3)]
_CHOOSE = """
const select = document.getElementById(arguments[0]);
select.focus();
select.value = arguments[1];
select.dispatchEvent(new Event("change"));
"""


@pytest.fixture
def kept(tmp_path: Path) -> KeptRuns:
    """A plan with markup wherever it holds a text; two of four runs are complete, and one failed."""
    keep(tmp_path, [steady(1), steady(2, 1.4), steady(3, 2.0)])
    varied = {"name": [SCRIPT, IMAGE], "trial": [1, 2]}
    found = keep_plan(tmp_path, "grid", varied, description=SCRIPT)
    found.end(0, Ended.COMPLETE, evaluations=[IDS[0]])
    found.end(1, Ended.COMPLETE, evaluations=[IDS[1]])
    found.end(2, Ended.FAILED, IMAGE)
    return found


def test_a_plan_follows_its_journal_and_keeps_the_choice(
    browser: Browser, kept: KeptRuns, tmp_path: Path
) -> None:
    with served(tmp_path) as page:
        browser.open(page.url)
        browser.wait("return !document.getElementById('plans').hidden")
        browser.click("#plans")
        browser.wait("return document.querySelector('table.plans')")
        assert browser.texts(".plans tbody .of-bar") == ["2 complete, 1 failed, 1 waiting"]
        browser.click(".plans tbody a")
        browser.wait("return document.querySelector('article.plan')")
        assert browser.text(".subtitle").startswith(f"{SCRIPT} · 2 complete, 1 failed, 1 waiting")
        browser.wait("return document.querySelectorAll('table[data-report=table] tbody tr').length === 2")
        assert browser.texts("table[data-report=failures] tbody td[data-key=reason]") == [IMAGE]

        browser.run(_CHOOSE, "plan-columns", "trial")
        browser.wait("return document.querySelectorAll('table[data-report=table] tbody tr').length === 1")
        assert browser.run("return location.search") == "?columns=trial"
        with kept.folder.lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            browser.wait("return document.querySelector('.title .chip').innerText.includes('running')")
            kept.begin(3)
            browser.wait("return document.querySelector('.runs tbody td').innerText === 'in work'")
            kept.end(3, Ended.COMPLETE, evaluations=[IDS[2]])
            browser.wait("return document.querySelectorAll('table[data-report=table] tbody tr').length === 2")
        assert "3 complete, 1 failed" in browser.text(".subtitle")
        assert browser.run("return document.activeElement.id") == "plan-columns"
        assert browser.run("return document.activeElement.value") == "trial"
        browser.wait("return document.getElementById('announcer').textContent.startsWith('grid stopped')")
        assert browser.run("return document.querySelectorAll('main script, main img').length") == 0

        browser.run(_CHOOSE, "plan-where", "trial > 5")
        assert "no cell fulfils" in browser.text(".problem:not([hidden])")
        browser.press("escape", "escape")
        browser.wait("return document.querySelector('table.plans')")


def test_the_sorting_of_a_table_stays_when_there_is_more(
    browser: Browser, kept: KeptRuns, tmp_path: Path
) -> None:
    with served(tmp_path) as page:
        browser.open(f"{page.url}/plans/grid")
        browser.wait("return document.getElementById('state').textContent === 'live'")
        browser.click("table[data-report=table] [data-sort=latency_ms_p50]")
        kept.end(3, Ended.COMPLETE, evaluations=[IDS[2]])
        browser.wait("return document.querySelectorAll('table[data-report=table] tbody tr').length === 3")
        shown = browser.texts("table[data-report=table] td[data-key=latency_ms_p50]")
        focused = browser.run("return document.activeElement.dataset.sort")

    values = [float(text.split()[0]) for text in shown]
    assert values == sorted(values, reverse=True)
    assert focused == "latency_ms_p50"


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_and_a_phone_need_not_scroll(
    browser: Browser, tmp_path: Path, axe: str, dark: bool
) -> None:
    with served(tmp_path) as page:
        for path in ("/plans", "/plans/grid"):
            browser.look(width=390, height=844, dark=dark)
            browser.open(page.url + path)
            assert browser.run("return document.scrollingElement.scrollWidth") <= 390, path
            browser.look(dark=dark)
            # the policy lets no other script run, so it is put in through the driver
            browser.run(f"{axe}; window.axe = axe")
            found = browser.run_async(
                "const done = arguments[0];"
                "axe.run(document, {resultTypes: ['violations']}).then((all) => done(all.violations.map("
                "(each) => [each.impact, each.id, each.nodes.slice(0, 3).map((node) => node.html)])))"
            )
            assert [each for each in found if each[0] in ("serious", "critical")] == [], path
