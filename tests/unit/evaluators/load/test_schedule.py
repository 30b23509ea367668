"""Schedules: files in every allowed form, errors in others, and written files."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.evaluators.load.arrivals import Extent, GammaArrivals, PoissonArrivals, Schedule
from inferometer.manifests.errors import ConfigurationError

MS = 1_000_000


def read(folder: Path, text: str | bytes) -> Schedule:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Schedule.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "0\n0.25\n1.5\n",
        "0\n.25\n15e-1",  # no line end at the end
        "0\r\n0.25\r\n1.5\r\n",
        b"\xef\xbb\xbf0\n0.25\n1.5\n",  # a byte order mark
        "# made by hand\n\n0\n  # more\n0.25\n\n1.5\n",
        "offset_s\n0\n0.25\n1.5\n",
        "offset_ms\n0\n250\n1500\n",
        "offset_us\n0\n250000\n1500000\n",
        "offset_ns\n0\n250000000\n1500000000\n",
        '# head\nname, offset_ms ,size\na,0,3\n"b, c",250,3\nd, 1500 ,3\n',
    ],
)
def test_a_file_is_read_in_any_form(text: str | bytes, tmp_path: Path) -> None:
    schedule = read(tmp_path, text)

    assert schedule.offsets_ns.tolist() == [0, 250 * MS, 1500 * MS]
    assert schedule.offsets_ns.dtype == np.int64
    assert schedule.source == "file trace.csv"
    assert schedule.seed is None
    assert schedule.rate_qps == pytest.approx(2 / 1.5)
    assert len(schedule) == 3
    assert schedule.duration_ns == 1500 * MS


def test_nanoseconds_lose_no_digit(tmp_path: Path) -> None:
    assert read(tmp_path, "offset_ns\n604799999999999\n").offsets_ns.tolist() == [604_799_999_999_999]


def test_equal_offsets_are_a_burst(tmp_path: Path) -> None:
    assert read(tmp_path, "1\n1\n1\n").offsets_ns.tolist() == [1000 * MS] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no offset; give one per line"),
        ("# only this\n\n", "has no offset"),
        ("offset_ms\n", "has no offset"),
        ("1\n3\n2\n", "offset 3 comes before the one above it; sort them"),
        ("0\n-1\n", "line 2: -1 is not within 0…604800 s"),
        ("1e9\n", "line 1: 1e9 is not within"),
        ("# x\n\n1\ntwo\n", 'line 4: "two" is not an offset; give seconds, or a csv'),
        ("time\n1\n", 'line 1: "time" is not an offset'),
        ("offset_ns\n1.5\n", 'line 2: "1.5" is not an offset'),
        ("nan\n", 'line 1: "nan" is not an offset'),
        ("inf\n", 'line 1: "inf" is not an offset'),
        ("a,offset_ms\n1,2\n3\n", 'line 3: "" is not an offset'),
        ("offset_s,offset_ms\n1,1000\n", "has columns offset_s and offset_ms; keep only one"),
        (b"\xff\xfe1\x00", "cannot be read: it is not text in UTF-8"),
        ("9" * 200_000, "is not a line of a csv"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)

    assert message in str(caught.value)
    assert str(tmp_path / "trace.csv") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["none.csv", "."])
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: (No such file|Is a directory)"):
        Schedule.read(tmp_path / name)


@settings(max_examples=50, deadline=None)
@given(offsets=st.lists(st.integers(0, 7 * 24 * 3600 * 10**9), min_size=1, max_size=50).map(sorted))
def test_what_a_schedule_writes_reads_back(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int]
) -> None:
    schedule = Schedule(np.array(offsets, np.int64), "test", 1.0, 3)

    again = read(tmp_path_factory.mktemp("written"), schedule.text())

    assert again.offsets_ns.tolist() == offsets
    assert again.checksum == schedule.checksum


def test_a_drawn_schedule_tells_what_it_was_drawn_from() -> None:
    schedule = Schedule.drawn(GammaArrivals(3), 50, Extent(min_queries=10), seed=9)

    assert (schedule.source, schedule.rate_qps, schedule.seed) == ("gamma:cv=3", 50, 9)
    assert schedule.text().startswith(f"# gamma:cv=3, 50 queries/s, seed 9, {schedule.checksum}\noffset_ns\n")


def test_the_checksum_is_of_the_offsets_in_little_endian() -> None:
    drawn = Schedule.drawn(PoissonArrivals(), 10, Extent(min_queries=4), seed=1)

    packed = struct.pack("<4q", *drawn.offsets_ns.tolist())

    assert drawn.checksum == "sha256:" + hashlib.sha256(packed).hexdigest()
