"""RecordIO files: what MXNet writes is read, with or without an index, whole or damaged."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.preprocessing.inputs import EncodedImage
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.files import RandomAccessFile
from inferometer.evaluators.datasets.recordio import (
    HEADER,
    IMAGE_HEADER,
    MAGIC,
    MAGIC_BYTES,
    RecordDataset,
    find_records,
    framed,
)
from inferometer.manifests.errors import DatasetError, InputError
from tests.dataset_files import Item, items, record, write_records
from tests.optional_mxnet import mxnet

WITH_MAGIC = MAGIC_BYTES * 3 + b"ab" + MAGIC_BYTES + b"cd" + MAGIC_BYTES + b"xyz"


def contents(dataset: Dataset) -> list[bytes]:
    payloads = [sample.read() for sample in dataset]
    return [payload.content for payload in payloads if isinstance(payload, EncodedImage)]


def failures(dataset: Dataset) -> dict[int, str]:
    """The messages of the samples that fail, by place."""
    found = {}
    for index in range(len(dataset)):
        try:
            dataset.sample(index).read()
        except InputError as error:
            found[index] = str(error)
    return found


def written_by_mxnet(path: Path, made: Sequence[Item]) -> Path:
    writer = mxnet.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, item in enumerate(made):
        writer.write_idx(
            number,
            mxnet.recordio.pack(mxnet.recordio.IRHeader(0, float(item.label), number, 0), item.content),
        )
    writer.close()
    return path


@pytest.mark.parametrize("index", [True, False])
def test_what_mxnet_writes_is_read_in_the_same_order(tmp_path: Path, index: bool) -> None:
    made = [*items(20), Item(WITH_MAGIC, np.zeros((1, 1, 3), np.uint8), 3), *items(5, seed=1)]
    path = written_by_mxnet(tmp_path / "train.rec", made)
    if not index:
        path.with_suffix(".idx").unlink()

    dataset = RecordDataset(path, "vision")

    assert contents(dataset) == [item.content for item in made]
    assert [sample.label for sample in dataset] == [str(item.label) for item in made]
    assert all(sample.label_is_index for sample in dataset)
    assert dataset.identity.size == len(made)


def test_what_is_framed_here_is_what_mxnet_frames(tmp_path: Path) -> None:
    made = [*items(3), Item(WITH_MAGIC, np.zeros((1, 1, 3), np.uint8), 3)]

    ours = write_records(tmp_path / "ours.rec", made)
    theirs = written_by_mxnet(tmp_path / "theirs.rec", made)

    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.with_suffix(".idx").read_text() == theirs.with_suffix(".idx").read_text()


@pytest.mark.parametrize(
    ("header", "labels", "expected"),
    [
        ((0, 7.0), b"", "7"),
        ((2, 0.0), np.array([4, 9], "<f4").tobytes(), "4"),
        ((0, 0.5), b"", "0.5"),
        ((0, -1.0), b"", None),
        ((0, float("nan")), b"", None),
        ((0, float("inf")), b"", "inf"),
    ],
)
def test_a_label_is_a_number_the_first_of_several_or_none(
    tmp_path: Path, header: tuple[int, float], labels: bytes, expected: str | None
) -> None:
    path = tmp_path / "one.rec"
    path.write_bytes(framed(IMAGE_HEADER.pack(*header, 5, 6) + labels + b"image"))

    sample = RecordDataset(path, "vision").sample(0)

    assert (sample.label, sample.read()) == (expected, EncodedImage(b"image"))


def test_names_of_classes_beside_the_file_are_the_labels(tmp_path: Path) -> None:
    path = write_records(tmp_path / "train.rec", items(4))
    path.with_suffix(".classes.txt").write_text("ant\nbee\ncat\n")

    dataset = RecordDataset(path, "vision")

    assert [sample.label for sample in dataset] == ["ant", "bee", "cat", "3"]
    assert not dataset.sample(0).label_is_index


@pytest.mark.parametrize("text", ["", "ant\n\nbee\n", "ant\nbee\nant\n"])
def test_names_that_are_empty_or_repeated_are_refused(tmp_path: Path, text: str) -> None:
    path = write_records(tmp_path / "train.rec", items(4))
    path.with_suffix(".classes.txt").write_text(text)

    with pytest.raises(DatasetError, match=r"train\.classes\.txt: "):
        RecordDataset(path, "vision")


def test_threads_and_pickled_copies_read_the_same(tmp_path: Path) -> None:
    made = items(200)
    dataset = RecordDataset(write_records(tmp_path / "train.rec", made), "vision")
    copy = pickle.loads(pickle.dumps(dataset))
    (tmp_path / "train.idx").unlink()  # the copy has the places

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda index: copy.sample(index).read().content, range(200)))

    assert found == [item.content for item in made]
    assert copy.identity == dataset.identity


def test_a_closed_dataset_opens_its_file_again(tmp_path: Path) -> None:
    dataset = RecordDataset(write_records(tmp_path / "train.rec", items(2)), "vision")

    dataset.close()
    dataset.close()

    assert len(contents(dataset)) == 2


@pytest.mark.parametrize("index", [True, False])
def test_the_records_beyond_the_end_of_a_truncated_file_fail(tmp_path: Path, index: bool) -> None:
    made = items(10)
    path = write_records(tmp_path / "train.rec", made, index=index)
    begins = [sum(len(record(item)) for item in made[:count]) for count in range(11)]
    path.write_bytes(path.read_bytes()[: begins[8] - 5])

    dataset = RecordDataset(path, "vision")
    failed = failures(dataset)

    assert list(failed) == ([7, 8, 9] if index else [7])
    assert re.search(rf"train\.rec: record 7 at byte {begins[7]}: is cut off", failed[7])
    assert contents_until(dataset, 7) == [item.content for item in made[:7]]


def contents_until(dataset: Dataset, count: int) -> list[bytes]:
    payloads = [dataset.sample(index).read() for index in range(count)]
    return [payload.content for payload in payloads if isinstance(payload, EncodedImage)]


def test_a_file_that_shrinks_while_it_is_read_fails_its_inputs(tmp_path: Path) -> None:
    path = write_records(tmp_path / "train.rec", items(10))
    dataset = RecordDataset(path, "vision")
    sample = dataset.sample(9)

    with path.open("r+b") as file:
        file.truncate(100)

    with pytest.raises(InputError, match=r"record 9 at byte .* is cut off"):
        sample.read()


@pytest.mark.parametrize(("place", "value"), [(0, 0), (4, 255), (7, 0x60)])
def test_a_damaged_header_costs_one_record_and_the_others_are_found(
    tmp_path: Path, place: int, value: int
) -> None:
    made = items(10)
    path = write_records(tmp_path / "train.rec", made, index=False)
    content = bytearray(path.read_bytes())
    begin = sum(len(record(item)) for item in made[:4])
    content[begin + place] = value
    path.write_bytes(content)

    dataset = RecordDataset(path, "vision")
    failed = failures(dataset)

    assert len(dataset) == 10
    assert list(failed) == [4]
    assert f"record 4 at byte {begin}: " in failed[4]


@pytest.mark.parametrize("content", [b"", b"no records at all", b"\x0a\x23"])
def test_a_file_without_records_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.rec"
    path.write_bytes(content)

    with pytest.raises(DatasetError, match=r"train\.rec: holds no record of RecordIO"):
        RecordDataset(path, "vision")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; remove the .idx"),
        ("0\t0\nx\n", 'line 2: "x" is not a key and offset'),
        ("0\t0\n1\t0\n", "two lines with the same offset"),
        ("0\t4\n1\t8\n2\t12\n", "belongs to another file: no record of .* begins at byte 4"),
        ("0\t99999999\n", "no offset is within"),
        ("0\t0\n", "leaves out the records from byte"),
    ],
)
def test_a_wrong_index_is_refused_with_its_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = write_records(tmp_path / "train.rec", items(4))
    path.with_suffix(".idx").write_text(text)

    with pytest.raises(DatasetError, match=rf"train\.idx: .*{message}") as caught:
        RecordDataset(path, "vision")
    assert "remove the .idx" in str(caught.value)


def test_an_index_that_begins_late_is_refused(tmp_path: Path) -> None:
    path = write_records(tmp_path / "train.rec", items(4))
    lines = path.with_suffix(".idx").read_text().splitlines()
    path.with_suffix(".idx").write_text("\n".join(lines[1:]))

    with pytest.raises(DatasetError, match="leaves out the records before byte"):
        RecordDataset(path, "vision")


def test_a_record_that_is_no_image_fails_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.rec"
    path.write_bytes(framed(b"short") + framed(IMAGE_HEADER.pack(1000, 0.0, 0, 0)) + record(items(1)[0]))

    failed = failures(RecordDataset(path, "vision"))

    assert "record 0 at byte 0: has 5 bytes, too few" in failed[0]
    assert "record 1 at byte 16: has 1000 labels" in failed[1]
    assert list(failed) == [0, 1]


class CountedFile(RandomAccessFile):
    """A file that counts how often it is read, and how many bytes it gives."""

    reads = read_bytes = 0

    def read(self, size: int, offset: int) -> bytes:
        content = super().read(size, offset)
        self.reads += 1
        self.read_bytes += len(content)
        return content


def part(flag: int, length: int = 0) -> bytes:
    return HEADER.pack(MAGIC, flag << 29 | length)


MANY = 1000


@pytest.mark.parametrize(
    "content",
    [
        part(1) + part(2) * MANY + part(3),
        part(1) + part(2) * MANY,
        part(1) * MANY,
        (part(1) + part(2)) * MANY,
        (part(0) + part(2)) * MANY,
        # each leads to the same chain of parts, which has no end, or has one with nothing after it
        b"".join(part(1, HEADER.size * (MANY - 1 - each)) for each in range(MANY)) + part(2) * MANY,
        b"".join(part(1, HEADER.size * (MANY - 1 - each)) for each in range(MANY))
        + part(2) * MANY
        + part(3)
        + b"none",
    ],
)
def test_the_time_to_find_records_grows_with_the_file_and_not_with_its_square(tmp_path, content) -> None:
    path = tmp_path / "train.rec"
    path.write_bytes(content)
    file = CountedFile(path)
    find_records(file)
    file.close()
    headers = len(content) // HEADER.size
    assert file.reads <= 5 * headers
    assert file.read_bytes <= 2048 * headers
