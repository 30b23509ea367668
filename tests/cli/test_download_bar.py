"""The progress bar of a download: shown on a terminal, removed at the end, silent elsewhere."""

from __future__ import annotations

import io
import threading
from contextlib import redirect_stderr

import pytest

from inferometer.agent.artifacts.downloads import DownloadProgress
from inferometer.client.api import waiting
from inferometer.client.api.waiting import DownloadBar

MIB = 1024 * 1024


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(waiting, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(waiting, "BAR_EVERY_S", 0.0)


def progress(url: str, mib: int, total: int | None = 9, ended: bool = False) -> DownloadProgress:
    return DownloadProgress(f"http://h/{url}", mib * MIB, total and total * MIB, ended)


def test_shows_file_and_bytes_and_ends() -> None:
    before = threading.enumerate()
    with redirect_stderr(Terminal()) as terminal:
        bar = DownloadBar()
        bar(progress("[b]net.pt", 3))
        assert "[b]net.pt" in terminal.getvalue()
        assert "3.0/9.0 MiB" in terminal.getvalue()
        bar(progress("[b]net.pt", 6))
        assert "6.0/9.0 MiB" in terminal.getvalue()
        assert set(threading.enumerate()) <= set(before)  # a thread of an earlier test may end meanwhile
        bar(progress("[b]net.pt", 9, ended=True))
        ended = terminal.getvalue()
        bar(progress("[b]net.pt", 9, ended=True))
    assert terminal.getvalue() == ended


def test_shows_a_file_of_unknown_size_and_several_at_once() -> None:
    with redirect_stderr(Terminal()) as terminal:
        bar = DownloadBar()
        bar(progress("one", 2, total=None))
        assert "2.0/? MiB" in terminal.getvalue()
        bar(progress("two", 4))
        bar(progress("one", 3, total=None, ended=True))
        bar(progress("two", 5))
        assert "5.0/9.0 MiB" in terminal.getvalue()
        bar(progress("two", 9, ended=True))


def test_what_is_quick_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SHOWN_AFTER_S", 3600.0)
    with redirect_stderr(Terminal()) as terminal:
        bar = DownloadBar()
        bar(progress("one", 2))
        bar(progress("one", 9, ended=True))
    assert terminal.getvalue() == ""


def test_is_silent_where_there_is_no_terminal() -> None:
    with redirect_stderr(io.StringIO()) as file:
        bar = DownloadBar()
        bar(progress("one", 2))
        bar(progress("one", 9, ended=True))
    assert file.getvalue() == ""
