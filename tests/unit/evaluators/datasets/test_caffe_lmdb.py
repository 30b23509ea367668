"""LMDBs of Caffe's Datums: what the library writes is read without it, whole or damaged."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor
from inferometer.evaluators.conversion import lmdb_environment
from inferometer.evaluators.datasets.caffe_lmdb import LmdbDataset
from inferometer.manifests.errors import DatasetError, InputError
from tests.dataset_files import encoded, items, raw, write_lmdb

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def caffe_datum() -> Callable[..., Message]:
    """Caffe's own message, as protobuf makes it from its definition."""
    file = descriptor_pb2.FileDescriptorProto(name="datum.proto", package="caffe", syntax="proto2")
    message = file.message_type.add(name="Datum")
    kinds = (("channels", 5), ("height", 5), ("width", 5), ("data", 12), ("label", 5), ("float_data", 2))
    for number, (name, kind) in enumerate((*kinds, ("encoded", 8)), start=1):
        repeated = 3 if name == "float_data" else 1
        message.field.add(name=name, number=number, type=kind, label=repeated)  # type: ignore[arg-type]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


@pytest.mark.parametrize(("count", "side"), [(1, 4), (30, 50), (3000, 4), (300, 40)])
def test_what_the_library_writes_is_read_in_the_order_of_the_keys(
    tmp_path: Path, count: int, side: int
) -> None:
    made = items(count, side=side)
    dataset = LmdbDataset(write_lmdb(tmp_path / "lmdb", encoded(made)), "vision")

    assert [sample.read() for sample in dataset] == [EncodedImage(item.content) for item in made]
    assert [sample.label for sample in dataset] == [str(item.label) for item in made]
    assert dataset.sample(count - 1).id == f"{count - 1:08d}_image"


def test_an_lmdb_that_was_changed_is_read_as_it_is_now(tmp_path: Path) -> None:
    made = items(400)
    folder = write_lmdb(tmp_path / "lmdb", encoded(made))
    with lmdb.open(str(folder), map_size=1 << 28) as environment:
        for number in range(0, 400, 3):
            with environment.begin(write=True) as transaction:
                transaction.delete(f"{number:08d}_image".encode())
        with environment.begin() as transaction:
            expected = [bytes(key).decode() for key in transaction.cursor().iternext(values=False)]

    assert [sample.id for sample in LmdbDataset(folder, "vision")] == expected


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 5, 7)])
def test_a_raw_datum_of_caffe_is_pixels_in_red_green_and_blue(
    tmp_path: Path, caffe_datum: Callable[..., Message], shape: tuple[int, int, int]
) -> None:
    planes = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    channels, height, width = shape
    message = caffe_datum(
        channels=channels, height=height, width=width, data=planes.tobytes(), label=300, encoded=False
    )
    sample = LmdbDataset(write_lmdb(tmp_path / "lmdb", [message.SerializeToString()]), "vision").sample(0)

    found = sample.read()

    assert isinstance(found, Pixels)
    expected = planes[0] if channels == 1 else planes[::-1].transpose(1, 2, 0)
    np.testing.assert_array_equal(found.array, expected)
    assert sample.label == "300"


def test_float_data_of_caffe_are_a_tensor(tmp_path: Path, caffe_datum: Callable[..., Message]) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    message = caffe_datum(channels=2, height=3, width=4, float_data=values.ravel().tolist(), label=-1)
    sample = LmdbDataset(write_lmdb(tmp_path / "lmdb", [message.SerializeToString()]), "vision").sample(0)

    found = sample.read()

    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found.array, values)
    assert sample.label is None


def test_what_is_written_here_is_caffes_message(caffe_datum: Callable[..., Message]) -> None:
    [item] = items(1)
    parsed = caffe_datum()

    parsed.ParseFromString(lmdb_environment.encoded_datum(item.content, 12345))
    assert (parsed.data, parsed.label, parsed.encoded) == (item.content, 12345, True)  # type: ignore[attr-defined]
    parsed.ParseFromString(lmdb_environment.raw_datum(item.pixels, -1))
    assert parsed.label == -1  # type: ignore[attr-defined]
    assert parsed.data == item.pixels[:, :, ::-1].transpose(2, 0, 1).tobytes()  # type: ignore[attr-defined]
    parsed.ParseFromString(lmdb_environment.float_datum(np.array([[[0.5, -2.0]]], np.float32), None))
    assert list(parsed.float_data) == [0.5, -2.0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            lmdb_environment.raw_datum(np.zeros((4, 4, 3), np.uint8), 1).replace(b"\x10\x04", b"\x10\x05", 1),
            "wrong size",
        ),
        (lmdb_environment.raw_datum(np.zeros((4, 4, 2), np.uint8), 1), "2 channels; accepted: 1 or 3"),
        (lmdb_environment.encoded_datum(b"x" * 200, 1)[:50], "is cut off: field 4 at byte 0 has 200 bytes"),
        (b"", "wrong size"),
        (b"\xff" * 20, "is not a Datum|damaged"),
        (lmdb_environment.encoded_datum(b"", 1), "wrong size"),
        (b"\x08\x02\x10\x02\x18\x02\x35\0\0\0\0", "wrong size: it declares 2 × 2 × 2 values, but has 1"),
    ],
)
def test_a_datum_of_a_wrong_size_fails_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    good = encoded(items(2))
    dataset = LmdbDataset(write_lmdb(tmp_path / "lmdb", [good[0], content or b"\x28\x01", good[1]]), "vision")

    with pytest.raises(InputError, match=rf"data\.mdb: record 1, 00000001_image, at byte \d+: .*({message})"):
        dataset.sample(1).read()
    assert [dataset.sample(index).read() is not None for index in (0, 2)] == [True, True]


