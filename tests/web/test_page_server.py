"""The page over real HTTP: its documents say what the reports say, and only who may read it reads it."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from inferometer.agent.server.tls import ServerTls
from inferometer.client.api.progress import RunningFile
from inferometer.client.web.page import MODULES, SERVED
from inferometer.evaluators.jobs.job import JobStart
from inferometer.evaluators.store.evaluation_store import EvaluationStore
from inferometer.manifests.errors import StoreError
from tests.certificates import Authority
from tests.page_samples import DATABASE, IMAGE, SCRIPT, keep, samples, steady
from tests.web.conftest import Page, Stream, served

Told = Callable[..., Any]
SECRET = "correct horse"
IDS = [each.id for each in samples()]
LATENCY = ("latency", "--include_profiled", "--include_interrupted")


def _values(table: dict[str, Any]) -> list[dict[str, Any]]:
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def test_the_table_has_the_rows_of_the_report_with_the_texts_of_its_table(page: Page, told: Told) -> None:
    found = page.get("/api/evaluations").json
    keys = [column["key"] for column in found["columns"]]
    rows = [dict(zip(keys, row["values"], strict=True)) for row in found["rows"]]
    (texts,) = (row["texts"] for row in found["rows"] if row["id"] == IDS[0])

    assert rows == told("info", "evaluations", "--include_interrupted")
    assert (found["total"], found["matched"]) == (len(IDS), len(IDS))
    assert texts[keys.index("latency_ms_p50")] == f"{rows[-1]['latency_ms_p50']:.3f}"
    assert texts[keys.index("created_at")] == "2026-05-01 12:01:00"


@pytest.mark.parametrize("evaluation_id", IDS)
def test_every_figure_of_an_evaluation_is_that_of_its_report(
    page: Page, told: Told, evaluation_id: str
) -> None:
    found = page.get(f"/api/evaluations/{evaluation_id}").json
    asked = {
        "latency": LATENCY,
        "accuracy": ("accuracy", "--include_interrupted"),
        "workload": ("workload", "--include_interrupted"),
        "parts": ("parts", "--include_interrupted"),
        "max_qps": ("max-qps",),
        "layers": ("layers", "--include_interrupted"),
        "layer_tree": ("layer_tree", "--include_interrupted"),
        "cuda_launch": ("cuda_launch", "--include_interrupted"),
        "probes": ("max-qps", "--probes"),
    }
    reports = {
        name: told("info", "evaluation", *words, "--id", evaluation_id) for name, words in asked.items()
    }

    assert found["figures"]
    for figure in found["figures"]:
        (row,) = reports[figure["report"]]
        key = figure["key"]
        expected = {"value": row[key]}
        expected |= {end: row[f"{key}_{end}"] for end in ("low", "high") if f"{key}_{end}" in row}
        assert {name: figure[name] for name in expected} == expected, key
    for table in found["tables"]:
        rows = [{key: row[key] for key in values} for row, values in _paired(table, reports)]
        assert _values(table) == rows, table["report"]


def _paired(table: dict[str, Any], reports: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    return zip(reports[table["report"]], _values(table), strict=True)


def test_a_traced_evaluation_has_its_layers_and_a_search_its_probes(page: Page) -> None:
    layers, search = (page.get(f"/api/evaluations/{IDS[place]}").json for place in (3, 6))

    assert {table["report"] for table in layers["tables"]} == {"layers", "layer_tree", "cuda_launch"}
    assert [table["report"] for table in search["tables"]] == ["probes"]
    assert search["charts"][0]["x_axis"] == "rate (queries/s)"


def test_the_times_of_all_batches_are_drawn(page: Page, told: Told) -> None:
    chart = page.get(f"/api/evaluations/{IDS[0]}").json["charts"][0]
    rows = told("info", "evaluation", "duration", "--id", IDS[0])

    (series,) = chart["series"]
    assert chart["y_axis"] == "predict (ms)"
    assert series["x"] == [row["batch"] for row in rows]
    assert series["y"] == [pytest.approx(row["predict_us"] / 1000, rel=1e-5) for row in rows]


def test_a_comparison_is_that_of_the_command(page: Page, told: Told) -> None:
    found = page.get(f"/api/compare?a={IDS[0]}&b={IDS[1][:8]}").json

    assert _values(found) == told("compare", IDS[0], IDS[1])
    assert found["conclusion"].startswith("REGRESSION: B is worse than A: p50 is 1.4")
    assert found["worse"] is True
    assert [series["name"] for series in found["chart"]["series"]] == ["A", "B"]


def test_two_that_cannot_be_compared_say_why(page: Page) -> None:
    found = page.get(f"/api/compare?a={IDS[0]}&b={IDS[4]}").json

    assert "compare evaluations of the same kind" in found["error"]
    assert (
        page.get(f"/api/compare?a={IDS[0]}&b={IDS[0]}").json["error"].endswith("compare it with another one")
    )


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("framework_name=pytorch&limit=2", (7, 6)),
        ("kind=workload", (6, 5)),
        ("stability=stable&kind=batches", (4, 2, 1)),
        ("batch_size=8", (8,)),
        (f"model_name={quote(SCRIPT)}", (3,)),
        ("offset=7", (2, 1)),
        ("sort=latency_ms_p50&kind=batches&stability=stable", (2, 4, 1)),
        ("order=ascending&limit=3", (1, 2, 3)),
        (f"id={IDS[3][:8]}", (4,)),
        ("id=nothing", ()),
    ],
)
def test_the_table_is_filtered_sorted_and_paged(page: Page, query: str, numbers: tuple[int, ...]) -> None:
    found = page.get(f"/api/evaluations?{query}").json

    expected = [IDS[number - 1] for number in numbers]
    if "sort=latency" in query:
        values = [row["values"][5] for row in found["rows"]]
        assert values == sorted(values, reverse=True)
        assert {row["id"] for row in found["rows"]} == set(expected)
    else:
        assert [row["id"] for row in found["rows"]] == expected


def test_a_page_says_how_many_match(page: Page) -> None:
    found = page.get("/api/evaluations?framework_name=PyTorch&limit=2&offset=1").json

    assert (len(found["rows"]), found["offset"], found["matched"], found["total"]) == (2, 1, 7, 9)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=100000", "offset=-1", "batch_size=x", "sort=nothing", "kind=x", "stability=x"]
)
def test_what_makes_no_sense_is_refused_in_one_line(page: Page, query: str) -> None:
    reply = page.get(f"/api/evaluations?{query}")

    assert reply.status == 400
    assert query.partition("=")[0] in reply.json["error"]
    assert "\n" not in reply.json["error"]


def test_what_is_not_there_is_not_found(page: Page) -> None:
    assert page.get("/api/evaluations/none").status == 404
    assert page.get("/static/..%2fassets.py").status == 404
    assert page.get("/static/page.html").status == 404
    assert page.get("/else").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(page: Page, method: str) -> None:
    for path in ("/", "/api/evaluations", f"/api/evaluations/{IDS[0]}", "/api/events"):
        assert page.get(path, method=method).status == 405


def test_every_link_shows_the_page_whose_policy_allows_its_own_files_only(page: Page) -> None:
    for path in ("/", f"/evaluations/{IDS[0]}", "/compare?a=1&b=2"):
        reply = page.get(path)
        policy = reply.headers["content-security-policy"]
        assert reply.status == 200
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        text = reply.body.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style| style=| on\w+=|https?://", text)


def test_every_module_is_served_and_imports_only_what_is_served(page: Page) -> None:
    for name in SERVED:
        reply = page.get(f"/static/{name}")
        assert reply.status == 200, name
        assert reply.headers["content-type"].endswith("charset=utf-8")
        if name in MODULES:
            imported = re.findall(r'^import .* from "\./(.*)";$', reply.body.decode(), re.MULTILINE)
            assert {*imported} <= {*MODULES[: MODULES.index(name)]}


def test_what_looks_like_markup_is_a_value_of_json(page: Page) -> None:
    found = page.get(f"/api/evaluations/{IDS[2]}").json

    assert found["title"] == f"{SCRIPT} 1.0"
    assert IMAGE in json.dumps(found["facts"])


def test_a_name_that_leads_here_by_rebinding_is_refused(page: Page) -> None:
    port = urlsplit(page.url).port

    assert page.get("/api/evaluations", Host="evil.example").status == 421
    assert page.get("/api/evaluations", Host=f"evil.example:{port}").status == 421
    assert page.get("/", Host=f"localhost:{port}").status == 200
    assert page.get("/", Host=f"[::1]:{port}").status == 200


def test_with_a_secret_nothing_is_read_without_it(data: Path) -> None:
    with served(data, secret=SECRET) as page:
        for path in ("/", "/static/main.js", "/api/evaluations", "/api/events", "/else"):
            refused = page.get(path)
            assert refused.status == 401, path
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert "content-security-policy" in refused.headers
        wrong = base64.b64encode(b"user:wrong").decode()
        right = base64.b64encode(f"anybody:{SECRET}".encode()).decode()
        for shown in (f"Basic {wrong}", "Basic %%%", "Bearer wrong", f"bearer {SECRET}x", SECRET):
            assert page.get("/", Authorization=shown).status == 401, shown
        assert page.get("/", Authorization=f"Basic {right}").status == 200
        assert page.get("/api/evaluations", Authorization=f"Bearer {SECRET}").status == 200
        assert page.get("/", Authorization=f"Basic {right}", Host="name.example").status == 200


def test_over_tls_it_is_read_with_its_certificate(data: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("127.0.0.1")
    with served(data, tls=ServerTls(files.cert, files.key, None)) as page:
        assert page.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(authority.ca))
        with urllib.request.urlopen(f"{page.url}/api/about", context=context, timeout=30) as answer:
            assert json.loads(answer.read())["source"].endswith(".db")


def test_a_new_evaluation_and_a_running_one_are_told(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1)])
    running = RunningFile(tmp_path)
    with served(tmp_path) as page, closing(Stream(page)) as stream, closing(running):
        assert stream.until("evaluations", lambda _: True) == {"total": 1}
        assert stream.until("running", lambda _: True) == []
        running.begin(JobStart(steady(2).system, "digits", 100))
        (begun,) = stream.until("running", bool)
        keep(tmp_path, [steady(2)])
        running.close()
        stream.until("evaluations", lambda value: value == {"total": 2})
        stream.until("running", lambda value: value == [])

    assert (begun["title"], begun["detail"]) == ("DigitsCNN 1.0", "PyTorch 2.13.0 · cpu · digits, 100 inputs")


def test_a_store_that_cannot_be_read_is_told(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise StoreError("the disk is gone")

    monkeypatch.setattr(EvaluationStore, "count", fail)
    reply = page.get("/api/evaluations")

    assert (reply.status, reply.json) == (503, {"error": "the disk is gone"})


def test_an_evaluation_that_is_damaged_is_left_out_and_named(tmp_path: Path) -> None:
    keep(tmp_path, [steady(1), steady(2)])
    with closing(sqlite3.connect(tmp_path / f"{DATABASE}.db")) as database:
        database.execute("DELETE FROM performance WHERE json_extract(data, '$.evaluation_id') = ?", [IDS[1]])
        database.commit()
    with served(tmp_path) as page:
        for query in ("", "?sort=latency_ms_p50"):
            found = page.get(f"/api/evaluations{query}").json
            assert [row["id"] for row in found["rows"]] == [IDS[0]]
            assert [IDS[1] in reason for reason in found["unreadable"]] == [True]
