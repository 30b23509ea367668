"""Watches what Python does while a file is read: code, imports, processes, and files that are written.

``sys.addaudithook`` cannot be undone, so that a watch belongs into a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ALWAYS = (
    "subprocess.",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.fork",
    "pty.",
    "socket.",
    "webbrowser.",
)
_UNLESS_USUAL = ("ctypes.dlopen", "pickle.", "marshal.", "shutil.", "os.", "sqlite3.", "urllib.", "tempfile.")
_NEVER_IMPORTED = {"antigravity", "turtledemo"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOOKING = {
    "sqlite3.connect/handle",
    "os.listdir",
    "os.scandir",
    "os.walk",
    "os.fwalk",
    "os.getxattr",
    "os.listxattr",
}
_PREFIXES = tuple(
    {str(Path(each).resolve()) for each in (sys.prefix, sys.base_prefix, Path(__file__).parents[2])}
)


class Watch:
    """Collects what happens within ``watching`` and is not what reading a good file does.

    Args:
        folder: The folder of the files, in which this process is, and in which nothing may be created.
        secret: A file that no reader may open.
    """

    def __init__(self, folder: Path, secret: Path) -> None:
        self.found: list[str] = []
        self._folder, self._secret = folder, str(secret)
        self._usual: set[str] = set()
        self._learning = self._on = False
        sys.addaudithook(self._hook)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """What happens inside is usual from then on."""
        self._learning = True
        with self.watching():
            yield
        self._learning = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Adds to ``found`` what happens inside, and is not usual."""
        before, children = self._names(), _children()
        self._on = True
        try:
            yield
        finally:
            self._on = False
        if created := self._names() - before:
            self._note(f"files {sorted(created)}")
        if started := _children() - children:
            self._note(f"processes {sorted(started)}")

    def _names(self) -> set[str]:
        return {str(each) for each in self._folder.rglob("*")}

    def _note(self, what: str) -> None:
        if self._learning:
            self._usual.add(what)
        elif what not in self._usual:
            self.found.append(what)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        self._on = False  # what follows is the watch's own
        try:
            what = self._told(event, arguments)
            if what is not None:
                self._note(what)
        finally:
            self._on = True

    def _told(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """What an event is, if it is none of those that reading files has."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes) and os.path.realpath(os.fsdecode(path)) == self._secret:
                return f"open {os.fsdecode(path)}"
            return (
                f"write {path}"
                if isinstance(flags, int) and flags & _WRITING and path != "/dev/null"
                else None
            )
        if event == "import":
            top = str(arguments[0]).partition(".")[0]
            known = top in sys.stdlib_module_names or top in sys.modules
            return None if known and top not in _NEVER_IMPORTED else f"import {arguments[0]}"
        if event.startswith(_ALWAYS):
            return f"{event} {arguments!r}"[:300]
        if _is_within_import(sys._getframe(2)):
            return None
        if event in {"exec", "compile"}:
            return _code(event, arguments, sys._getframe(2))
        if event.startswith(_UNLESS_USUAL) and event not in _LOOKING:
            return f"{event} {arguments!r}"[:300]
        return None


def _is_within_import(frame: FrameType | None) -> bool:
    """Whether a module is being imported, which is looked at when that begins."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def _code(event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> str | None:
    """Code that is no file of Python's or of this program."""
    [first, *rest] = arguments
    name = first.co_filename if isinstance(first, CodeType) else str(rest[0] if rest else "")
    if name.startswith(_PREFIXES) or name.startswith("<frozen "):
        return None
    while frame is not None:
        if event == "compile" and frame.f_code.co_name == "literal_eval":
            return None  # it parses, and compiles nothing
        frame = frame.f_back
    return f"{event} {name} {first!r}"[:300]


def _children() -> set[str]:
    """The processes that this one has started, as Linux tells them at once."""
    return {pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}
