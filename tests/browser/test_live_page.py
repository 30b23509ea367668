"""The served page in a real browser: links that can be shared, and what is new while it is open."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from inferometer.client.api.progress import RunningFile
from inferometer.evaluators.jobs.job import JobStart, Progress
from tests.browser.webdriver import Browser
from tests.page_samples import SCRIPT, keep, samples, steady
from tests.web.conftest import served

IDS = [each.id for each in samples()]


def test_links_are_paths_that_open_what_they_name(browser: Browser, data: Path) -> None:
    with served(data) as page:
        browser.open(f"{page.url}/evaluations/{IDS[2]}")
        assert browser.text("h1") == f"{SCRIPT} 1.0"
        browser.open(f"{page.url}/compare?a={IDS[0][:8]}&b={IDS[1][:8]}")
        assert "REGRESSION" in browser.text(".conclusion")
        browser.open(f"{page.url}/?kind=workload&sort=latency_ms_p50")
        assert browser.text(".count") == "1–2 of 2 (of 9)"
        browser.click("#evaluations tbody a")
        browser.wait("return document.querySelector('article.evaluation')")
        assert browser.run("return location.pathname").startswith("/evaluations/")
        browser.run("history.back()")
        browser.wait("return document.querySelector('#evaluations tbody tr')")
        assert browser.run("return location.search") == "?kind=workload&sort=latency_ms_p50"
        browser.open(f"{page.url}/evaluations/none")
        assert "holds no evaluation none" in browser.text(".problem")
        own = [url for url in browser.requests() if not url.startswith(("chrome", "data:"))]
        assert own
        assert all(url.startswith(page.url) for url in own)


def test_the_page_asks_for_its_content_again_only_when_there_is_more(
    browser: Browser, tmp_path: Path
) -> None:
    keep(tmp_path, [steady(1)])
    running = RunningFile(tmp_path, clock := _Clock())
    with served(tmp_path) as page, closing(running):
        browser.open(page.url)
        browser.wait("return document.getElementById('state').textContent === 'live'")
        assert len(browser.texts("#evaluations tbody tr")) == 1

        running.begin(JobStart(steady(2).system, "digits", 450))
        clock.now_s += 5
        running(Progress(90, 450))
        browser.wait("return document.querySelector('.running progress')?.value === 90")
        assert "90 of 450 inputs" in browser.text(".running li")
        keep(tmp_path, [steady(2)])
        running.close()
        browser.wait("return document.querySelectorAll('#evaluations tbody tr').length === 2")
        browser.wait("return document.querySelector('.running').hidden")
        browser.wait(
            "return document.querySelector('#evaluations tr.fresh')?.dataset.id === arguments[0]",
            steady(2).id,
        )
        browser.wait("return document.getElementById('announcer').textContent === '1 new evaluation'")
        lists = [url for url in browser.requests() if "/api/evaluations?" in url]
        assert len(lists) == 2


def test_a_browser_with_the_secret_reads_and_hears_all(browser: Browser, data: Path) -> None:
    with served(data, secret="hush") as page:
        browser.open(page.url.replace("://", "://anybody:hush@"))
        browser.wait("return document.getElementById('state').textContent === 'live'")
        assert len(browser.texts("#evaluations tbody tr")) == len(IDS)


def test_a_server_that_has_gone_is_noticed(browser: Browser, data: Path) -> None:
    with served(data) as page:
        browser.open(page.url)
        browser.wait("return document.getElementById('state').textContent === 'live'")
    browser.wait("return document.getElementById('state').textContent.startsWith('connection lost')")
    browser.click("#evaluations tbody a")
    assert "does not answer" in browser.text(".problem")
    browser.complaints()  # of the connections that were refused


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
