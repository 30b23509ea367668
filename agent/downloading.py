"""Downloading a file: resumed where it was broken off, tried again where that can help, and bounded."""

from __future__ import annotations

import http.client
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, ProxyError
from urllib3.exceptions import TimeoutError as UrllibTimeoutError
from urllib3.util import Timeout

from agent.addresses import shown
from agent.partial_file import FileVersion, PartialFile
from agent.web_requests import RefusedError, open_url
from manifests.errors import ArtifactUnavailableError

_CHUNK_BYTES = 256 * 1024
_GIB = 1024**3
_OK, _PARTIAL, _RANGE_NOT_SATISFIABLE = 200, 206, 416
_TRANSIENT = frozenset({408, 425, 429})
_SERVER_ERRORS = 500
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_PROGRESS_BYTES = 1024 * 1024
"""A try that brings so much more than any before it was worth it, and the count of tries begins again."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """How large a download may be, and how patient it is.

    Attributes:
        max_bytes: The largest file.
        connect_timeout_s: How long connecting may take, in seconds.
        read_timeout_s: How long a server may send nothing, in seconds.
        tries: How often it is tried without getting much farther.
        backoff_s: How long the first wait between two tries is, in seconds; each next one is twice as long.
        max_backoff_s: The longest wait between two tries, in seconds, also where the server asks for more.
    """

    max_bytes: int = 32 * _GIB
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    tries: int = 5
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download has come.

    Attributes:
        url: What is downloaded.
        done_bytes: What of it is there.
        total_bytes: Its size; None where the server does not say.
        ended: Whether this is the last report of this download, which may have failed.
    """

    url: str
    done_bytes: int
    total_bytes: int | None
    ended: bool = False


