"""Downloads over TLS: the server's identity is verified, also for a redirect bound to one address."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import Answer, FileServer, running_file_server

from inferometer.agent.artifacts import web as web_requests
from inferometer.agent.artifacts.downloads import Downloader, DownloadLimits, PartialFile
from inferometer.manifests.errors import ArtifactUnavailableError

CONTENT = b"the weights"
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, that nobody has signed, and its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=inferometer test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.fixture
def secure_server(file_server: FileServer, certificate: Path) -> Iterator[FileServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with running_file_server(context) as server:
        yield server


def download(folder: Path, url: str) -> bytes:
    partial = PartialFile(folder / "file")
    Downloader(DownloadLimits(connect_timeout_s=5, read_timeout_s=5, tries=1)).download(url, partial)
    return partial.path.read_bytes()


def test_a_server_that_is_who_it_says_is_trusted(
    secure_server: FileServer, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert download(tmp_path, secure_server.serve("/a", CONTENT)) == CONTENT


def test_a_server_that_nobody_vouches_for_is_refused(secure_server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ArtifactUnavailableError, match="self-signed certificate"):
        download(tmp_path, secure_server.serve("/a", CONTENT))
    assert secure_server.asked == []


def test_a_redirect_to_http_is_refused(
    secure_server: FileServer,
    file_server: FileServer,
    certificate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    to = Answer(status=302, headers={"Location": file_server.serve("/b", CONTENT)})
    with pytest.raises(ArtifactUnavailableError, match="redirects from https to http://"):
        download(tmp_path, secure_server.serve("/a", to))
    assert file_server.asked == []


@pytest.mark.parametrize(("host", "trusted"), [("127.0.0.1", True), ("localhost", False)])
def test_where_a_redirect_is_held_to_one_address_the_name_counts_for_the_certificate(
    secure_server: FileServer,
    file_server: FileServer,
    certificate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    trusted: bool,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(web_requests, "is_public", lambda address: address == "127.0.0.1")
    target = secure_server.serve("/b", CONTENT).replace("127.0.0.1", host)
    url = file_server.serve("/a", Answer(status=302, headers={"Location": target}))
    if trusted:
        assert download(tmp_path, url) == CONTENT
    else:
        with pytest.raises(ArtifactUnavailableError, match="certificate is not valid for 'localhost'"):
            download(tmp_path, url)
        assert secure_server.asked == []
