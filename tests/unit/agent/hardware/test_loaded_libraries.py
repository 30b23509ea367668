"""The libraries that a process has loaded, and the versions that CUDA's tell."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferometer.agent.hardware import environment
from inferometer.agent.hardware.environment import (
    cuda_library_versions,
    loaded_library,
    readable_cudnn_version,
)

MAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/python3
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000001000-7f0000002000 r-xp 00000000 08:02 1   /opt/a b/libcudart.so.12
7f0000002000-7f0000003000 r-xp 00000000 08:02 2   /opt/a b/libcudnn_ops.so.9
7f0000003000-7f0000004000 r-xp 00000000 08:02 3   /opt/a b/libcudnn.so.9
7f0000004000-7f0000005000 r-xp 00000000 08:02 4   /opt/c/libcudart.so.11
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
"""


@pytest.fixture
def maps(tmp_path):
    file = tmp_path / "maps"
    file.write_text(MAPS)
    return file


def library(path):
    """A library of CUDA as ctypes opens it."""

    def tell(reference):
        reference._obj.value = 12_040

    def number():
        return 90_100

    return SimpleNamespace(
        **({"cudaRuntimeGetVersion": tell} if "cudart" in path else {"cudnnGetVersion": number})
    )


def test_a_library_is_found_by_the_beginning_of_its_name_and_by_its_folder(maps):
    assert loaded_library("libcudart", maps=maps) == Path("/opt/a b/libcudart.so.12")
    assert loaded_library("libcudart", Path("/opt/c"), maps=maps) == Path("/opt/c/libcudart.so.11")
    assert loaded_library("libcublas", maps=maps) is None
    assert loaded_library("libcudart", maps=maps.parent / "none") is None


def test_a_library_of_this_process_is_found():
    ctypes.CDLL("libc.so.6")
    found = loaded_library("libc")
    assert found is not None
    assert found.exists()


def test_cudas_libraries_tell_their_versions(maps, monkeypatch):
    monkeypatch.setattr(environment.loaded_library, "__defaults__", (None, maps))
    monkeypatch.setattr(environment.ctypes, "CDLL", library)

    assert cuda_library_versions() == {"CUDA runtime": "12.4", "cuDNN": "9.1.0"}


def test_without_cuda_there_is_no_version(tmp_path, monkeypatch):
    (tmp_path / "maps").write_text("")
    monkeypatch.setattr(environment.loaded_library, "__defaults__", (None, tmp_path / "maps"))
    assert cuda_library_versions() == {}


@pytest.mark.parametrize(
    ("number", "text"), [(8902, "8.9.2"), (90_100, "9.1.0"), (91_002, "9.10.2"), (7605, "7.6.5")]
)
def test_a_number_of_cudnn_is_read_in_both_of_its_forms(number, text):
    assert readable_cudnn_version(number) == text