class _TransientError(Exception):
    """Something that may be otherwise at the next try.

    Args:
        reason: What it was.
        wait_s: How long the server asks to wait, in seconds.
    """

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Downloader:
    """Downloads files. Thread-safe, as long as no two threads have the same partial file.

    Args:
        limits: How large and how patient.
        on_progress: Told how far a download has come, in the thread that downloads.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        limits: DownloadLimits = DownloadLimits(),
        on_progress: Callable[[DownloadProgress], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limits = limits
        self._on_progress = on_progress
        self._sleep = sleep
        self._timeout = Timeout(connect=limits.connect_timeout_s, read=limits.read_timeout_s)

    def download(self, url: str, partial: PartialFile) -> bool:
        """Completes a partial file; what is there stays if it fails or is interrupted.

        Args:
            url: An http or https address.
            partial: What of it is there already; it is used if the server says that its file is the same.

        Returns:
            Whether what was there was used.

        Raises:
            ArtifactUnavailableError: It cannot be downloaded; the message is the reason, without the URL.
            OSError: It cannot be written.
        """
        failures, most_bytes = 0, partial.size
        try:
            while True:
                try:
                    return self._try(url, partial)
                except _TransientError as error:
                    grown = partial.size - most_bytes
                    most_bytes = max(most_bytes, partial.size)
                    failures = 1 if grown >= _PROGRESS_BYTES else failures + 1
                    if failures >= self._limits.tries:
                        raise ArtifactUnavailableError(f"{error} (tried {failures} times)") from error
                    wait_s = max(error.wait_s, self._limits.backoff_s * 2 ** (failures - 1))
                self._sleep(min(wait_s, self._limits.max_backoff_s))
        finally:
            self._on_progress(DownloadProgress(url, partial.size, None, ended=True))

    def _try(self, url: str, partial: PartialFile) -> bool:
        """Asks once; see ``download``.

        Raises:
            _TransientError: Another try may succeed.
        """
        known = partial.version(url)
        if known and known.total_bytes == partial.size:
            return True  # it was all there, and then the program was stopped
        offset = partial.size if known else 0
        headers = {"Range": f"bytes={offset}-", "If-Range": known.validator} if known else {}
        try:
            with open_url(url, headers, self._timeout) as answer:
                return self._take(answer, url, partial, known, offset)
        except RefusedError as error:
            raise ArtifactUnavailableError(str(error)) from error
        except (HTTPError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if _is_transient(error):
                raise _TransientError(_reason(error, self._limits)) from error
            raise ArtifactUnavailableError(_reason(error, self._limits)) from error
        except ValueError as error:  # an address that has no such host name, or no such characters
            raise ArtifactUnavailableError(_reason(error, self._limits)) from error

    def _take(
        self,
        answer: urllib3.BaseHTTPResponse,
        url: str,
        partial: PartialFile,
        known: FileVersion | None,
        offset: int,
    ) -> bool:
        """Takes what a server answers."""
        if answer.status not in {_OK, _PARTIAL} or (answer.status == _PARTIAL and not known):
            if answer.status == _RANGE_NOT_SATISFIABLE and known:
                partial.discard()
                raise _TransientError("the server has no more of the file")
            _refuse(answer)
        if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
            raise ArtifactUnavailableError(f"the server sends it encoded as {shown(encoding)}, unasked")
        resumed = answer.status == _PARTIAL
        start, total_bytes = _extent(answer, offset if resumed else 0)
        version = FileVersion.of(url, answer.headers, total_bytes)
        if resumed and known and not (start == offset and version.may_be(known)):
            partial.discard()
            raise _TransientError("the server sends another part of the file than was asked for")
        self._check_size(partial, total_bytes, start)
        if not resumed:
            partial.start(version)
        self._copy(answer, url, partial, start, total_bytes)
        return resumed

    def _check_size(self, partial: PartialFile, total_bytes: int | None, start: int) -> None:
        """Refuses what is too large, or would not fit on the disk."""
        if total_bytes is None:
            return
        if total_bytes > self._limits.max_bytes:
            raise ArtifactUnavailableError(f"has {total_bytes} bytes; at most {self._limits.max_bytes}")
        free = shutil.disk_usage(partial.path.parent).free + (0 if start else partial.size)
        if total_bytes - start > free:
            raise ArtifactUnavailableError(
                f"needs {total_bytes - start} bytes more, and {partial.path.parent} has {free} free"
            )

    def _copy(
        self,
        answer: urllib3.BaseHTTPResponse,
        url: str,
        partial: PartialFile,
        done: int,
        total_bytes: int | None,
    ) -> None:
        """Appends what the server sends."""
        with partial.path.open("ab") as file:
            self._on_progress(DownloadProgress(url, done, total_bytes))
            while chunk := answer.read1(_CHUNK_BYTES):
                done += len(chunk)
                if done > self._limits.max_bytes:
                    file.close()
                    partial.discard()
                    raise ArtifactUnavailableError(f"has more than {self._limits.max_bytes} bytes")
                file.write(chunk)
                self._on_progress(DownloadProgress(url, done, total_bytes))
        if total_bytes is not None and done != total_bytes:
            raise _TransientError(f"ended after {done} of {total_bytes} bytes")


def _refuse(answer: urllib3.BaseHTTPResponse) -> NoReturn:
    reason = f"the server answered {answer.status} {shown(answer.reason or '')}".strip()
    if answer.status in _TRANSIENT or answer.status >= _SERVER_ERRORS:
        wait = answer.headers.get("Retry-After", "")
        raise _TransientError(reason, float(wait) if wait.isdecimal() and wait.isascii() else 0.0)
    raise ArtifactUnavailableError(reason)


def _extent(answer: urllib3.BaseHTTPResponse, offset: int) -> tuple[int, int | None]:
    """Where in the file an answer begins, and how large the file is where the server says so."""
    headers: Mapping[str, str] = answer.headers
    if answer.status == _PARTIAL:
        match = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if match is None:
            return -1, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = answer.length_remaining
    return offset, None if length is None else offset + length


def _is_transient(error: Exception) -> bool:
    if isinstance(error, ProxyError):
        return _is_transient(error.original_error)
    if isinstance(error, NewConnectionError):  # refused, or no such name: what is out of reach stays so
        return False
    return isinstance(
        error, ProtocolError | UrllibTimeoutError | http.client.HTTPException | TimeoutError | ConnectionError
    ) and not isinstance(error, http.client.InvalidURL)


def _reason(error: BaseException, limits: DownloadLimits) -> str:
    """What went wrong, in a phrase."""
    if isinstance(error, ProxyError):
        return f"the proxy: {_reason(error.original_error, limits)}"
    if isinstance(error, NewConnectionError):
        error = error.__cause__ or error
    elif isinstance(error, ConnectTimeoutError):
        return f"no connection within {limits.connect_timeout_s:g} s"
    elif isinstance(error, UrllibTimeoutError | TimeoutError):
        return f"the server sent nothing for {limits.read_timeout_s:g} s"
    elif isinstance(error, ProtocolError):
        error = error.__cause__ or error
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was broken off"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shown(" ".join(text.split()))
