"""Datasets that lie about their sizes, or whose headers are broken on purpose."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import DatasetError, InputError


def zip_of(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def declaring(path: Path, size_bytes: int) -> Path:
    """Changes the size that a zip declares for its only entry, and not what it holds."""
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", size_bytes)
    path.write_bytes(content)
    return path


@contextmanager
def at_most_mib(most: float) -> Iterator[None]:
    """Fails where the body takes more memory than this."""
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < most * 1024 * 1024


def test_no_more_of_an_entry_is_read_than_its_zip_declares(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "data.zip", "cat/1.png", bytes(64 * 1024 * 1024))

    dataset = open_path(declaring(path, 1000), "vision")

    [sample] = dataset
    with pytest.raises(InputError, match=r"cat/1\.png: cannot be read .* Bad CRC"), at_most_mib(8):
        sample.read()


@pytest.mark.parametrize(
    "header", [b"{'shape': (1, ", b"{'shape': (9**999999,)}", b"\xff\n", b"'''", b"(" * 5000, b"{'descr': 1}"]
)
def test_a_header_that_does_not_parse_is_refused(header: bytes, tmp_path: Path) -> None:
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    path = zip_of(tmp_path / "d.npz", "images.npy", array)

    with pytest.raises(DatasetError, match=r"d\.npz: is not an \.npz") as raised:
        open_path(path, "vision")
    assert "\n" not in str(raised.value)


def test_an_array_that_inflates_to_far_more_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        for _ in range(300):
            file.write(bytes(1024 * 1024))
    assert path.stat().st_size < 1024 * 1024

    with pytest.raises(DatasetError, match="x has 314572800 bytes when unpacked; accepted: 268435456"):
        open_path(path, "vision")


def test_an_array_of_more_bytes_than_its_zip_declares_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.zeros((64, 1024, 1024), np.uint8))

    with pytest.raises(DatasetError, match=r"d\.npz: is not an \.npz"), at_most_mib(8):
        open_path(declaring(path, 1000), "vision")


def test_an_entry_without_a_name_is_no_image(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "data.zip", "cat/1.png", b"1")
    with zipfile.ZipFile(path, "a") as archive:
        nameless = zipfile.ZipInfo("x")
        nameless.filename = ""
        archive.writestr(nameless, b"")
    with closing(open_path(path, "vision")) as dataset:
        assert [sample.id for sample in dataset] == ["cat/1.png"]
