"""A journal that another process writes, followed line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferometer.evaluators.plans.running.folder import (
    Ended,
    Journal,
    JournalFollower,
    PlanFolder,
    Result,
    RunFolder,
    end_orphan,
    journal_file,
    read_history,
    read_result,
)
from inferometer.manifests.errors import ConfigurationError


def test_what_is_added_is_read_and_nothing_twice(tmp_path: Path) -> None:
    journal, follower = Journal(tmp_path), JournalFollower(tmp_path)
    journal.submitted("a-1", "local/1")
    assert follower.look()
    assert not follower.look()
    journal.lost("a-1", "killed", counts=True)
    journal.submitted("a-1", "local/2")
    journal.ended(Result("b-1", Ended.COMPLETE))
    assert follower.look()

    assert {key: each.state for key, each in follower.runs.items()} == {"a-1": "in work", "b-1": "complete"}
    assert (follower.runs["a-1"].losses, follower.runs["a-1"].job) == (["killed"], "local/2")
    assert follower.runs == read_history(tmp_path)


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    Journal(tmp_path).submitted("a-1", "local/1")
    whole = journal_file(tmp_path).read_bytes()
    journal_file(tmp_path).write_bytes(whole[:30])
    follower = JournalFollower(tmp_path)

    assert follower.look()
    assert follower.runs == {}
    with journal_file(tmp_path).open("ab") as file:
        file.write(whole[30:-1])
    assert follower.look()
    assert follower.runs["a-1"].job == "local/1"
    with journal_file(tmp_path).open("ab") as file:
        file.write(b'\n{"damaged\n' + whole.replace(b"a-1", b"b-1"))
    assert follower.look()
    assert follower.runs.keys() == {"a-1", "b-1"}


def test_another_journal_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    Journal(tmp_path).submitted("a-1", "local/1")
    follower = JournalFollower(tmp_path)
    follower.look()
    journal_file(tmp_path).unlink()
    assert follower.look()
    assert follower.runs == {}
    assert not follower.look()
    other = Journal(tmp_path)
    for number in range(5):
        other.submitted(f"b-{number}", "local/1")
    assert follower.look()
    assert follower.runs.keys() == {f"b-{number}" for number in range(5)}
    journal_file(tmp_path).write_text(journal_file(tmp_path).read_text().replace("b-", "c-") * 2)
    assert follower.look()
    assert follower.runs.keys() == {f"c-{number}" for number in range(5)}


DEEP = "[" * 100_000


def test_a_line_nested_without_end_is_left_out(tmp_path: Path) -> None:
    Journal(tmp_path).submitted("a-1", "local/1")
    with journal_file(tmp_path).open("a") as file:
        file.write(DEEP + "\n")
    Journal(tmp_path).submitted("b-1", "local/2")
    assert list(read_history(tmp_path)) == ["a-1", "b-1"]


def test_files_of_a_plan_nested_without_end_are_as_if_damaged(tmp_path: Path) -> None:
    plan, run = PlanFolder(tmp_path), RunFolder(tmp_path / "run")
    run.path.mkdir()
    for path in (plan.cells, run.result, run.path / "run.json", run.path / "processes.json"):
        path.write_text(DEEP)
    assert plan.kept() is None
    assert read_result(run.result) is None
    end_orphan(run)
    with pytest.raises(ConfigurationError, match="is not the folder of a run"):
        run.read()
    for content, told in (("{}", "key: Field required"), ("[]", "run.json: Input should be a .*")):
        (run.path / "run.json").write_text(content)
        with pytest.raises(ConfigurationError, match=rf"run: is not the folder of a run: {told}$"):
            run.read()
