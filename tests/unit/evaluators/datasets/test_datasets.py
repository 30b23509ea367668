"""Datasets: a folder, a zip and an ``.npz``: their samples, and invalid ones."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.preprocessing.inputs import EncodedImage, Pixels, Tensor
from inferometer.evaluators.datasets.base import Dataset
from inferometer.evaluators.datasets.opening import open_dataset, open_path
from inferometer.manifests.errors import DatasetError, InputError
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import DatasetManifest


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (4, 4), value).save(file, "PNG")
    return file.getvalue()


FILES = {"cat/0001.png": png(1), "dog/0000.png": png(2), "cat/0002.png": png(3), "dog/0001.png": png(4)}
ORDER = ["dog/0000.png", "cat/0001.png", "dog/0001.png", "cat/0002.png"]


def make_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def make_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def make(kind: str, tmp_path: Path, files: dict[str, bytes]) -> Path:
    return (
        make_folder(tmp_path / "data", files) if kind == "folder" else make_zip(tmp_path / "data.zip", files)
    )


def manifest(tmp_path: Path, **fields: str) -> DatasetManifest:
    content = {"kind": "dataset", "name": "pets", "version": "2.1", **fields}
    parsed = parse_manifest(content, tmp_path / "pets.yml")
    assert isinstance(parsed, DatasetManifest)
    return parsed


def ids(dataset: Dataset) -> list[str]:
    return [sample.id for sample in dataset]


@pytest.mark.parametrize("kind", ["folder", "zip"])
class TestImagesInFolders:
    def test_samples_go_by_file_name_and_then_by_class(self, kind: str, tmp_path: Path) -> None:
        dataset = open_path(make(kind, tmp_path, FILES), "vision")

        assert ids(dataset) == ORDER
        assert ids(dataset) == ORDER  # a second walk gives the same
        assert [sample.label for sample in dataset] == ["dog", "cat", "dog", "cat"]
        assert len(dataset) == dataset.identity.size == 4

    def test_a_sample_reads_the_bytes_of_its_file(self, kind: str, tmp_path: Path) -> None:
        dataset = open_path(make(kind, tmp_path, FILES), "vision")

        assert {sample.id: sample.read() for sample in dataset} == {
            name: EncodedImage(content) for name, content in FILES.items()
        }

    def test_hidden_files_and_files_that_are_no_images_are_ignored(self, kind: str, tmp_path: Path) -> None:
        noise = {
            ".DS_Store": b"",
            ".hidden/0.png": b"",
            "cat/._0001.png": b"",
            "cat/notes.txt": b"",
            "README.md": b"",
            "__MACOSX/._x.png": b"",
        }

        assert ids(open_path(make(kind, tmp_path, {**noise, **FILES}), "vision")) == ORDER

    def test_suffixes_compare_without_case(self, kind: str, tmp_path: Path) -> None:
        dataset = open_path(make(kind, tmp_path, {"cat/ILSVRC_1.JPEG": b"x"}), "vision")

        assert ids(dataset) == ["cat/ILSVRC_1.JPEG"]

    @pytest.mark.parametrize(
        "suffix",
        ["bmp", "gif", "j2k", "jp2", "jpeg", "jpg", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp"],
    )
    def test_every_format_that_is_decoded_is_found(self, kind: str, tmp_path: Path, suffix: str) -> None:
        assert ids(open_path(make(kind, tmp_path, {f"cat/1.{suffix}": b"x"}), "vision")) == [
            f"cat/1.{suffix}"
        ]

    def test_images_without_class_folders_are_unlabelled(self, kind: str, tmp_path: Path) -> None:
        dataset = open_path(make(kind, tmp_path, {"b.png": b"", "a.png": b""}), "vision")

        assert [(sample.id, sample.label) for sample in dataset] == [("a.png", None), ("b.png", None)]

    def test_images_deeper_in_a_class_folder_belong_to_the_class(self, kind: str, tmp_path: Path) -> None:
        files = {"cat/2024/1.png": b"", "dog/2.png": b""}

        dataset = open_path(make(kind, tmp_path, files), "vision")

        assert [(s.id, s.label) for s in dataset] == [("dog/2.png", "dog"), ("cat/2024/1.png", "cat")]

    def test_an_image_beside_class_folders_is_refused_by_name(self, kind: str, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"stray\.png lies beside class folders"):
            open_path(make(kind, tmp_path, {**FILES, "stray.png": b""}), "vision")

    def test_no_image_is_refused_with_what_is_accepted(self, kind: str, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"holds no images; accepted: .*jpeg.*png"):
            open_path(make(kind, tmp_path, {"cat/notes.txt": b""}), "vision")

    def test_control_characters_in_a_name_are_escaped(self, kind: str, tmp_path: Path) -> None:
        (sample,) = open_path(make(kind, tmp_path, {"a\nb/1\x1b.png": b"x"}), "vision")

        assert (sample.id, sample.label) == (r"a\nb/1\x1b.png", r"a\nb")
        assert sample.read() == EncodedImage(b"x")


class TestFolder:
    def test_an_empty_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="holds no images"):
            open_path(tmp_path, "vision")

    def test_a_file_that_went_away_fails_as_an_input(self, tmp_path: Path) -> None:
        dataset = open_path(make_folder(tmp_path / "data", FILES), "vision")
        (tmp_path / "data" / ORDER[0]).unlink()

        first, second, *_ = dataset
        with pytest.raises(InputError, match=r"input dog/0000\.png: cannot be read"):
            first.read()
        assert second.read() == EncodedImage(FILES[ORDER[1]])

    def test_a_link_to_nothing_is_a_sample_that_fails(self, tmp_path: Path) -> None:
        make_folder(tmp_path / "data", FILES)
        (tmp_path / "data" / "cat" / "0000.png").symlink_to("nowhere")

        sample = next(s for s in open_path(tmp_path / "data", "vision") if s.id == "cat/0000.png")

        with pytest.raises(InputError):
            sample.read()

    def test_a_pipe_with_an_images_name_fails_instead_of_blocking(self, tmp_path: Path) -> None:
        make_folder(tmp_path / "data", FILES)
        os.mkfifo(tmp_path / "data" / "cat" / "0000.png")

        sample = next(s for s in open_path(tmp_path / "data", "vision") if s.id == "cat/0000.png")

        with pytest.raises(InputError, match="is not a file"):
            sample.read()

    def test_a_linked_class_folder_is_read(self, tmp_path: Path) -> None:
        elsewhere = make_folder(tmp_path / "elsewhere", {"1.png": b"x"})
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "cat").symlink_to(elsewhere)

        assert [(s.id, s.label) for s in open_path(tmp_path / "data", "vision")] == [("cat/1.png", "cat")]

    def test_a_name_that_is_no_utf8_gives_an_id_that_can_be_stored(self, tmp_path: Path) -> None:
        folder = os.fsencode(tmp_path) + b"/cl\xe9"
        os.mkdir(folder)  # noqa: PTH102 - pathlib takes no bytes
        Path(os.fsdecode(folder + b"/\xff.png")).write_bytes(b"x")

        (sample,) = open_path(tmp_path, "vision")

        assert sample.id.encode("utf-8") == rb"cl\xe9/\xff.png"
        assert sample.label == r"cl\xe9"
        assert sample.read() == EncodedImage(b"x")

    def test_a_folder_is_named_by_its_path_and_has_no_checksum(self, tmp_path: Path) -> None:
        identity = open_path(make_folder(tmp_path / "data", FILES), "vision").identity

        assert (identity.name, identity.category) == (str(tmp_path / "data"), "vision")
        assert identity.version is None
        assert identity.checksum is None


class TestArchive:
    def test_folders_that_hold_everything_are_left_out(self, tmp_path: Path) -> None:
        wrapped = {f"export/pets/{name}": content for name, content in FILES.items()}

        dataset = open_path(make_zip(tmp_path / "data.zip", wrapped), "vision")

        assert ids(dataset) == ORDER
        assert next(iter(dataset)).read() == EncodedImage(FILES[ORDER[0]])

    def test_a_single_class_stays_the_class(self, tmp_path: Path) -> None:
        dataset = open_path(make_zip(tmp_path / "data.zip", {"cat/1.png": b"", "cat/2.png": b""}), "vision")

        assert {sample.label for sample in dataset} == {"cat"}

    def test_threads_read_at_once_and_each_gets_its_own_bytes(self, tmp_path: Path) -> None:
        noise = np.random.default_rng(0)
        files = {f"c{i % 3}/{i}.png": noise.bytes(5_000) + bytes(5_000) for i in range(40)}
        dataset = open_path(make_zip(tmp_path / "data.zip", files), "vision")
        samples = list(dataset) * 10

        with ThreadPoolExecutor(8) as threads:
            contents = list(threads.map(lambda sample: sample.read(), samples))

        assert contents == [EncodedImage(files[sample.id]) for sample in samples]

    def test_a_damaged_entry_fails_as_an_input_and_leaves_the_others(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", FILES, zipfile.ZIP_STORED)
        content = path.read_bytes()
        path.write_bytes(content.replace(FILES[ORDER[1]], b"?" * len(FILES[ORDER[1]]), 1))

        good, bad, *_ = open_path(path, "vision")

        assert good.read() == EncodedImage(FILES[ORDER[0]])
        with pytest.raises(InputError, match=r"input cat/0001\.png: cannot be read from .*CRC"):
            bad.read()

    def test_reading_after_close_fails_as_an_input(self, tmp_path: Path) -> None:
        dataset = open_path(make_zip(tmp_path / "data.zip", FILES), "vision")
        sample = next(iter(dataset))
        dataset.close()
        dataset.close()

        with pytest.raises(InputError):
            sample.read()

    @pytest.mark.parametrize("kept", [0.3, 0.9])
    def test_a_truncated_zip_is_refused(self, kept: float, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", FILES)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])

        with pytest.raises(DatasetError, match=r"data\.zip: is not a zip, or is damaged"):
            open_path(path, "vision")

    def test_a_zip_with_a_damaged_name_is_refused_as_a_zip(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", {"é/a.png": b"x"})
        path.write_bytes(path.read_bytes().replace("é".encode(), b"\xc3("))

        with pytest.raises(DatasetError, match=r"data\.zip: is not a zip, or is damaged: .*utf-8"):
            open_path(path, "vision")

    def test_an_entry_that_unpacks_to_more_than_an_image_is_refused(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", {"cat/bomb.png": b"x"})
        content = bytearray(path.read_bytes())
        directory = content.index(b"PK\x01\x02")
        struct.pack_into("<L", content, directory + 24, 3 * 2**30)  # the unpacked size that it declares
        path.write_bytes(content)

        with pytest.raises(DatasetError, match=r"cat/bomb\.png: is 3221225472 bytes"):
            open_path(path, "vision")

    def test_an_error_without_a_message_is_named_by_its_class(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = open_path(make_zip(tmp_path / "data.zip", FILES), "vision")

        def ended(*_: object) -> bytes:
            raise EOFError  # as zipfile does where an entry is cut off

        monkeypatch.setattr(zipfile.ZipExtFile, "read", ended)
        with pytest.raises(InputError, match=r"cannot be read from .*data\.zip: EOFError$"):
            next(iter(dataset)).read()

    def test_a_zip_with_a_password_is_refused(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", {"cat/1.png": b"x"})
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)

        with pytest.raises(DatasetError, match=r"cat/1\.png is encrypted"):
            open_path(path, "vision")

    def test_an_unusual_compression_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="accepted: stored or deflated"):
            open_path(make_zip(tmp_path / "data.zip", FILES, zipfile.ZIP_BZIP2), "vision")

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_an_entry_that_is_there_twice_is_refused(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", FILES)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("cat/0001.png", b"other")

        with pytest.raises(DatasetError, match=r"holds cat/0001\.png twice"):
            open_path(path, "vision")

    def test_a_zip_is_known_by_its_content_too(self, tmp_path: Path) -> None:
        assert ids(open_path(make_zip(tmp_path / "data.dat", FILES), "vision")) == ORDER

    def test_its_checksum_is_recorded(self, tmp_path: Path) -> None:
        path = make_zip(tmp_path / "data.zip", FILES)

        expected = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert open_path(path, "vision").identity.checksum == expected


class TestArrays:
    @pytest.mark.parametrize(
        ("shape", "each"), [((3, 5, 4), (5, 4)), ((3, 5, 4, 1), (5, 4)), ((3, 5, 4, 3), (5, 4, 3))]
    )
    def test_uint8_gives_pixels(self, shape: tuple[int, ...], each: tuple[int, ...], tmp_path: Path) -> None:
        images = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)

        samples = list(open_path(make_npz(tmp_path / "d.npz", images=images, labels=np.arange(3)), "vision"))

        assert [(sample.id, sample.label) for sample in samples] == [("0", "0"), ("1", "1"), ("2", "2")]
        for index, sample in enumerate(samples):
            data = sample.read()
            assert isinstance(data, Pixels)
            assert data.array.dtype == np.uint8
            np.testing.assert_array_equal(data.array, images[index].reshape(each))

    @pytest.mark.parametrize("dtype", ["<f4", "<f2", "<f8", ">f4"])
    def test_floats_give_tensors(self, dtype: str, tmp_path: Path) -> None:
        images = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 2, 2).astype(dtype)

        first, second = open_path(make_npz(tmp_path / "d.npz", x=images, y=np.array(["a", "b"])), "vision")

        assert (first.label, second.label) == ("a", "b")
        data = second.read()
        assert isinstance(data, Tensor)
        assert data.array.dtype.isnative
        np.testing.assert_array_equal(data.array, images[1])

    @pytest.mark.parametrize(
        ("labels", "texts"),
        [
            (np.array([7, -1], np.int16), ["7", "-1"]),
            (np.array([[7], [250]], np.uint8), ["7", "250"]),
            (np.array(["tabby cat", "ß"]), ["tabby cat", "ß"]),
            (np.array(["ß".encode(), b"dog"]), ["ß", "dog"]),
        ],
    )
    def test_labels_become_text(self, labels: np.ndarray, texts: list[str], tmp_path: Path) -> None:
        path = make_npz(tmp_path / "d.npz", images=np.zeros((2, 4, 4), np.uint8), labels=labels)

        assert [sample.label for sample in open_path(path, "vision")] == texts

    def test_without_labels_samples_are_unlabelled(self, tmp_path: Path) -> None:
        path = make_npz(tmp_path / "d.npz", images=np.zeros((2, 4, 4), np.uint8))

        assert [sample.label for sample in open_path(path, "vision")] == [None, None]

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"pictures": np.zeros((2, 4, 4), np.uint8)}, "no array images .*it has: pictures"),
            ({"images": np.zeros((0, 4, 4), np.uint8)}, "holds no images"),
            ({"images": np.zeros((2, 0, 4), np.uint8)}, "which is empty"),
            ({"images": np.zeros((2, 3, 4, 4), np.uint8)}, r"uint8 of shape \[2, 3, 4, 4\]; accepted"),
            ({"images": np.zeros((2, 4), np.uint8)}, r"uint8 of shape \[2, 4\]; accepted"),
            ({"images": np.zeros(2, np.float32)}, r"float32 of shape \[2\]; accepted"),
            ({"images": np.float32(1)}, r"float32 of shape \[\]; accepted"),
            ({"images": np.zeros((2, 4, 4), np.int64)}, "int64 of shape .*accepted: uint8"),
            ({"images": np.zeros((2, 4, 4), np.complex64)}, "complex64 of shape"),
            ({"images": np.array([{}, {}])}, "not an .npz of plain arrays"),
        ],
    )
    def test_other_images_are_refused(
        self, arrays: dict[str, np.ndarray], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(DatasetError, match=message):
            open_path(make_npz(tmp_path / "d.npz", **arrays), "vision")

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            (np.arange(3), r"labels have shape \[3\], but there are 2 samples"),
            (np.eye(2, dtype=np.int64), r"labels have shape \[2, 2\], but there are 2 samples"),
            (np.array([0.0, 1.0]), "labels are float64; accepted: whole numbers or texts"),
            (np.array([b"\xff", b"a"]), "not UTF-8"),
            (np.array(["a", None]), "not an .npz of plain arrays"),
        ],
    )
    def test_other_labels_are_refused(self, labels: np.ndarray, message: str, tmp_path: Path) -> None:
        path = make_npz(tmp_path / "d.npz", images=np.zeros((2, 4, 4), np.uint8), labels=labels)

        with pytest.raises(DatasetError, match=message):
            open_path(path, "vision")

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        path = make_npz(tmp_path / "d.npz", images=np.ones((20, 4, 4), np.uint8))
        content = bytearray(path.read_bytes())
        content[200] ^= 0xFF
        path.write_bytes(content)

        with pytest.raises(DatasetError, match=r"d\.npz: is not an \.npz"):
            open_path(path, "vision")

    @pytest.mark.parametrize("content", [b"", b"text", b"\x80\x04N."])
    def test_a_file_that_is_no_npz_is_refused(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "d.npz").write_bytes(content)

        with pytest.raises(DatasetError, match=r"d\.npz: is not an \.npz"):
            open_path(tmp_path / "d.npz", "vision")

    def test_a_single_array_is_refused(self, tmp_path: Path) -> None:
        np.save(tmp_path / "d.npy", np.zeros((2, 4, 4), np.uint8))
        (tmp_path / "d.npy").rename(tmp_path / "d.npz")

        with pytest.raises(DatasetError, match="is a single array"):
            open_path(tmp_path / "d.npz", "vision")


class TestOpening:
    def test_a_missing_path_says_what_is_accepted(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"nowhere does not exist; accepted: a folder .*zip.*\.npz"):
            open_path(tmp_path / "nowhere", "vision")

    def test_another_file_says_what_is_accepted(self, tmp_path: Path) -> None:
        (tmp_path / "data.txt").write_text("cat")

        with pytest.raises(DatasetError, match=r"data\.txt is none that can be read; accepted: a folder"):
            open_path(tmp_path / "data.txt", "vision")

    def test_a_name_that_no_file_can_have_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="cannot be read: File name too long"):
            open_path(tmp_path / ("x" * 5000), "vision")

    @pytest.mark.parametrize("algorithm", ["sha256", "md5"])
    def test_a_manifest_gives_name_version_and_checksum(self, algorithm: str, tmp_path: Path) -> None:
        content = make_zip(tmp_path / "data.zip", FILES).read_bytes()
        checksum = hashlib.new(algorithm, content).hexdigest()
        fields = {
            "path": "data.zip",
            "checksum": f"sha256:{checksum.upper()}" if algorithm == "sha256" else checksum,
        }

        identity = open_dataset(manifest(tmp_path, category="pictures", **fields)).identity

        assert (identity.category, identity.name, identity.version) == ("pictures", "pets", "2.1")
        assert identity.checksum == "sha256:" + hashlib.sha256(content).hexdigest()

    def test_a_manifest_may_name_a_folder(self, tmp_path: Path) -> None:
        make_folder(tmp_path / "data", FILES)

        dataset = open_dataset(manifest(tmp_path, path="data"))

        assert ids(dataset) == ORDER
        assert (dataset.identity.name, dataset.identity.checksum) == ("pets", None)

    def test_a_changed_file_is_refused(self, tmp_path: Path) -> None:
        make_zip(tmp_path / "data.zip", FILES)

        with pytest.raises(DatasetError, match=r"data\.zip: is changed or truncated"):
            open_dataset(manifest(tmp_path, path="data.zip", checksum="sha256:" + "0" * 64))

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"data\.zip is missing"):
            open_dataset(manifest(tmp_path, path="data.zip"))

    def test_a_checksum_for_a_folder_is_refused(self, tmp_path: Path) -> None:
        make_folder(tmp_path / "data", FILES)

        with pytest.raises(DatasetError, match="is a folder, which has none"):
            open_dataset(manifest(tmp_path, path="data", checksum="0" * 32))
