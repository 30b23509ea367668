"""C's ``stderr`` is silenced on request, and restored afterwards."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading

import pytest

from inferometer.agent.preprocessing.opencv_decoder import silenced_c_stderr

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's stderr is silenced")


def complain(text: str) -> None:
    """Writes to C's ``stderr`` as a C library does."""
    library = ctypes.CDLL(None)
    library.fputs.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    library.fputs(text.encode(), ctypes.c_void_p.in_dll(library, "stderr"))


def test_c_is_silent_inside_and_heard_outside(capfd: pytest.CaptureFixture[str]) -> None:
    complain("before\n")
    with silenced_c_stderr():
        complain("inside\n")
    complain("after\n")
    assert capfd.readouterr().err == "before\nafter\n"


def test_what_python_writes_is_heard_all_the_time(capfd: pytest.CaptureFixture[str]) -> None:
    with silenced_c_stderr():
        print("inside", file=sys.__stderr__, flush=True)
        os.write(2, b"and this\n")
    assert capfd.readouterr().err == "inside\nand this\n"


def test_an_error_inside_gives_the_voice_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), silenced_c_stderr():
        raise ValueError("x")
    complain("after\n")
    assert capfd.readouterr().err == "after\n"


def test_it_is_silent_until_the_last_thread_has_left(capfd: pytest.CaptureFixture[str]) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with silenced_c_stderr():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(10)
    with silenced_c_stderr():
        complain("both are inside\n")
    complain("one is inside\n")
    leave.set()
    thread.join(10)
    complain("none is inside\n")
    assert capfd.readouterr().err == "none is inside\n"