def test_threads_and_pickled_copies_read_the_same(tmp_path: Path) -> None:
    made = items(100, side=50)
    dataset = LmdbDataset(write_lmdb(tmp_path / "lmdb", raw(made)), "vision")
    copy = pickle.loads(pickle.dumps(dataset))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda index: copy.sample(index).read().array, range(100)))

    for array, item in zip(found, made, strict=True):
        np.testing.assert_array_equal(array, item.pixels)


@pytest.mark.parametrize("kept", [0, 0.001, 0.01, 0.3, 0.9, 0.99])
def test_a_truncated_lmdb_is_refused_or_fails_its_inputs(tmp_path: Path, kept: float) -> None:
    made = items(100, side=60)
    folder = write_lmdb(tmp_path / "lmdb", raw(made))
    path = folder / "data.mdb"
    size = int(path.stat().st_size * kept)
    os.truncate(path, size)

    if kept < 0.02:
        with pytest.raises(DatasetError, match=r"data\.mdb: is (no LMDB, or )?truncated: "):
            LmdbDataset(folder, "vision")
        return
    dataset = LmdbDataset(folder, "vision")
    cut = [index for index in range(100) if dataset._entries.offsets[index] + 10_800 > size]
    assert cut
    for index, item in enumerate(made):
        if index in cut:
            with pytest.raises(InputError, match=f"is cut off: .* the file ends at byte {size}"):
                dataset.sample(index).read()
        else:
            read = dataset.sample(index).read()
            assert isinstance(read, Pixels)
            np.testing.assert_array_equal(read.array, item.pixels)


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    folder = write_lmdb(tmp_path / "lmdb", raw(items(2000, side=4)))
    path = folder / "data.mdb"
    content = bytearray(path.read_bytes())
    content[5 * PAGE_BYTES : 5 * PAGE_BYTES + 16] = b"\xff" * 16
    path.write_bytes(content)

    with pytest.raises(DatasetError, match=r"data\.mdb: page 5 at byte 20480 is damaged"):
        LmdbDataset(folder, "vision")


def test_a_damaged_page_of_a_large_value_costs_that_input(tmp_path: Path) -> None:
    folder = write_lmdb(tmp_path / "lmdb", raw(items(5, side=60)))
    dataset = LmdbDataset(folder, "vision")
    offset = int(dataset._entries.offsets[3])
    content = bytearray((folder / "data.mdb").read_bytes())
    content[offset - 16 : offset] = bytes(16)
    (folder / "data.mdb").write_bytes(content)

    with pytest.raises(
        InputError, match=rf"record 3, 00000003_image, at byte {offset}: its page \d+ is damaged"
    ):
        LmdbDataset(folder, "vision").sample(3).read()


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_description_is_refused_since_the_other_one_may_be_older(tmp_path: Path, page: int) -> None:
    folder = write_lmdb(tmp_path / "lmdb", encoded(items(5)))
    content = bytearray((folder / "data.mdb").read_bytes())
    content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    (folder / "data.mdb").write_bytes(content)

    with pytest.raises(
        DatasetError, match=rf"page at byte {page * PAGE_BYTES} is not a page of an LMDB, or is damaged"
    ):
        LmdbDataset(folder, "vision")


@pytest.mark.parametrize("kind", ["duplicates", "named", "empty"])
def test_an_lmdb_of_another_kind_is_refused(tmp_path: Path, kind: str) -> None:
    with lmdb.open(str(tmp_path / "lmdb"), max_dbs=2) as environment:
        if kind != "empty":
            database = environment.open_db(b"name", dupsort=kind == "duplicates")
            with environment.begin(write=True, db=database) as transaction:
                transaction.put(b"key", b"value")

    with pytest.raises(DatasetError, match=r"named databases|holds no samples"):
        LmdbDataset(tmp_path / "lmdb", "vision")


def test_neither_a_lock_file_nor_the_library_is_needed(tmp_path: Path) -> None:
    folder = write_lmdb(tmp_path / "lmdb", encoded(items(5)))
    (folder / "lock.mdb").unlink()
    (folder / "lock.mdb").mkdir()  # nobody, not even root, can read it as a file

    program = (
        "import sys; sys.modules['lmdb'] = None\n"
        "from pathlib import Path\n"
        "from inferometer.evaluators.datasets.opening import open_path\n"
        "print(sum(len(s.read().content) > 0 for s in open_path(Path(sys.argv[1]), 'vision')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.strip() == "5", done.stderr


def test_names_of_classes_in_the_folder_are_the_labels(tmp_path: Path) -> None:
    folder = write_lmdb(tmp_path / "lmdb", encoded(items(3)))
    (folder / "classes.txt").write_text("ant\nbee\n")

    dataset = LmdbDataset(folder, "vision")

    assert [sample.label for sample in dataset] == ["ant", "bee", "2"]
