"""Archives are unpacked as a whole into one folder, or refused."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.agent.artifacts.downloads import UnpackLimits, unpack
from inferometer.manifests.errors import ArtifactError

FILES = {"net.json": b"{}", "a/b/net.params": bytes(range(256)) * 100}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}

Entry = tarfile.TarInfo


def tar_bytes(*entries: tuple[Entry, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def of_type(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Entry:
    entry = Entry(name)
    entry.type = kind
    entry.linkname = link
    return entry


def zip_bytes(*entries: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return file.getvalue()


def unix(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


TAR = tar_bytes(
    (of_type("a", tarfile.DIRTYPE), b""),
    *((of_type(f"./{name}"), content) for name, content in FILES.items()),
)
ZIP = zip_bytes(("a/", b""), *FILES.items())


def attempt(tmp_path: Path, content: bytes, **limits: int) -> dict[str, str]:
    (tmp_path / "archive").write_bytes(content)
    folder = tmp_path / "inner" / "folder"
    folder.mkdir(parents=True)
    return unpack(tmp_path / "archive", folder, UnpackLimits(**limits))


def refusal(tmp_path: Path, content: bytes, **limits: int) -> str:
    with pytest.raises(ArtifactError) as caught:
        attempt(tmp_path, content, **limits)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'archive'}: ")
    return message.removeprefix(f"{tmp_path / 'archive'}: ")


def outside(tmp_path: Path) -> list[Path]:
    """What lies outside the folder that was unpacked into, beside the archive."""
    inner = tmp_path / "inner" / "folder"
    return [
        p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(inner) and p.name != "archive"
    ]


@pytest.mark.parametrize(
    "content",
    [ZIP, TAR, gzip.compress(TAR), bz2.compress(TAR), lzma.compress(TAR)],
    ids=["zip", "tar", "gzip", "bzip2", "xz"],
)
def test_files_are_written_where_they_are_in_the_archive(tmp_path: Path, content: bytes) -> None:
    assert attempt(tmp_path, content) == SUMS
    folder = tmp_path / "inner" / "folder"
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == FILES


def test_rights_are_not_those_of_the_archive(tmp_path: Path) -> None:
    entry = of_type("run")
    entry.mode = 0o6777
    attempt(tmp_path, tar_bytes((entry, b"#!")))
    assert not (tmp_path / "inner" / "folder" / "run").stat().st_mode & (stat.S_ISUID | stat.S_IXUSR)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/tmp/out", "a/..", "..", "//out"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    entries = [("good", b"x"), (name, b"x")]
    content = zip_bytes(*entries) if kind == "zip" else tar_bytes(*((of_type(n), c) for n, c in entries))
    assert refusal(tmp_path, content) == f"holds {name}, which leads out of the archive; nothing was unpacked"
    assert outside(tmp_path) == []


@pytest.mark.parametrize(
    "entry",
    [
        of_type("it", tarfile.SYMTYPE, "/etc"),
        of_type("it", tarfile.SYMTYPE, "net.json"),
        of_type("it", tarfile.LNKTYPE, "/etc/passwd"),
        of_type("it", tarfile.CHRTYPE),
        of_type("it", tarfile.BLKTYPE),
        of_type("it", tarfile.FIFOTYPE),
    ],
    ids=["symlink-out", "symlink", "hard-link", "character-device", "block-device", "pipe"],
)
def test_a_tar_with_anything_but_files_and_folders_is_refused(tmp_path: Path, entry: Entry) -> None:
    said = refusal(tmp_path, tar_bytes((entry, b""), (of_type("it/passwd"), b"x")))
    assert said == "it is a link or a device; accepted in an archive: files and folders"
    assert not (tmp_path / "inner" / "folder" / "it").exists()


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFCHR, stat.S_IFIFO])
def test_a_zip_with_anything_but_files_and_folders_is_refused(tmp_path: Path, mode: int) -> None:
    said = refusal(tmp_path, zip_bytes((unix("it", mode), b"/etc"), ("it/passwd", b"x")))
    assert said == "it is a link or a device; accepted in an archive: files and folders"
    assert not (tmp_path / "inner" / "folder" / "it").exists()


@pytest.mark.parametrize("content", [ZIP, TAR, gzip.compress(TAR)], ids=["zip", "tar", "gzip"])
def test_more_than_is_allowed_is_refused(tmp_path: Path, content: bytes) -> None:
    size = sum(map(len, FILES.values()))
    assert refusal(tmp_path, content, max_bytes=size - 1) == f"holds more than {size - 1} bytes when unpacked"


def test_no_more_is_written_than_is_allowed(tmp_path: Path) -> None:
    bomb = zip_bytes(("zeros", bytes(20_000_000)))
    assert len(bomb) < 50_000
    refusal(tmp_path, bomb, max_bytes=1000)
    assert (tmp_path / "inner" / "folder" / "zeros").stat().st_size <= 1001


@pytest.mark.parametrize("content", [ZIP, TAR], ids=["zip", "tar"])
def test_too_many_files_are_refused(tmp_path: Path, content: bytes) -> None:
    assert refusal(tmp_path, content, max_files=2) == "holds more than 2 files and folders"


def test_as_much_as_is_allowed_is_taken(tmp_path: Path) -> None:
    assert attempt(tmp_path, TAR, max_files=3, max_bytes=sum(map(len, FILES.values()))) == SUMS


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    header = of_type("long", tarfile.GNUTYPE_LONGNAME)
    content = gzip.compress(tar_bytes((header, bytes(8_000_000)), (of_type("x"), b"")))
    assert refusal(tmp_path, content) == "a header is larger than 4194304 bytes"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is neither a zip nor a tar"),
        (b"not an archive", "is neither a zip nor a tar"),
        (gzip.compress(b"not an archive", mtime=0), "is neither a zip nor a tar"),
        (TAR[:3000], "is damaged: unexpected end of data"),
        (gzip.compress(TAR, mtime=0)[:-20], "is damaged: "),
        (bz2.compress(TAR)[:-20], "is damaged: "),
        (lzma.compress(TAR)[:-20], "is damaged: "),
        (b"\x1f\x8brubbish", "is damaged: "),
        (b"BZhrubbish", "is damaged: "),
        (b"PK\x03\x04rubbish", "is damaged: "),
        (ZIP[:-30], "is damaged: "),
        (zip_bytes(("a", b"1"), ("a/b", b"2")), "cannot be unpacked into "),
        (tar_bytes((of_type("a"), b"1"), (of_type("./a"), b"2")), "holds a twice"),
        (zip_bytes(("x" * 300, b"1")), "cannot be unpacked into "),
    ],
    ids=[  # without them the id is the content, which holds the time
        "empty",
        "text",
        "gzip of text",
        "cut tar",
        "cut gzip",
        "cut bzip2",
        "cut xz",
        "gzip magic",
        "bzip2 magic",
        "zip magic",
        "cut zip",
        "file as folder",
        "twice",
        "long name",
    ],
)
def test_what_is_no_good_archive_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    assert refusal(tmp_path, content).startswith(said)


def test_a_file_whose_content_was_changed_is_damaged(tmp_path: Path) -> None:
    content = bytearray(ZIP)
    place = ZIP.index(b"net.json") + len(b"net.json")
    content[place] ^= 0xFF
    assert refusal(tmp_path, bytes(content)).startswith("is damaged: ")


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_the_checksum_of_the_compression_is_looked_at(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    content = bytearray(compress(TAR))
    content[-6] ^= 0xFF
    assert refusal(tmp_path, bytes(content)).startswith("is damaged: ")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_method_that_inflates_without_bound_is_refused(tmp_path: Path, method: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("zeros", bytes(1000))

    assert f"zeros is compressed by method {method}; accepted in a zip" in refusal(tmp_path, file.getvalue())


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    content = bytearray(zip_bytes(("secret", b"x")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    assert refusal(tmp_path, bytes(content)) == "secret is encrypted"


def test_a_zip_with_a_nameless_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        nameless = zipfile.ZipInfo("x")
        nameless.filename = ""
        archive.writestr(nameless, b"")
    with pytest.raises(ArtifactError, match="is damaged: an entry has no name"):
        unpack(path, tmp_path / "unpacked", UnpackLimits(max_files=5, max_bytes=5))


def test_an_archive_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none: cannot be unpacked .*No such file"):
        unpack(tmp_path / "none", tmp_path)


@given(st.sampled_from([ZIP, TAR, gzip.compress(TAR)]), st.data())
def test_a_damaged_archive_is_unpacked_or_refused_by_an_error_of_the_tree(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    with suppress(ArtifactError):
        attempt(folder, bytes(changed[: data.draw(st.integers(0, len(changed)))]), max_bytes=10**6)
    assert outside(folder) == []
    assert not any(p.is_symlink() for p in folder.rglob("*"))
