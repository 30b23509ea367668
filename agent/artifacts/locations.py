"""Locates the files that a manifest names: beside it, elsewhere on this machine, or at a URL.

Nothing here reads a file or uses the network, so listings can locate the files of hundreds of models.
Also checks whether IP addresses are public, and masks secrets in URLs for messages.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from inferometer.manifests.errors import printable

if TYPE_CHECKING:
    from inferometer.manifests.schema import Manifest, ModelManifest


_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")  # RFC 9637
_SHOWN_CHARACTERS = 200
_USER = re.compile(r"//[^/?#\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?P<name>[?&][^=?&#\s]*(key|token|secret|sig|signature|credential|password|passwd|auth)=)[^&#\s]*",
    re.IGNORECASE,
)


def is_public(address: str) -> bool:
    """Returns whether an IP address is public; of IPv6 addresses that embed IPv4, the latter is checked.

    IANA has allocated only 2000::/3 for public IPv6 addresses (registry "Internet Protocol Version 6 Address
    Space"); within it, and in IPv4, its registries of special-purpose addresses list those that are not
    public. ``ipaddress`` knows all but the newest.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is None and (ip not in _PUBLIC_IPV6 or ip in _DOCUMENTATION):
            return False
        ip = wrapped or ip
    return ip.is_global and not ip.is_multicast


def without_credentials(text: str) -> str:
    """Masks user names, passwords, and parameters that are keys or signatures in URLs."""
    return _SECRET_PARAMETER.sub(r"\g<name>***", _USER.sub("//***@", text))


def shown(text: str) -> str:
    """Returns a URL or other external text in a form for messages: one printable line of limited length.

    Credentials are masked; see ``without_credentials``.
    """
    text = printable(without_credentials(text).encode("ascii", "backslashreplace").decode())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


DOWNLOADED = ("https", "http")
"""The schemes of the URLs that can be downloaded."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|(file):", re.IGNORECASE)
_MAX_NAME_CHARACTERS = 100
_HASH_DIGITS = 16


class Availability(str, Enum):
    """Where a model's files are; for several files, the value that comes last in this order."""

    NONE_NEEDED = "none needed"
    LOCAL = "local"
    CACHED = "cached"
    TO_DOWNLOAD = "to download"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file that a manifest names.

    Attributes:
        manifest: The manifest that names the file.
        field: The field that contains the name, such as ``model.graph_path``.
        candidates: Its possible paths on this machine, of which the first existing one is used. For a URL,
            the path is that of a file with the URL's file name beside the manifest.
        url: Its URL; None if the manifest gives a path.
        checksum: Its expected checksum; empty if the manifest has none.
    """

    manifest: Manifest
    field: str
    candidates: tuple[Path, ...]
    url: str | None = None
    checksum: str = ""

    @property
    def scheme(self) -> str:
        """The URL's scheme; empty if there is no URL."""
        return scheme(self.url or "")

    def local(self) -> Path | None:
        """Returns the file's path on this machine, outside the cache; None if the file is missing."""
        return _first_file(self.candidates)


def refer(
    manifest: Manifest, field: str, path: str, checksum: str = "", *, base_url: str = ""
) -> FileReference:
    """Returns the location of a file for which a manifest gives a path or a URL.

    ``path`` is a URL, or a path relative to ``base_url`` if given, else to the folder of the manifest;
    ``base_url`` is a URL, or a path relative to that folder.
    """
    if not scheme(path) and base_url and not scheme(base_url):
        names, url = [f"{base_url.rstrip('/')}/{path}", path], None
    elif not scheme(path) and not base_url:
        names, url = [path], None
    elif scheme(path):
        names, url = [file_name(path)], path
    else:
        names, url = [path, PurePosixPath(path).name], f"{base_url.rstrip('/')}/{path.lstrip('/')}"
    folder = Path() if manifest.source is None else manifest.source.parent
    candidates = [folder / name for name in dict.fromkeys(names) if name or url is None]
    if url and scheme(url) == "file" and (place := _of_file_url(url)):
        candidates.append(place)
    return FileReference(manifest, field, tuple(candidates), url, checksum)


def model_files(manifest: ModelManifest, *, weights: bool = True) -> dict[str, FileReference]:
    """Returns the locations of a model's files, keyed by ``graph`` and ``weights``, or by ``archive``.

    If ``weights`` is false, the weights file is left out.
    """
    files = manifest.model
    named = {"graph": (files.graph_path, files.graph_checksum)}
    if weights:
        named["weights"] = (files.weights_path, files.weights_checksum)
    if files.is_archive:  # the checksums are of the files in it
        needed = any(path is not None for path, _ in named.values())
        return {"archive": refer(manifest, "model.base_url", files.base_url)} if needed else {}
    return {
        kind: refer(manifest, f"model.{kind}_path", path, checksum, base_url=files.base_url)
        for kind, (path, checksum) in named.items()
        if path is not None
    }


def labels_file(manifest: ModelManifest) -> FileReference | None:
    """Returns the location of the file with a model's labels; None if the manifest names none."""
    parameters = manifest.output.parameters
    if not parameters.features_url:
        return None
    field = "output.parameters.features_url"
    return refer(manifest, field, parameters.features_url, parameters.features_checksum)


def tokenizer_files(manifest: ModelManifest) -> dict[int, FileReference]:
    """Returns the locations of the tokenizers for text inputs, by the index of the input."""
    found = {}
    for number, each in enumerate(manifest.inputs):
        if each.type == "text":
            field = f"inputs.{number}.parameters.tokenizer"
            path, checksum = each.parameters.tokenizer, each.parameters.tokenizer_checksum
            found[number] = refer(manifest, field, path, checksum)
    return found


def availability(manifest: ModelManifest, cache_directory: Path) -> Availability:
    """Returns where a model's graph and weights are, according to the file names only.

    Checksums are verified when the model is opened.
    """
    files = ((file.candidates, file.url) for file in model_files(manifest).values())
    return availability_of(files, cache_directory)


def availability_of(
    files: Iterable[tuple[Sequence[Path], str | None]], cache_directory: Path
) -> Availability:
    """Returns where files are, given each file's possible paths and its URL; see ``availability``."""
    order = list(Availability)
    found = (_availability(candidates, url or "", cache_directory) for candidates, url in files)
    return max(found, key=order.index, default=Availability.NONE_NEEDED)


def _availability(candidates: Sequence[Path], url: str, cache_directory: Path) -> Availability:
    if _first_file(candidates):
        return Availability.LOCAL
    if scheme(url) not in DOWNLOADED or not file_name(url):
        return Availability.MISSING
    return Availability.CACHED if is_file(cached_path(cache_directory, url)) else Availability.TO_DOWNLOAD


def _first_file(candidates: Sequence[Path]) -> Path | None:
    return next((path for path in candidates if is_file(path)), None)


def cached_path(cache_directory: Path, url: str) -> Path:
    """Returns the cache path for the file at a URL: ``downloads/<host>/<hash of the URL>/<file name>``.

    No URL can lead out of ``downloads``.
    """
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:  # brackets without an IPv6 address
        host = ""
    digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return cache_directory / "downloads" / plain_name(host) / digest / plain_name(file_name(url))


def file_name(url: str) -> str:
    """Returns the last part of a URL's path; empty if there is none."""
    rest = url.partition(":")[2]
    path = rest[2:].partition("/")[2] if rest.startswith("//") else rest
    name = PurePosixPath(unquote(re.split("[?#]", path)[0])).name
    return "" if name == ".." else name


def scheme(text: str) -> str:
    """Returns the scheme of a URL in lower case; empty for a path."""
    match = _URL.match(text)
    return (match[1] or match[2]).casefold() if match else ""


def is_file(path: Path) -> bool:
    """Returns whether the file exists; False for invalid names."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _of_file_url(url: str) -> Path | None:
    """Returns the path of a ``file:`` URL; None if it is on another machine."""
    rest = url.partition(":")[2]
    if rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host not in ("", "localhost"):
            return None
        rest = slash + rest
    return Path(unquote(re.split("[?#]", rest)[0])) if rest.startswith("/") else None


def plain_name(name: str) -> str:
    """Returns a name without the characters that a file system or a shell treats specially."""
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", name)[-_MAX_NAME_CHARACTERS:]
    return re.sub(r"^[.-]", "_", name) or "_"
