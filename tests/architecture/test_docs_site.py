"""The site of the documentation builds without a warning, and no link in it leads nowhere."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import inferometer

TOOLS = ("sphinx", "myst_parser", "furo")


class _Page(HTMLParser):
    """The links and the anchors of a page, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "link") and (address := given.get("src") or given.get("href")):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs-site`` builds it."""
    if missing := [name for name in TOOLS if not find_spec(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}; make docs-install installs what the site requires")
    folder = tmp_path_factory.mktemp("site")
    said = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "docs-site", f"SITE={folder / 'html'}"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    _, *words = shlex.split(said.stdout.splitlines()[-1])
    words[words.index("-d") + 1] = str(folder / "doctrees")
    done = subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """The pages of the site."""
    return {path: _Page(path) for path in site.rglob("*.html")}


def _nowhere(path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        anchors = pages[target].anchors if target in pages else {""}
        if not target.is_file() or unquote(parts.fragment) not in anchors | {"", "top"}:
            yield link


def test_every_page_of_the_documentation_is_on_the_site(root: Path, site: Path) -> None:
    sources = [*(root / "docs").glob("*.md"), root / "docker/README.md", root / "CONTRIBUTING.md"]

    assert [p for p in sources if not (site / p.relative_to(root)).with_suffix(".html").is_file()] == []


def test_every_link_of_the_site_leads_somewhere(pages: dict[Path, _Page]) -> None:
    assert {path.name: list(_nowhere(path, page, pages)) for path, page in pages.items()} == {
        path.name: [] for path in pages
    }


def test_the_site_loads_nothing_from_the_network(pages: dict[Path, _Page]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}

    assert len(loaded) > 3
    assert [address for address in loaded if urlsplit(address).netloc] == []


def test_every_public_name_stands_once_in_the_reference(pages: dict[Path, _Page]) -> None:
    named = [
        anchor.removeprefix("inferometer.")
        for path, page in pages.items()
        if path.stem in ("library-reference", "plugin-reference")
        for anchor in page.anchors
        if re.fullmatch(r"inferometer\.\w+", anchor)
    ]

    assert sorted(named) == sorted(name for name in inferometer.__all__ if not name.startswith("__"))


def test_the_reference_of_the_library_has_its_functions_before_its_results(site: Path) -> None:
    text = (site / "docs" / "library-reference.html").read_text(encoding="utf-8")

    assert 0 < text.index('id="inferometer.evaluate"') < text.index('id="inferometer.Run"')
    assert inspect.cleandoc(inferometer.evaluate.__doc__ or "").partition(",")[0] in text
