"""The screens of the commands that are used most, at three widths: golden files, and nothing is too wide.

``python -m tests.cli.screens`` writes the files anew; look at each before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.screens import GOLDEN, SCREENS, WIDTHS, golden, screen, store


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a database with the evaluations."""
    folder = tmp_path_factory.mktemp("screens")
    store(folder)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_its_golden_file_and_fits(name: str, width: int, stored: Path) -> None:
    text = screen(SCREENS[name], width, stored)

    assert text == golden(name, width).read_text(encoding="utf-8")
    assert max(map(cell_len, text.splitlines())) <= width


def test_every_golden_file_is_of_a_screen() -> None:
    expected = {golden(name, width).name for name in SCREENS for width in WIDTHS}

    assert {path.name for path in GOLDEN.iterdir()} == expected
