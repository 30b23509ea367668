"""Progress for whoever waits for the library: HTML in a notebook, and else what the command line shows."""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any, Protocol

from inferometer.client.evaluating.progress import LiveLine, ProgressBar, line_of
from inferometer.evaluators.dataset_run import Progress
from inferometer.evaluators.load.issuer import IssuerProgress
from inferometer.manifests.errors import printable

SHOWN_AFTER_S = 1.0
SHOWN_EVERY_S = 1.0  # a message to the notebook takes up to a millisecond, for which what is measured waits


class Display(Protocol):
    """Shows the progress of one evaluation after the other."""

    def __call__(self, progress: Any) -> None:
        """Shows the progress."""
        ...

    def begin(self) -> None:
        """Starts the time of another evaluation."""
        ...

    def close(self) -> None:
        """Removes what is shown."""
        ...


def bar_for(title: str) -> ProgressBar | NotebookBar:
    """Returns what shows the progress of an evaluation over a dataset."""
    return NotebookBar(title) if _in_notebook() else ProgressBar(title)


def line_for(*, search: bool) -> LiveLine | NotebookLine:
    """Returns what shows the progress of load; of a search, the probes are numbered."""
    return NotebookLine(search) if _in_notebook() else LiveLine(search)


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; only then is IPython loaded, which is no dependency."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Area:
    """A place below a cell whose HTML changes, at most every ``SHOWN_EVERY_S``."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.begin()

    def begin(self) -> None:
        """Starts the time of another evaluation."""
        self._next = time.monotonic() + SHOWN_AFTER_S

    def close(self) -> None:
        """Empties the place."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(sys.modules["IPython"].display.HTML(""))

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + SHOWN_EVERY_S
        return True

    def _show(self, text: str) -> None:
        shown = sys.modules["IPython"].display.HTML(text)
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, display_id=True)
        else:
            self._handle.update(shown)
        sys.stdout.flush()  # waits until the kernel's thread has sent it, which would else disturb a batch


class NotebookBar(_Area):
    """The bar of an evaluation."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def __call__(self, progress: Progress) -> None:
        """Shows the progress."""
        if self._is_due():
            bar = f'<progress value="{progress.done}" max="{progress.total}"></progress>'
            self._show(f"{bar} {_text(self.title)}: {progress.done} of {progress.total} {progress.counted}")


class NotebookLine(_Area):
    """The line of load, and of a search one probe after the other."""

    def __init__(self, search: bool) -> None:
        super().__init__()
        self._probe = 1 if search else 0
        self._elapsed_s = 0.0

    def __call__(self, progress: IssuerProgress) -> None:
        """Shows the progress."""
        if self._probe and progress.elapsed_s < self._elapsed_s:
            self._probe += 1
        self._elapsed_s = progress.elapsed_s
        if self._is_due():
            of = f' value="{progress.sent}" max="{progress.total}"' if progress.total else ""
            self._show(f"<progress{of}></progress> {_text(line_of(progress, self._probe))}")


def _text(text: str) -> str:
    return escape(printable(text))
