"""The progress bar: it appears, and leaves the processor to the model between its updates."""

import io
import threading
from contextlib import closing, redirect_stderr

import pytest

from inferometer.client.evaluating import progress
from inferometer.client.evaluating.progress import ProgressBar
from inferometer.evaluators.dataset_run import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "SHOWN_AFTER_S", 0.0)


def test_shows_how_far_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 0.0)
    with redirect_stderr(Terminal()) as terminal, closing(ProgressBar("DigitsCNN")) as bar:
        bar(Progress(3, 9))
        assert "3/9" in terminal.getvalue()
        bar(Progress(6, 9))
        assert "6/9" in terminal.getvalue()


def test_is_drawn_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOWN_EVERY_S", 3600.0)
    with redirect_stderr(Terminal()) as terminal, closing(ProgressBar("DigitsCNN")) as bar:
        bar(Progress(3, 9))
        bar(Progress(6, 9))
        assert "3/9" in terminal.getvalue()
        assert "6/9" not in terminal.getvalue()


def test_no_thread_draws_while_the_model_is_timed() -> None:
    before = threading.enumerate()
    with redirect_stderr(Terminal()) as terminal, closing(ProgressBar("DigitsCNN")) as bar:
        bar(Progress(3, 9))
        assert terminal.getvalue()
        assert set(threading.enumerate()) <= set(before)  # a thread of an earlier test may end meanwhile
