"""Plans in the page: what the API says of them, live, and what becomes of folders that are damaged."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from inferometer.client.web.plans import MOST_RUNS, PlansReader
from inferometer.evaluators.plans.reporting.asked import Asked
from inferometer.evaluators.plans.running.folder import Ended
from inferometer.evaluators.store.opening import open_store
from tests.page_plans import KeptRuns, keep_plan
from tests.page_samples import DATABASE, SCRIPT, keep, steady
from tests.web.conftest import Page, Stream, served

IDS = [steady(number).id for number in range(1, 8)]
VARIED = {"file_parts": [1, 16], "trial": [1, 2]}


@pytest.fixture(scope="module")
def plan(data: Path) -> KeptRuns:
    """Four cells, two of which are complete, one failed and was lost before, and one is in work."""
    kept = keep_plan(data, "grid", VARIED, description=SCRIPT)
    kept.end(0, Ended.COMPLETE, evaluations=[IDS[0]])
    kept.end(1, Ended.COMPLETE, evaluations=[IDS[1]])
    kept.lose(2, "its node went away")
    kept.end(2, Ended.OUT_OF_MEMORY, "used 3 GiB")
    kept.begin(3, "slurm/812")
    return kept


@contextmanager
def _reader(folder: Path, clock: Callable[[], float] = lambda: 0.0) -> Iterator[PlansReader]:
    """What reads plans, over the store of a data directory."""
    with closing(open_store(None, DATABASE, folder)) as store:
        yield PlansReader(folder, lambda: store, clock)


def _rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


@pytest.mark.usefixtures("plan")
def test_the_plans_are_listed_with_their_counts(page: Page) -> None:
    (found,) = page.get("/api/plans").json["plans"]

    changed = found.pop("changed")
    assert changed.endswith("+00:00")
    assert found == {
        "name": "grid",
        "description": SCRIPT,
        "problem": "",
        "state": "stopped",
        "total": 4,
        "counts": {"complete": 2, "out of memory": 1, "in work": 1},
    }


def test_a_plan_has_its_runs_those_that_are_not_complete_first(page: Page, plan: KeptRuns) -> None:
    runs = page.get("/api/plans/grid").json["runs"]

    assert [run["state"] for run in runs] == ["in work", "out of memory", "complete", "complete"]
    assert (runs[0]["job"], runs[0]["start"], runs[0]["duration_s"]) == ("slurm/812", None, None)
    assert runs[1] == {
        "key": plan.runs[2].key,
        "cell": "file_parts=16 trial=1",
        "repetition": 1,
        "command": "model_name=DigitsCNN file_parts=16 trial=1",
        "state": "out of memory",
        "reason": "used 3 GiB",
        "losses": ["its node went away"],
        "host": "node1",
        "job": "",
        "start": "2026-05-28T20:26:42+00:00",
        "duration_s": 2.5,
        "evaluations": [],
    }
    assert [run["evaluations"] for run in runs[2:]] == [[IDS[1]], [IDS[0]]]


@pytest.mark.usefixtures("plan")
def test_the_table_has_the_figures_of_the_reports(page: Page, told: Callable[..., Any]) -> None:
    found = page.get("/api/plans/grid?value=latency_ms_p50,latency_ms_p90").json
    reports = [told("info", "evaluation", "latency", "--id", each)[0] for each in IDS[:2]]

    rows = _rows(found["table"])
    assert [row["trial"] for row in rows] == [1, 2]
    for key in ("latency_ms_p50", "latency_ms_p90"):
        assert [row[key] for row in rows] == [pytest.approx(report[key]) for report in reports]
    low, high = (f"{reports[0][f'latency_ms_p50_{end}']:.3f}" for end in ("low", "high"))
    assert found["table"]["texts"][0][-2] == f"{reports[0]['latency_ms_p50']:.3f} [{low}, {high}]"
    assert found["notes"][0] == "2 of 4 runs are not complete, and are left out."
    assert [run["before"] for run in _rows(found["failures"])] == ["its node went away"]


@pytest.mark.usefixtures("plan")
def test_what_a_table_may_be_made_of_is_told(page: Page) -> None:
    choices = page.get("/api/plans/grid").json["choices"]

    assert [each["key"] for each in choices["dimensions"]] == ["trial"]
    assert {"key": "latency_ms_p50", "header": "p50 (ms)"} in choices["figures"]


@pytest.mark.usefixtures("plan")
def test_rows_columns_and_conditions_are_those_that_are_asked_for(page: Page) -> None:
    across = page.get("/api/plans/grid?columns=trial&rows=file_parts").json["table"]
    (row,) = _rows(across)
    keys = [f"latency_ms_p50[trial={number}]" for number in (1, 2)]
    chosen = page.get("/api/plans/grid?where=trial%20%3D%202&where=latency_ms_p50%20%3E%200").json["table"]

    assert list(row) == ["file_parts", *keys]
    assert row[keys[0]] < row[keys[1]]
    assert len(chosen["rows"]) == 1
    # rows that would fall into one place are told apart by what they differ in
    assert [row["trial"] for row in _rows(page.get("/api/plans/grid?rows=file_parts").json["table"])] == [
        1,
        2,
    ]


@pytest.mark.usefixtures("plan")
def test_objectives_show_the_front_and_its_picture(page: Page) -> None:
    found = page.get("/api/plans/grid?minimize=latency_ms_p50&maximize=throughput_inputs_per_s&rows=trial")
    rows = _rows(found.json["table"])
    [chart] = found.json["charts"]

    assert [(row["trial"], row["front"]) for row in rows] == [(1, True), (2, False)]
    assert "p50" in chart["x_axis"]
    assert "throughput" in chart["y_axis"]
    ranked = _rows(page.get("/api/plans/grid?maximize=latency_ms_p50").json["table"])
    assert [row["trial"] for row in ranked] == [2, 1]


@pytest.mark.usefixtures("plan")
def test_scaling_over_a_variable_has_its_picture(page: Page) -> None:
    found = page.get("/api/plans/grid?scaling=strong&over=trial").json

    assert [row["trial"] for row in _rows(found["table"])] == [1, 2]
    assert len(found["charts"]) == 1
    assert "unknown" not in (found["refused"] or "")


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("value=latency_ms_p5", "latency_ms_p50"),
        ("rows=trail", "trial"),
        ("where=trial", "is not a condition"),
        ("maximize=p50&minimize=latency_ms_p50", "no cell has"),
        ("where=trial%20%3E%209", "no cell fulfils trial > 9"),
        ("columns=%3Cscript%3E", "no cell has"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_and_the_runs_are_there(
    page: Page, query: str, reason: str
) -> None:
    reply = page.get(f"/api/plans/grid?{query}")

    assert reply.status == 200
    assert reason in reply.json["refused"]
    assert reply.json["table"] is None
    assert len(reply.json["runs"]) == 4


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    "name", ["none", "..", "%2e%2e", "..%2fplans%2fgrid", "grid%2f..%2fgrid", "%00", "grid%0a", "a" * 300]
)
def test_only_names_of_plans_are_looked_for(page: Page, name: str) -> None:
    assert page.get(f"/api/plans/{name}").status == 404


def test_an_unknown_scaling_is_refused(page: Page) -> None:
    reply = page.get("/api/plans/grid?scaling=strng")

    assert reply.status == 400
    assert reply.json == {"error": '"strng" is not a scaling; did you mean "strong"?'}


def test_too_many_names_are_refused(page: Page) -> None:
    reply = page.get(f"/api/plans/grid?rows={','.join(f'n{n}' for n in range(40))}")

    assert (reply.status, reply.json["error"]) == (400, "rows has 40 values; give at most 32")


def test_the_pages_of_plans_are_served(page: Page) -> None:
    assert [page.get(path).status for path in ("/plans", "/plans/grid")] == [200, 200]
    assert page.get("/api/plans", method="POST").status == 405


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"name": "x", "desc',
        b"[]",
        b'{"name": "x", "description": "", "repeat": 1, "cells": [7]}',
        b'{"name": "x", "description": "", "repeat": "1", "cells": []}',
        b'{"name": "x", "description": "", "repeat": 1, "cells": [{"id": "a", "words": [], "options": 1, '
        b'"parameters": {}}]}',
    ],
)
def test_a_plan_whose_cells_are_damaged_has_its_line(tmp_path: Path, content: bytes) -> None:
    kept = keep_plan(tmp_path, "cut", VARIED)
    kept.begin(0)
    kept.folder.cells.write_bytes(content)
    keep_plan(tmp_path, "whole", VARIED)

    with _reader(tmp_path) as plans:
        cut, whole = plans.plans()
        found = plans.plan("cut", Asked())

    assert (cut["name"], cut["total"]) == ("cut", 0)
    assert "agent plan resume" in cut["problem"]
    assert (found["problem"], found["runs"], found["table"]) == (cut["problem"], [], None)
    assert (whole["problem"], whole["counts"]) == ("", {"waiting": 4})


def test_a_plan_without_kept_cells_says_what_keeps_them(tmp_path: Path) -> None:
    kept = keep_plan(tmp_path, "old", VARIED)
    kept.begin(0)
    kept.folder.cells.unlink()
    (tmp_path / "plans" / "machines").mkdir()
    (tmp_path / "plans" / ".hidden").mkdir()
    (tmp_path / "plans" / "file").touch()

    with _reader(tmp_path) as plans:
        assert [(each["name"], bool(each["problem"])) for each in plans.plans()] == [("old", True)]


def test_damaged_lines_of_a_journal_are_left_out(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1)])
    kept = keep_plan(tmp_path, "torn", VARIED)
    kept.end(0, Ended.COMPLETE, evaluations=[IDS[0]])
    lines = [
        b"\x00\xff\n",
        b"7\n",
        b'{"run": [], "event": "ended"}\n',
        _ended(kept, 1, start_ns="x"),
        _ended(kept, 1, evaluations=[1]),
        _ended(kept, 1, ended="gone"),
    ]
    with (kept.folder.path / "journal.jsonl").open("ab") as file:
        file.writelines(lines)
    kept.end(2, Ended.FAILED, "exit code 1")

    with _reader(tmp_path) as plans:
        found = plans.plan("torn", Asked())

    assert found["counts"] == {"complete": 1, "failed": 1, "waiting": 2}
    assert len(found["table"]["rows"]) == 1


def _ended(kept: KeptRuns, number: int, **given: Any) -> bytes:
    key = kept.runs[number].key
    return (
        json.dumps(
            {"run": key, "event": "ended", "result": {"key": key, "ended": "complete", **given}}
        ).encode()
        + b"\n"
    )


def test_evaluations_that_the_database_lacks_are_told_until_they_are_there(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1)])
    kept = keep_plan(tmp_path, "other", VARIED)
    kept.end(0, Ended.COMPLETE, evaluations=[IDS[0]])
    kept.end(1, Ended.COMPLETE, evaluations=[IDS[1]])

    with _reader(tmp_path) as plans:
        before = plans.plan("other", Asked())
        keep(tmp_path, [steady(2, 1.4)])
        after = plans.plan("other", Asked())

    assert kept.runs[1].key in before["notes"][1]
    assert [len(found["table"]["rows"]) for found in (before, after)] == [1, 2]
    assert not any("lacks" in note for note in after["notes"])


def test_a_damaged_evaluation_is_named_in_the_notes(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1), steady(2)])
    kept = keep_plan(tmp_path, "hurt", VARIED)
    for number in range(2):
        kept.end(number, Ended.COMPLETE, evaluations=[IDS[number]])
    with closing(sqlite3.connect(tmp_path / f"{DATABASE}.db")) as database:
        database.execute("DELETE FROM performance WHERE json_extract(data, '$.evaluation_id') = ?", [IDS[1]])
        database.commit()

    with _reader(tmp_path) as plans:
        found = plans.plan("hurt", Asked())

    assert len(found["table"]["rows"]) == 1
    assert [IDS[1] in note for note in found["notes"] if note.startswith("Left out ")] == [True]


def test_evaluations_are_read_for_a_moment_at_a_time(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1), steady(2), steady(3), steady(4)])
    kept = keep_plan(tmp_path, "long", VARIED)
    for number in range(4):
        kept.end(number, Ended.COMPLETE, evaluations=[IDS[number]])
    times = iter(range(1000))

    with _reader(tmp_path, lambda: next(times)) as plans:
        answers = [plans.plan("long", Asked()) for _ in range(4)]

    assert [each["reading"] and each["reading"]["done"] for each in answers] == [1, 2, 3, None]
    assert [each["counts"] for each in answers] == [{"complete": 4}] * 4
    assert [each["table"] is None for each in answers] == [True, True, True, False]


def test_of_many_runs_those_that_are_not_complete_are_listed(tmp_path: Path) -> None:
    kept = keep_plan(tmp_path, "many", {"batch_size": list(range(1, MOST_RUNS + 101))})
    kept.end(MOST_RUNS + 50, Ended.TIMEOUT, "longer than 1 s")
    kept.end(0, Ended.COMPLETE)

    with _reader(tmp_path) as plans:
        found = plans.plan("many", Asked())

    assert found["counts"] == {"complete": 1, "timeout": 1, "waiting": MOST_RUNS + 98}
    assert len(found["runs"]) == MOST_RUNS
    assert found["runs"][0]["reason"] == "longer than 1 s"


def test_what_happens_to_a_plan_is_told(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1)])
    with served(tmp_path) as page, closing(Stream(page)) as stream:
        assert stream.until("plans", lambda _: True) == []
        kept = keep_plan(tmp_path, "grid", VARIED)
        (told,) = stream.until("plans", bool)
        assert (told["state"], told["counts"]) == ("stopped", {"waiting": 4})
        with kept.folder.lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stream.until("plans", lambda plans: plans[0]["state"] == "running")
            kept.begin(0)
            stream.until("plans", lambda plans: plans[0]["counts"] == {"in work": 1, "waiting": 3})
            kept.end(0, Ended.COMPLETE, evaluations=[IDS[0]])
            stream.until("plans", lambda plans: plans[0]["counts"] == {"complete": 1, "waiting": 3})
            assert len(page.get("/api/plans/grid").json["table"]["rows"]) == 1
        stream.until("plans", lambda plans: plans[0]["state"] == "stopped")


def test_a_plan_that_is_complete_says_so_until_its_folder_goes(tmp_path: Path) -> None:
    kept = keep_plan(tmp_path, "one", {"batch_size": [1]})
    kept.end(0, Ended.COMPLETE)
    with _reader(tmp_path) as plans:
        assert [each["state"] for each in plans.plans()] == ["complete"]
        kept.folder.path.rename(tmp_path / "gone")
        assert plans.plans() == []
