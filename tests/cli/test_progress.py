"""Progress on stderr: the bar leaves the processor to the model, and a line says what takes long."""

import io
import threading
from contextlib import closing, redirect_stderr
from threading import Event

import pytest

from inferometer.agent.artifacts.downloads import DownloadProgress
from inferometer.client.api import progress, waiting
from inferometer.client.api.progress import LiveLine, ProgressBar
from inferometer.client.api.waiting import DownloadBar, WaitingLine
from inferometer.evaluators.jobs.job import Progress


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


class Watched(Terminal):
    """A terminal that knows when a line is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if "…" in text:
            self.drawn.set()
        return count


class TestLine:
    @pytest.fixture(autouse=True)
    def _drawn_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waiting, "SHOWN_AFTER_S", 0.0)
        monkeypatch.setattr(waiting, "SHOWN_EVERY_S", 0.001)

    def test_it_says_what_is_being_done_and_goes_away(self) -> None:
        before = threading.enumerate()
        terminal = Watched()

        with redirect_stderr(terminal), WaitingLine().during("opening ResNet50"):
            assert terminal.drawn.wait(30)

        assert "opening ResNet50 … 0 s" in terminal.getvalue()
        assert terminal.getvalue().endswith("\r\033[K\r")
        assert set(threading.enumerate()) <= set(before)

    def test_it_is_away_while_there_is_a_bar(self) -> None:
        terminal = Watched()

        with redirect_stderr(terminal), closing(WaitingLine()) as line:
            line.begin("opening ResNet50")
            assert terminal.drawn.wait(30)
            bar = DownloadBar(line)
            bar(DownloadProgress("https://host/net.onnx", 1, 10))
            before = len(terminal.getvalue())
            bar(DownloadProgress("https://host/net.onnx", 9, 10))
            with_bar = terminal.getvalue()[before:]
            bar(DownloadProgress("https://host/net.onnx", 10, 10, ended=True))
            terminal.drawn.clear()
            assert terminal.drawn.wait(30), "it is back"

        assert "net.onnx" in terminal.getvalue()
        assert "opening" not in with_bar

    def test_it_needs_a_terminal_and_no_log(self) -> None:
        with redirect_stderr(io.StringIO()) as stream, WaitingLine().during("opening"):
            pass
        with redirect_stderr(Terminal()) as terminal, WaitingLine(wanted=False).during("opening"):
            pass
        assert stream.getvalue() + terminal.getvalue() == ""


def test_a_line_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with redirect_stderr(Terminal()) as terminal:
        LiveLine()(Progress(10, 100, "", "probe 1  at 118.2 queries/s    1.0 s  10/100 sent"))

    line = terminal.getvalue().removeprefix("\r").removesuffix("\033[K")
    assert line.startswith("probe 1  at 118.2 queries/s  ")
    assert len(line) == 39
