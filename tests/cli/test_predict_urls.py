"""``agent predict urls`` as a user runs it, with a server on this machine and local files."""

from __future__ import annotations

import re
import sqlite3
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from inferometer.agent.artifacts.web import fetch_image
from inferometer.manifests.files import BUILTIN
from tests.cli.conftest import served

DIGITS = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"


class Site(ThreadingHTTPServer):
    """Serves the digits by their number, and what goes wrong on the way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        with zipfile.ZipFile(DIGITS) as archive:
            names = sorted(archive.namelist(), key=lambda name: name.rpartition("/")[2])[:12]
            self.images = [archive.read(name) for name in names]
        self.classes = [name.rpartition("/")[0][-1] for name in names]
        self.stopped = threading.Event()
        self.pair = threading.Barrier(2)
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = self.requests = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site = self.server
        with site.lock:
            site.requests += 1
            site.under_way += 1
            site.most_under_way = max(site.most_under_way, site.under_way)
        kind, _, number = self.path[1:].partition("/")
        content = site.images[int(number or 0)]
        match kind:
            case "pair":  # answers only while another request is under way
                site.pair.wait(20)
            case "silent":
                site.stopped.wait(30)
        with site.lock:
            site.under_way -= 1
        match kind:
            case "digit" | "pair":
                self._answer(200, content)
            case "cut":
                self._answer(200, content[:40], length=len(content))
            case "page":
                self._answer(200, b"<html>no image</html>")
            case "moved":
                self._answer(302, b"", location=site.url(f"digit/{number}"))
            case "missing":
                self._answer(404, b"no")
            case "rude":
                self.wfile.write(b"HTTP/1.1 404 \x1b[2Jgone\r\n\r\n")

    def _answer(self, status: int, content: bytes, *, length: int | None = None, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stopped.set()
        server.pair.abort()
        server.shutdown()
        thread.join()


@pytest.fixture
def call(agent, tmp_path):
    """Runs ``agent predict urls`` over some lines."""

    def run(lines, *arguments):
        path = tmp_path / "list.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        return agent("predict", "urls", "--urls_file_path", path, "--framework_name=ONNXRuntime", *arguments)

    return run


def table(answer) -> list[list[str]]:
    """The rows of the table of predictions: input, label, probability."""
    lines = answer.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("input "))
    return [re.split(r"\s{2,}", line) for line in lines[start + 1 : lines.index("")]]


def failures(answer) -> list[str]:
    return [line for line in answer.stdout.splitlines() if line.startswith("failed: ")]


def stored(tmp_path: Path, collection: str) -> int:
    """The number of documents in a collection of the file database."""
    with closing(sqlite3.connect(tmp_path / "data" / "inferometer.db")) as database:
        known = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (collection,)).fetchone()
        return database.execute(f"SELECT COUNT(*) FROM {collection}").fetchone()[0] if known else 0


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet", "ONNXRuntime"])
def test_urls_redirects_and_files_are_predicted_in_the_order_of_the_list(call, site, tmp_path, framework):
    (tmp_path / "here.png").write_bytes(site.images[2])
    (tmp_path / "there.png").write_bytes(site.images[3])
    lines = [site.url("digit/0"), "# a comment", site.url("moved/1"), "", "here.png", tmp_path / "there.png"]
    answer = call(lines, "-b", "2", f"--framework_name={framework}")
    assert answer.code == 0, answer.stderr
    first = answer.stdout.splitlines()[0]
    assert f"on {framework}" in first
    assert first.endswith(f"over {tmp_path / 'list.txt'}, 4 inputs")
    rows = table(answer)
    assert [row[0].partition(":")[0] for row in rows] == ["1", "3", "5", "6"]
    assert rows[1][0] == f"3:{site.url('moved/1')}"
    assert [row[1] for row in rows] == site.classes[:4]
    assert all(0.5 < float(row[2]) <= 1 for row in rows)
    assert answer.figure("accuracy") == "not known: no input with a label was predicted"
    assert answer.figure("failures") == "0"
    assert "over 2 full batches" in answer.figure("latency")
    assert answer.figure("evaluation") in answer.figure("published")


def test_each_failure_has_its_own_reason_and_the_others_are_predicted(call, site):
    lines = [
        site.url("missing"), site.url("digit/0"), site.url("cut/1"), "gone.png", site.url("page"),
        "ftp://127.0.0.1/a.png", site.url("digit/1"),
    ]  # fmt: skip
    answer = call(lines, "-b", "3")
    assert answer.code == 1
    assert [(row[0][:2], row[1]) for row in table(answer)] == [
        ("2:", site.classes[0]),
        ("7:", site.classes[1]),
    ]
    expected = [
        (1, "read", "the server answered 404"),
        (3, "read", f"ended after 40 of {len(site.images[1])} bytes"),
        (4, "read", "No such file or directory"),
        (5, "preprocess", "cannot be decoded"),
        (6, "read", "is not an http or https address"),
    ]
    shown = failures(answer)
    assert len(shown) == len(expected)
    for line, (number, stage, reason) in zip(shown, expected, strict=True):
        assert line.startswith(f"failed: {number}:")
        assert f" in {stage}: " in line
        assert reason in line
    assert answer.figure("failures") == "5"
    assert answer.stderr.splitlines()[-1].startswith("failed inputs: 5; the first: 1:http://127.0.0.1:")


def test_server_that_says_nothing_costs_the_time_limit_and_no_more(call, site, monkeypatch):
    monkeypatch.setattr("inferometer.client.api.runner.fetch_image", partial(fetch_image, timeout_s=2))
    answer = call([site.url("silent"), site.url("digit/0")], "--num_warmup_url_parts=0")
    assert answer.code == 1
    assert [row[0][:2] for row in table(answer)] == ["2:"]
    (line,) = failures(answer)
    assert "did not answer within 2 s" in line


def test_what_a_server_says_cannot_steer_the_terminal(call, site):
    answer = call([site.url("rude")], "--num_warmup_url_parts=0")
    assert answer.code == 1
    (line,) = failures(answer)
    assert line.endswith("the server answered 404 \\x1b[2Jgone")
    assert "\x1b[2J" not in answer.stdout + answer.stderr


def test_fail_on_error_stops_at_the_first_failure_and_publishes_nothing(call, site, agent):
    lines = [site.url(f"digit/{number}") for number in range(4)] + [site.url("missing"), site.url("digit/5")]
    answer = call(lines, "-b", "2", "--num_warmup_url_parts=0", "--fail_on_error")
    assert answer.code == 1
    assert answer.stdout.count("\n") == 1, "what was to be measured, and no figure"
    last = answer.stderr.splitlines()[-1]
    assert "404" in last
    assert "stopped after 4 of 6 inputs" in last
    assert agent("info", "evaluation", "latency", "-f", "csv").rows == []


def test_downloads_run_beside_each_other_in_as_many_threads_as_prepare(call, site):
    lines = [site.url(f"pair/{number}") for number in range(12)]
    answer = call(lines, "-b", "4", "--num_warmup_url_parts=0", "--preprocess_threads=2")
    assert answer.code == 0, answer.stdout
    assert [row[1] for row in table(answer)] == site.classes
    assert site.most_under_way == 2


def test_list_is_repeated_and_cut_into_parts(call, site):
    lines = [site.url(f"digit/{number}") for number in range(3)]
    arguments = ("--duplicate_input=4", "-b", "2", "-p", "5", "--num_warmup_url_parts=0")
    rows = table(call(lines, *arguments, "--num_urls_parts=2"))
    assert [row[0].partition(":")[0] for row in rows] == [
        "1", "2", "3", "1.2", "2.2", "3.2", "1.3", "2.3", "3.3", "1.4",
    ]  # fmt: skip
    assert [row[1] for row in rows] == [*site.classes[:3] * 3, site.classes[0]]
    assert site.requests == 10
    assert len(table(call(lines, *arguments))) == 12


def test_urls_are_fetched_again_only_when_that_is_asked_for(call, site):
    lines = [site.url(f"digit/{number}") for number in range(6)]
    answer = call(lines, "-b", "2", "--num_warmup_url_parts=0", "--min_batches=7")
    assert answer.code == 0, answer.stderr
    assert "over 7 full batches" in answer.figure("latency")
    assert [row[1] for row in table(answer)] == site.classes[:6]
    assert site.requests == 14
    assert "but here it is not repeated; give target_ci" in call(lines, "--time_budget=5").error


def test_one_part_warms_up_unless_told_otherwise(call, site):
    lines = [site.url(f"digit/{number}") for number in range(6)]
    assert call(lines, "-b", "2").code == 0
    assert site.requests == 2 + 6
    assert call(lines, "-b", "2", "--num_warmup_url_parts=2").code == 0
    assert site.requests == (2 + 6) + (4 + 6)


def test_only_the_first_inputs_are_shown_and_the_rest_is_counted(call, site, tmp_path):
    (tmp_path / "0.png").write_bytes(site.images[0])
    answer = call(["0.png", "gone.png"], "--duplicate_input=25")
    assert answer.code == 1
    assert "… and 5 more predictions; --publish_predictions stores all in the database" in answer.stdout
    assert "… and 5 more failures" in answer.stdout
    assert len(failures(answer)) == 20
    assert answer.figure("failures") == "25"


def test_predictions_are_published_only_when_asked_for(call, site, tmp_path):
    (tmp_path / "0.png").write_bytes(site.images[0])
    assert call(["0.png"], "--duplicate_input=3").code == 0
    assert stored(tmp_path, "evaluation") == 1
    assert stored(tmp_path, "input_prediction") == 0
    assert call(["0.png"], "--duplicate_input=3", "--publish_predictions").code == 0
    assert stored(tmp_path, "input_prediction") == 3


def test_nothing_is_published_when_that_is_turned_off_and_predictions_are_still_shown(call, site, tmp_path):
    (tmp_path / "0.png").write_bytes(site.images[0])
    answer = call(["0.png"], "--publish=false")
    assert [row[1] for row in table(answer)] == [site.classes[0]]
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "list.txt cannot be read: No such file or directory"),
        (b"\n# nothing\n", "list.txt is empty"),
        (b"\x89PNG\r\n", "list.txt is not UTF-8 at byte 0"),
    ],
)
def test_list_that_is_none_is_refused_before_the_model_is_loaded(agent, tmp_path, content, part):
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    answer = agent("predict", "urls", "--urls_file_path", path)
    assert answer.code == 4
    assert part in answer.error
    assert answer.stdout == ""


def test_number_of_parts_that_makes_no_sense_is_refused_by_the_name_of_its_flag(call):
    for flag in (
        "--num_urls_parts=0",
        "--num_urls_parts=-2",
        "--duplicate_input=0",
        "--num_warmup_url_parts=-1",
    ):
        answer = call(["a.png"], flag)
        assert answer.code == 2
        assert flag.partition("=")[0].strip("-") in answer.error


def test_list_has_to_be_named(agent):
    answer = agent("predict", "urls")
    assert answer.code == 2
    assert "--urls_file_path" in answer.error


def test_served_agent_fetches_within_its_own_limits_and_files_are_read_here(
    call, site, served_agent, tmp_path
):
    (tmp_path / "here.png").write_bytes(site.images[1])
    lines = [site.url("digit/0"), "here.png"]
    answer = call(lines, f"--agent={served_agent}")
    assert answer.code == 1
    assert [(row[0], row[1]) for row in table(answer)] == [("2:here.png", site.classes[1])]
    (line,) = failures(answer)
    assert line.endswith("leads to this machine or a private network, which is not allowed")
    assert site.requests == 0
    with served("--allow_private_urls") as (address, _):
        answer = call([*lines, site.url("missing")], f"--agent={address}", "--num_warmup_url_parts=0")
    assert answer.code == 1
    assert [row[1] for row in table(answer)] == site.classes[:2]
    assert site.requests == 2
    (line,) = failures(answer)
    assert "the server answered 404" in line
