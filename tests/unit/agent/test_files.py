"""Files that stay whole: replaced in one step, added to line by line, and locked."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from inferometer.agent.files import LineJournal, is_locked, lock, replacing
from inferometer.manifests.errors import OutputError


def test_a_file_is_replaced_once_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path, synced=True, mode=0o600) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_the_old_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with suppress(RuntimeError), replacing(path) as file:
        file.write(b"new")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_takes_the_place_of_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with replacing(path, new=True) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), replacing(path, new=True) as file:
        file.write(b"second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_has_left_is_overwritten_where_nobody_else_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    (tmp_path / ".a.json.part").write_bytes(b"long, and cut off")
    with replacing(path, alone=True) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_no_file_is_written_through_a_link_beside_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"not to be touched")
    (tmp_path / ".a.json.part").symlink_to(tmp_path / "other")
    with replacing(tmp_path / "a.json", alone=True) as file:
        file.write(b"whole")
    assert (tmp_path / "other").read_bytes() == b"not to be touched"
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert not (tmp_path / "a.json").is_symlink()


def test_a_lock_keeps_others_out_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path), path.open("rb") as other:
        assert is_locked(other)
        with pytest.raises(BlockingIOError):
            lock(path)
    with path.open("rb") as other:
        assert not is_locked(other)


def test_a_lock_that_a_network_file_system_refuses_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / "lock")
    with (tmp_path / "lock").open("rb") as file:
        assert is_locked(file)


def test_who_waited_for_a_lock_that_was_removed_locks_the_new_file(tmp_path: Path) -> None:
    path, waiting, found = tmp_path / "lock", threading.Event(), []

    def wait() -> None:
        with lock(path, waiting.set) as file:
            found.append(os.fstat(file.fileno()).st_ino == path.stat().st_ino)

    with lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(10)
        path.unlink()
    thread.join(10)
    assert found == [True]


def test_a_line_that_was_cut_off_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "journal.jsonl"
    LineJournal(path, synced=True).add({"a": 1})
    with path.open("ab") as file:
        file.write(b'{"a": 2')
    LineJournal(path, synced=False).add({"a": 3})
    lines = path.read_bytes().splitlines()
    assert [json.loads(lines[0]), json.loads(lines[2])] == [{"a": 1}, {"a": 3}]
    LineJournal(path, synced=False, anew=True)
    assert path.read_bytes() == b""


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="the journal cannot be written: Is a directory"):
        LineJournal(tmp_path, synced=False)
