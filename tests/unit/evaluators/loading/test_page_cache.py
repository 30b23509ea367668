"""The page cache: what is in it, and what dropping leaves."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from inferometer.evaluators.loading import page_cache
from inferometer.evaluators.loading.page_cache import DROPPED_SHARE, CachedShare, cached_share, drop

PAGES = 64


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A folder on a disk, whose pages the kernel drops; temporary files may be in memory."""
    if drop([written(tmp_path / "probe", 1)]).share != 0:
        pytest.skip("the file system of temporary files does not let its pages be dropped")
    return tmp_path


def written(path: Path, pages: int, more_bytes: int = 0) -> Path:
    path.write_bytes(os.urandom(pages * mmap.PAGESIZE + more_bytes))
    return path


def test_a_file_that_was_written_is_in_the_cache_and_dropped_from_it(on_disk: Path) -> None:
    file = written(on_disk / "a", PAGES, more_bytes=100)

    assert cached_share([file]) == CachedShare(1.0)
    assert drop([file]) == CachedShare(0.0)
    assert cached_share([file]) == CachedShare(0.0)
    file.read_bytes()
    assert cached_share([file]) == CachedShare(1.0)


def test_the_share_is_of_all_bytes_of_all_files(on_disk: Path) -> None:
    large, small = written(on_disk / "large", 3 * PAGES), written(on_disk / "small", PAGES)

    drop([large])

    assert cached_share([large, small]).share == pytest.approx(0.25)
    assert cached_share([large, small, on_disk / "missing"]).share == pytest.approx(0.25)


def test_the_share_is_what_another_program_finds(on_disk: Path) -> None:
    if shutil.which("fincore") is None:
        pytest.skip("fincore is not installed")
    file = written(on_disk / "a", PAGES)
    drop([file])
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # without reading ahead
        opened.read(1)

    command = ["fincore", "--noheadings", "--bytes", "--output", "RES", file]
    told = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    share = cached_share([file]).share
    assert share is not None
    assert 0 < share < 1
    assert share * PAGES * mmap.PAGESIZE == pytest.approx(told)


def test_what_is_mapped_stays_and_the_answer_says_so(on_disk: Path) -> None:
    file = written(on_disk / "a", PAGES)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) >= 0  # every page
        share = drop([file]).share

    assert share is not None
    assert share > DROPPED_SHARE


def test_files_in_memory_are_not_dropped() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no file system in memory")
    file = written(memory / f"page-cache-{os.getpid()}", 1)
    try:
        assert drop([file]) == CachedShare(1.0)
    finally:
        file.unlink()


def test_without_files_the_share_is_not_known() -> None:
    assert cached_share([]) == CachedShare(None, "the dataset has no files of its own")


def test_without_a_readable_file_the_share_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    for files in ([tmp_path / "missing"], [tmp_path / "empty"]):
        assert drop(files) == CachedShare(None, "none of the dataset's files can be read")


def test_a_file_of_another_user_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a", 1)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)

    assert cached_share([file]) == CachedShare(
        None, f"{file} belongs to another user, on whose files the kernel does not report"
    )


def test_a_system_that_claims_all_is_in_memory_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_cache._kernel_tells.cache_clear()
    monkeypatch.setattr(page_cache, "_resident_bytes", lambda _, size: size)
    try:
        assert cached_share([written(tmp_path / "a", 1)]) == CachedShare(
            None, "this system does not report what is in its page cache"
        )
    finally:
        page_cache._kernel_tells.cache_clear()


def test_many_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "MOST_FILES", 10)
    files = [written(tmp_path / str(number), 1) for number in range(25)]

    assert cached_share(files) == CachedShare(1.0)
