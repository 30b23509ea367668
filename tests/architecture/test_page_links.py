"""Links of the pages: every relative link leads to a file, and every anchor to a heading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGES = ("*.md", "docs/*.md", "docker/*.md")


def _pages(root: Path) -> list[Path]:
    return sorted(page for pattern in PAGES for page in root.glob(pattern))


def _prose(page: Path) -> str:
    """The text without its blocks of code, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"\w+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            yield link


def test_every_relative_link_leads_somewhere(root: Path) -> None:
    assert {page.name: broken for page in _pages(root) if (broken := list(_broken(page)))} == {}


def test_the_front_page_of_the_documentation_lists_every_page(root: Path) -> None:
    index = root / "docs" / "index.md"
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): ", _prose(index), re.MULTILINE)

    assert sorted(link for link in links if "/" not in link and "#" not in link) == sorted(
        page.name for page in (root / "docs").glob("*.md") if page != index
    )
    assert "docs/index.md" in _prose(root / "README.md")


@pytest.mark.parametrize("link", ["missing.md", "page.md#no-such-heading", "#no-such-heading"])
def test_a_broken_link_is_found(tmp_path: Path, link: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# A heading, with `code`\n\n[good](#a-heading-with-code) [bad]({link})\n", encoding="utf-8"
    )

    assert list(_broken(page)) == [link]
