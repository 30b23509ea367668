"""Downloads from a server on this machine that is slow, stops, lies, redirects or refuses."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from file_server import Answer, FileServer, running_file_server

from inferometer.agent.artifacts import web as web_requests
from inferometer.agent.artifacts.downloads import Downloader, DownloadLimits, DownloadProgress, PartialFile
from inferometer.manifests.errors import ArtifactUnavailableError

CONTENT = os.urandom(300_000)
PATIENCE = {"connect_timeout_s": 5.0, "read_timeout_s": 5.0}


class Download:
    """Downloads into one partial file, and keeps what happens.

    Attributes:
        partial: The file.
        waits_s: How long was waited between tries.
        progress: What was told.
    """

    def __init__(self, folder: Path) -> None:
        self.partial = PartialFile(folder / "file")
        self.waits_s: list[float] = []
        self.progress: list[DownloadProgress] = []

    def __call__(self, url: str, **limits: float) -> bool:
        chosen = DownloadLimits(**{**PATIENCE, **limits})  # type: ignore[arg-type]
        return Downloader(chosen, self.progress.append, self.waits_s.append).download(url, self.partial)

    def refused(self, url: str, **limits: float) -> str:
        with pytest.raises(ArtifactUnavailableError) as caught:
            self(url, **limits)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    @property
    def content(self) -> bytes:
        return self.partial.path.read_bytes()


@pytest.fixture
def download(tmp_path: Path) -> Download:
    return Download(tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(CONTENT),
        Answer(CONTENT, chunked=True),
        Answer(CONTENT, length=False),
        Answer(CONTENT, etag=""),
        Answer(b""),
    ],
    ids=["length", "chunked", "until-closed", "no-etag", "empty"],
)
def test_a_file_is_downloaded_whole(file_server: FileServer, download: Download, answer: Answer) -> None:
    assert download(file_server.serve("/a", answer)) is False
    assert download.content == answer.content
    assert "Range" not in file_server.asked[0].headers
    assert file_server.asked[0].headers["Accept-Encoding"] == "identity"


def test_characters_that_no_url_has_are_escaped(file_server: FileServer, download: Download) -> None:
    file_server.serve("/a%20b/%C3%A9?x=%C3%BC", CONTENT)
    download(f"{file_server.url}/a b/é?x=ü#part")
    assert download.content == CONTENT


def test_progress_is_told_until_the_end(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", CONTENT)
    download(url)
    *before, last = download.progress
    assert [p.done_bytes for p in before] == sorted(p.done_bytes for p in before)
    assert (before[0].done_bytes, before[-1].done_bytes) == (0, len(CONTENT))
    assert {(p.url, p.total_bytes, p.ended) for p in before} == {(url, len(CONTENT), False)}
    assert (last.url, last.done_bytes, last.ended) == (url, len(CONTENT), True)


def test_the_end_is_told_of_a_download_that_fails_too(file_server: FileServer, download: Download) -> None:
    download.refused(f"{file_server.url}/nothing")
    assert [p.ended for p in download.progress] == [True]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_download_that_is_cut_goes_on_where_it_was(
    file_server: FileServer, download: Download, chunked: bool
) -> None:
    cut = Answer(CONTENT, cut_after=100_000, chunked=chunked)
    assert download(file_server.serve("/a", cut, Answer(CONTENT))) is True
    assert download.content == CONTENT
    assert file_server.asked[1].headers["Range"] == "bytes=100000-"
    assert file_server.asked[1].headers["If-Range"] == '"1"'
    assert download.waits_s == [0.5]


def test_it_goes_on_in_another_process_too(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", Answer(CONTENT, cut_after=100_000), Answer(CONTENT))
    assert download.refused(url, tries=1).startswith("ended after 100000 of 300000 bytes")
    assert download.partial.size == 100_000
    again = Download(download.partial.path.parent)
    assert again(url) is True
    assert (again.content, file_server.asked[1].headers["Range"]) == (CONTENT, "bytes=100000-")


def test_what_was_there_as_a_whole_is_not_asked_for_again(
    file_server: FileServer, download: Download
) -> None:
    url = file_server.serve("/a", CONTENT)
    download(url)
    assert download(url) is True
    assert file_server.count("/a") == 1


def test_a_file_that_has_changed_meanwhile_is_begun_anew(file_server: FileServer, download: Download) -> None:
    changed = os.urandom(200_000)
    url = file_server.serve("/a", Answer(CONTENT, cut_after=100_000), Answer(changed, etag='"2"'))
    assert download(url) is False
    assert download.content == changed


def test_a_part_of_a_changed_file_is_not_taken(file_server: FileServer, download: Download) -> None:
    part = Answer(
        CONTENT[100_000:], status=206, headers={"ETag": '"2"', "Content-Range": "bytes 100000-299999/300000"}
    )
    url = file_server.serve("/a", Answer(CONTENT, cut_after=100_000), part, Answer(CONTENT, etag='"2"'))
    assert download(url) is False
    assert download.content == CONTENT
    assert "Range" not in file_server.asked[2].headers


@pytest.mark.parametrize("extent", ["bytes 5-299999/300000", "rubbish", ""])
def test_another_part_than_was_asked_for_is_not_taken(
    file_server: FileServer, download: Download, extent: str
) -> None:
    part = Answer(CONTENT[5:], status=206, headers={"Content-Range": extent})
    download(file_server.serve("/a", Answer(CONTENT, cut_after=100_000), part, Answer(CONTENT)))
    assert download.content == CONTENT


def test_a_smaller_part_than_was_asked_for_is_taken_and_the_rest_asked_for(
    file_server: FileServer, download: Download
) -> None:
    part = Answer(
        CONTENT[100_000:200_000], status=206, headers={"Content-Range": "bytes 100000-199999/300000"}
    )
    url = file_server.serve("/a", Answer(CONTENT, cut_after=100_000), part, Answer(CONTENT))
    assert download(url) is True
    assert file_server.asked[2].headers["Range"] == "bytes=200000-"
    assert download.content == CONTENT


def test_a_part_of_what_was_at_another_url_is_not_used(file_server: FileServer, download: Download) -> None:
    download.refused(file_server.serve("/a", Answer(CONTENT, cut_after=100_000)), tries=1)
    other = os.urandom(300_000)
    assert download(file_server.serve("/b", other)) is False
    assert download.content == other


@pytest.mark.parametrize("answer", [{"etag": ""}, {"etag": 'W/"1"'}, {"ranges": False}])
def test_a_server_that_cannot_go_on_sends_all_again(
    file_server: FileServer, download: Download, answer: dict[str, object]
) -> None:
    cut = Answer(CONTENT, cut_after=100_000, **answer)  # type: ignore[arg-type]
    assert download(file_server.serve("/a", cut, Answer(CONTENT, **answer))) is False  # type: ignore[arg-type]
    assert download.content == CONTENT


def test_the_date_of_a_file_will_do_to_go_on(file_server: FileServer, download: Download) -> None:
    date = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
    cut = Answer(CONTENT, cut_after=100_000, etag="", headers=date)
    rest = Answer(
        CONTENT[100_000:], status=206, headers={**date, "Content-Range": "bytes 100000-299999/300000"}
    )
    assert download(file_server.serve("/a", cut, rest)) is True
    assert file_server.asked[1].headers["If-Range"] == date["Last-Modified"]
    assert download.content == CONTENT


def test_more_than_the_server_now_has_is_thrown_away(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", Answer(CONTENT, cut_after=100_000), Answer(CONTENT[:50_000]))
    assert download(url) is False
    assert download.content == CONTENT[:50_000]


def test_a_slow_server_is_waited_for(file_server: FileServer, tmp_path: Path) -> None:
    first_half = threading.Event()
    partial = PartialFile(tmp_path / "file")

    def go_on(progress: DownloadProgress) -> None:
        if progress.done_bytes >= len(CONTENT) // 2:
            first_half.set()

    url = file_server.serve("/a", Answer(CONTENT, hold=first_half))
    assert Downloader(DownloadLimits(**PATIENCE), go_on).download(url, partial) is False
    assert partial.path.read_bytes() == CONTENT
    assert file_server.count("/a") == 1


def test_a_server_that_falls_silent_is_given_up_and_asked_for_the_rest(
    file_server: FileServer, download: Download
) -> None:
    never = threading.Event()
    url = file_server.serve("/a", Answer(CONTENT, hold=never), Answer(CONTENT))
    assert download(url, read_timeout_s=1.0) is True
    never.set()
    assert file_server.asked[1].headers["Range"] == f"bytes={len(CONTENT) // 2}-"
    assert download.content == CONTENT


def test_a_server_that_stays_silent_is_named(file_server: FileServer, download: Download) -> None:
    never = threading.Event()
    url = file_server.serve("/a", Answer(CONTENT, hold=never))
    began_s = time.monotonic()
    said = download.refused(url, read_timeout_s=0.05, tries=3)
    never.set()
    assert said == "the server sent nothing for 0.05 s (tried 3 times)"
    assert time.monotonic() - began_s < 10, "that is the time of a connection"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429, 408])
def test_a_server_that_is_busy_is_asked_again(
    file_server: FileServer, download: Download, status: int
) -> None:
    download(file_server.serve("/a", Answer(status=status), Answer(status=status), Answer(CONTENT)))
    assert download.content == CONTENT
    assert download.waits_s == [0.5, 1.0]


def test_waits_grow_up_to_a_bound_and_end(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", Answer(status=503))
    assert download.refused(url, tries=6, max_backoff_s=3.0) == (
        "the server answered 503 Service Unavailable (tried 6 times)"
    )
    assert download.waits_s == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_server_may_ask_for_a_longer_wait_within_the_bound(
    file_server: FileServer, download: Download
) -> None:
    busy = [Answer(status=429, headers={"Retry-After": text}) for text in ("7", "3600", "soon")]
    download(file_server.serve("/a", *busy, Answer(CONTENT)))
    assert download.waits_s == [7.0, 30.0, 2.0]


def test_tries_that_get_farther_do_not_count(file_server: FileServer, download: Download) -> None:
    content = os.urandom(9 * 1024 * 1024)
    cut = Answer(content, cut_after=1024 * 1024 + 1)
    assert download(file_server.serve("/a", *[cut] * 8, Answer(content)), tries=2) is True
    assert download.content == content


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 206])
def test_a_server_that_refuses_is_asked_once(
    file_server: FileServer, download: Download, status: int
) -> None:
    url = file_server.serve("/a", Answer(status=status))
    assert download.refused(url).startswith(f"the server answered {status}")
    assert file_server.count("/a") == 1
    assert download.waits_s == []


@pytest.mark.parametrize("answer", [{}, {"length": False}, {"chunked": True}], ids=str)
def test_a_file_that_is_too_large_is_refused_and_not_kept(
    file_server: FileServer, download: Download, answer: dict[str, bool]
) -> None:
    url = file_server.serve("/a", Answer(CONTENT, **answer))  # type: ignore[arg-type]
    said = download.refused(url, max_bytes=299_999)
    assert said == ("has 300000 bytes; at most 299999" if not answer else "has more than 299999 bytes")
    assert download.partial.size == 0
    download(url, max_bytes=300_000)


def test_an_answer_without_an_end_is_broken_off(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", Answer(CONTENT, length=False, endless=True))
    assert download.refused(url, max_bytes=1_000_000) == "has more than 1000000 bytes"
    assert not download.partial.path.exists()


def test_what_does_not_fit_on_the_disk_is_said(file_server: FileServer, download: Download) -> None:
    answer = Answer(b"", headers={"Content-Length": str(2**60)})
    said = download.refused(file_server.serve("/a", answer), max_bytes=2**61)
    assert said.startswith(f"needs {2**60} more bytes, but {download.partial.path.parent} has ")


def test_an_encoding_that_nobody_asked_for_is_refused(file_server: FileServer, download: Download) -> None:
    url = file_server.serve("/a", Answer(CONTENT, headers={"Content-Encoding": "gzip"}))
    assert download.refused(url) == "the server uses the content encoding gzip, which was not requested"


class TestRedirects:
    def to(self, location: str, status: int = 302) -> Answer:
        return Answer(status=status, headers={"Location": location})

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_one_on_the_same_host_and_port_is_followed(
        self, file_server: FileServer, download: Download, status: int
    ) -> None:
        file_server.serve("/b", CONTENT)
        download(file_server.serve("/a", self.to("b", status)))
        assert download.content == CONTENT

    def test_one_to_another_server_of_this_machine_is_refused(
        self, file_server: FileServer, download: Download
    ) -> None:
        with running_file_server() as other:
            target = other.serve("/b", CONTENT)
            said = download.refused(file_server.serve("/a", self.to(target)))
            assert other.asked == []
        assert said.startswith(f"redirects to {target}: leads to this machine or a private network")

    def test_one_to_another_server_may_go_on_nowhere_near(
        self, file_server: FileServer, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running_file_server() as other:
            monkeypatch.setattr(web_requests, "is_public", lambda address: True)
            file_server.serve("/c", CONTENT)
            download(file_server.serve("/a", self.to(other.serve("/b", self.to(f"{file_server.url}/c")))))
            assert other.asked[0].headers["Host"] == other.url.removeprefix("http://")
        assert download.content == CONTENT

    def test_the_address_that_is_checked_is_the_one_that_is_connected_to(
        self, file_server: FileServer, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running_file_server() as other:
            port = int(other.url.rpartition(":")[2])
            looked_up = []
            real = socket.getaddrinfo

            def resolve(host: str, *arguments: object, **options: object) -> object:
                if host != "changing.example":
                    return real(host, *arguments, **options)  # type: ignore[arg-type]
                looked_up.append(host)
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

            monkeypatch.setattr(socket, "getaddrinfo", resolve)
            monkeypatch.setattr(web_requests, "is_public", lambda address: address == "127.0.0.1")
            other.serve("/b", CONTENT)
            download(file_server.serve("/a", self.to(f"http://changing.example:{port}/b")))
            assert other.asked[0].headers["Host"] == f"changing.example:{port}"
        assert looked_up == ["changing.example"]
        assert download.content == CONTENT

    @pytest.mark.parametrize(
        ("location", "said"),
        [
            ("file:///etc/passwd", "redirects to file:///etc/passwd: is not an http or https address"),
            ("http://10.0.0.1/x", "redirects to http://10.0.0.1/x: leads to this machine or"),
            ("http://169.254.169.254/x", ": leads to this machine or a private network"),
            ("http://[::1]:9/x", ": leads to this machine or a private network"),
            ("http://user:pass@example.org/x", "example.org/x: contains a user name, which is not supported"),
            ("http://[/x", ": is not a valid address"),
            ("http://no-such-host.invalid/x", "redirects to http://no-such-host.invalid/x: "),
        ],
    )
    def test_one_to_where_nothing_is_downloaded_from_is_refused(
        self, file_server: FileServer, download: Download, location: str, said: str
    ) -> None:
        assert said in download.refused(file_server.serve("/a", self.to(location)))

    def test_they_end_after_a_few(self, file_server: FileServer, download: Download) -> None:
        url = file_server.serve("/a", self.to("/a"))
        assert download.refused(url) == "redirects more than 5 times"
        assert file_server.count("/a") == 6


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://no-such-host.invalid/x", "Name or service not known|failure in name resolution|No address"),
        ("http://user:pass@127.0.0.1/x", "contains a user name, which is not supported"),
        ("http:///x", "names no host"),
        ("http://127.0.0.1:99999/x", "is not a valid address: Port out of range"),
        ("http://" + "a" * 70 + ".invalid/x", "."),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_at_once(
    download: Download, url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    assert re.search(said, download.refused(url))
    assert download.waits_s == []


def test_a_server_that_does_not_listen_is_named_at_once(
    download: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        said = download.refused(f"http://127.0.0.1:{unused.getsockname()[1]}/x")
    assert said == "Connection refused"
    assert download.waits_s == []


class TestProxies:
    @pytest.fixture(autouse=True)
    def _proxy(self, file_server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", file_server.url.replace("//", "//me:s%3Acr@"))
        monkeypatch.delenv("no_proxy", raising=False)

    def test_one_of_the_environment_is_asked(self, file_server: FileServer, download: Download) -> None:
        url = "http://models.invalid:80/net.pt"
        file_server.serve(url, CONTENT)
        download("http://models.invalid/net.pt")
        assert download.content == CONTENT
        assert file_server.asked[0].headers["proxy-authorization"] == "Basic bWU6czpjcg=="

    def test_it_is_not_asked_where_the_environment_says_so(
        self, file_server: FileServer, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with running_file_server() as other:
            download(other.serve("/a", CONTENT))
        assert file_server.asked == []

    def test_a_redirect_to_this_machine_is_refused_there_too(
        self, file_server: FileServer, download: Download
    ) -> None:
        to = Answer(status=302, headers={"Location": "http://localhost:1/x"})
        file_server.serve("http://models.invalid:80/net.pt", to)
        assert "leads to this machine" in download.refused("http://models.invalid/net.pt")

    def test_one_that_cannot_be_used_is_said(
        self, download: Download, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1")
        assert "the proxy socks5://127.0.0.1:1 cannot be used" in download.refused("http://a.invalid/x")
