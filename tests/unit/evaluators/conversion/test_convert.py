"""Conversions: what is kept, what is refused, and what is left when one ends early."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inferometer.agent.files import lock
from inferometer.agent.preprocessing.inputs import EncodedImage, Payload, Pixels, Tensor, Url
from inferometer.evaluators.conversion.convert import TARGETS, Conversion, check_dataset, convert
from inferometer.evaluators.conversion.writers import Encoding, suffix_of
from inferometer.evaluators.datasets.base import Dataset, DatasetIdentity, Sample
from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import ConfigurationError, DatasetError, InputError, OutputError
from tests.dataset_files import items
from tests.optional_mxnet import mxnet

Labelled = tuple[Payload | str, str | None]


class Given(Dataset):
    """A dataset of given samples; a text in place of the data is why it cannot be read."""

    def __init__(self, samples: Sequence[Labelled], *, indices: bool = False) -> None:
        super().__init__(DatasetIdentity("vision", "given", None, None, len(samples)))
        self._samples = samples
        self.labels_are_indices = indices
        self.reads = 0

    def __iter__(self) -> Iterator[Sample]:
        for number, (payload, label) in enumerate(self._samples):

            def read(payload: Payload | str = payload) -> Payload:
                self.reads += 1
                if isinstance(payload, str):
                    raise InputError(payload)
                return payload

            yield Sample(str(number), read, label, self.labels_are_indices)


def png(mode: str = "RGB", size: tuple[int, int] = (6, 4), seed: int = 0) -> EncodedImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue())


def place(folder: Path, backend: str) -> Path:
    return folder / ("out.npz" if backend == "npz" else "out")


def read(path: Path) -> list[tuple[Payload, str | None]]:
    dataset = open_path(path, "vision")
    found = [(sample.read(), sample.label) for sample in dataset]
    dataset.close()
    return found


IMAGES: list[Labelled] = [(png(seed=n), f"class {n % 3}") for n in range(7)]


@pytest.mark.parametrize("backend", ["recordio", "caffe_lmdb", "image_folder"])
def test_encoded_images_keep_their_bytes_their_order_and_their_labels(tmp_path: Path, backend: str) -> None:
    done = convert(Given(IMAGES), place(tmp_path, backend), backend)

    assert read(done.path) == IMAGES
    assert (done.samples, done.failed, done.resumed) == (7, 0, 0)
    assert done.payload_bytes == sum(len(p.content) for p, _ in IMAGES if isinstance(p, EncodedImage))
    assert [path.name for path in tmp_path.iterdir()] == [done.path.name]


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("labels", ["indices", "none"])
def test_labels_that_are_indices_or_missing_stay_so(tmp_path: Path, backend: str, labels: str) -> None:
    names = ["4", "0", "11"] if labels == "indices" else [None] * 3
    source = Given([(png(seed=n), name) for n, name in enumerate(names)], indices=labels == "indices")

    done = convert(source, place(tmp_path, backend), backend)

    assert [label for _, label in read(done.path)] == names
    assert not list(tmp_path.rglob("*classes.txt"))


def test_mxnet_reads_the_records_that_are_written(tmp_path: Path) -> None:
    convert(Given(IMAGES), tmp_path / "out", "recordio")

    reader = mxnet.recordio.MXIndexedRecordIO(
        str(tmp_path / "out/train.idx"), str(tmp_path / "out/train.rec"), "r"
    )
    for number, (payload, label) in enumerate(IMAGES):
        header, content = mxnet.recordio.unpack(reader.read_idx(number))
        assert EncodedImage(content) == payload
        assert label == f"class {int(header.label)}"
    reader.close()


def test_a_rec_can_be_named(tmp_path: Path) -> None:
    convert(Given(IMAGES), tmp_path / "some.rec", "recordio")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.classes.txt", "some.idx", "some.rec"]
    assert read(tmp_path / "some.rec") == IMAGES


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "LA", "1", "RGBA", "mixed"])
def test_an_npz_has_grey_pixels_if_all_images_are_grey(tmp_path: Path, mode: str) -> None:
    images = [
        png("RGB" if mode == "mixed" and n else "L" if mode == "mixed" else mode, seed=n) for n in range(3)
    ]

    convert(Given([(image, "a") for image in images]), tmp_path / "out.npz", "npz")

    shape = (4, 6) if mode in {"L", "LA", "1"} else (4, 6, 3)
    for (found, _), image in zip(read(tmp_path / "out.npz"), images, strict=True):
        assert isinstance(found, Pixels)
        assert found.array.shape == shape
        expected = Image.open(io.BytesIO(image.content)).convert("L" if len(shape) == 2 else "RGB")
        np.testing.assert_array_equal(found.array, np.asarray(expected))


def test_tensors_go_into_an_npz_and_an_lmdb_only(tmp_path: Path) -> None:
    tensors = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    source = Given([(Tensor(tensor), "a") for tensor in tensors])

    for backend in ("npz", "caffe_lmdb"):
        convert(source, tmp_path / backend / place(tmp_path, backend).name, backend)
        found = [payload for payload, _ in read(tmp_path / backend / place(tmp_path, backend).name)]
        for payload, tensor in zip(found, tensors, strict=True):
            assert isinstance(payload, Tensor)
            np.testing.assert_array_equal(payload.array, tensor)
    for backend in ("recordio", "image_folder"):
        with pytest.raises(DatasetError, match="given: 0: is tensor data, not an image"):
            convert(source, tmp_path / "other", backend)


def test_sizes_and_quality_are_as_asked_for(tmp_path: Path) -> None:
    [jpeg] = items(1, side=50, kind="JPEG")
    source = Given([(png(size=(60, 40)), "a"), (EncodedImage(jpeg.content), "b"), (Pixels(jpeg.pixels), "c")])

    convert(source, tmp_path / "small", "image_folder", Encoding(resize=10))
    convert(source, tmp_path / "poor", "recordio", Encoding(quality=20))
    convert(source, tmp_path / "square.npz", "npz", Encoding(resize=10))

    small = [payload for payload, _ in read(tmp_path / "small") if isinstance(payload, EncodedImage)]
    assert [suffix_of(image.content) for image in small] == [".png", ".jpg", ".png"]
    assert [Image.open(io.BytesIO(image.content)).size for image in small] == [(15, 10), (10, 10), (10, 10)]
    poor = [payload for payload, _ in read(tmp_path / "poor") if isinstance(payload, EncodedImage)]
    assert [suffix_of(image.content) for image in poor] == [".jpg"] * 3
    assert len(poor[1].content) < len(jpeg.content)
    assert {p.array.shape for p, _ in read(tmp_path / "square.npz") if isinstance(p, Pixels)} == {(10, 10, 3)}


@pytest.mark.parametrize("backend", TARGETS)
def test_a_sample_that_fails_ends_it_and_it_goes_on_when_that_is_repaired(
    tmp_path: Path, backend: str
) -> None:
    broken = [*IMAGES[:4], ("gone", "class 1"), *IMAGES[5:]]
    target = place(tmp_path, backend)
    with pytest.raises(
        DatasetError, match="given: 4: gone; leave out such samples with --fail_on_error=false"
    ):
        convert(Given(broken), target, backend)
    assert not target.exists()

    done = convert(Given(IMAGES), target, backend)

    assert [label for _, label in read(target)] == [label for _, label in IMAGES]
    assert done.samples == 7


@pytest.mark.parametrize("backend", TARGETS)
def test_samples_that_fail_are_left_out_counted_and_named(tmp_path: Path, backend: str) -> None:
    broken = [("lost", "class 2"), *IMAGES[:4], (EncodedImage(b"words"), "class 1"), *IMAGES[5:]]
    source = Given(broken)

    done = convert(source, place(tmp_path, backend), backend, fail_on_error=False)

    assert (done.samples, done.failed) == (6, 2)
    assert done.failures[0] == "0: lost"
    assert done.failures[1].startswith("5: image of 5 bytes cannot be decoded")
    kept = [label for number, (_, label) in enumerate(broken) if number not in {0, 5}]
    assert [label for _, label in read(done.path)] == kept


def test_nothing_but_failures_is_no_dataset(tmp_path: Path) -> None:
    for backend in TARGETS:
        target = tmp_path / (f"{backend}.npz" if backend == "npz" else backend)
        with pytest.raises(DatasetError, match="given: no sample can be read"):
            convert(Given([("a", None), ("b", None)]), target, backend, fail_on_error=False)
        assert not target.exists()


@pytest.mark.parametrize(
    ("samples", "backend", "message"),
    [
        ([(png(), "a/b")], "image_folder", "cannot be the name of a folder"),
        ([(png(), "..")], "image_folder", "cannot be the name of a folder"),
        ([(png(), "a"), (png(), None)], "image_folder", "only some samples have a class"),
        ([(png(), "a"), (png(), None)], "npz", "only some samples have a class"),
        ([(png(), "a "), (png(), "b")], "recordio", "cannot be a line of a file"),
        ([(png(), "a"), (png(size=(5, 5)), "b")], "npz", r"shape \[5, 5, 3\], and the first one .* --resize"),
        ([(Url("http://x"), "a")], "recordio", "is url data, not an image"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    tmp_path: Path, samples: list[Labelled], backend: str, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        convert(Given(samples), place(tmp_path, backend), backend)
    assert not place(tmp_path, backend).exists()


@pytest.mark.parametrize(
    ("target", "backend", "encoding", "message"),
    [
        ("out", "tfrecord", {}, "to is tfrecord; allowed: recordio"),
        ("out", "recordio", {"raw": True}, "raw is only for caffe_lmdb"),
        ("out", "npz", {}, "an .npz must have that suffix"),
        ("out.npz", "npz", {"quality": 3}, "pixels, which have no quality"),
        ("out.npz", "recordio", {}, "is the name of a file, but recordio is a folder"),
        ("out", "caffe_lmdb", {"raw": True, "quality": 3}, "raw pixels have no quality"),
        ("out", "recordio", {"resize": 0}, "resize is 0; allowed: 1 to 16384"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, target: str, backend: str, encoding: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        convert(Given(IMAGES), tmp_path / target, backend, Encoding(**encoding))  # type: ignore[arg-type]


def test_a_target_that_exists_is_kept(tmp_path: Path) -> None:
    for name in ("out", "out.rec"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(OutputError, match=f"{name}: exists; remove it, or name another target"):
            convert(Given(IMAGES), tmp_path / name, "recordio")
        assert (tmp_path / name).read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.rec"}


def test_what_another_conversion_has_left_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        convert(Given([*IMAGES, ("gone", "class 0")]), tmp_path / "out", "recordio")
    # the journal is written when a file is flushed, at the end of a whole conversion or after seconds
    (tmp_path / "out.partial" / "journal.json").write_text('{"version": 1, "task": {"samples": 3}}')

    with pytest.raises(OutputError, match=r"out\.partial: is from another conversion, .* samples"):
        convert(Given(IMAGES), tmp_path / "out", "recordio")
    (tmp_path / "out.partial" / "journal.json").write_text("{")
    with pytest.raises(OutputError, match=r"journal\.json: is damaged; remove"):
        convert(Given(IMAGES), tmp_path / "out", "recordio")


def test_two_processes_do_not_write_one_target(tmp_path: Path) -> None:
    with (
        lock(tmp_path / "out.partial.lock"),
        pytest.raises(OutputError, match=r"out\.partial: another process is writing it"),
    ):
        convert(Given(IMAGES), tmp_path / "out", "recordio")


def test_a_full_pipe_for_the_progress_is_no_other_process(tmp_path: Path) -> None:
    def tell(*_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "the pipe is full")

    with pytest.raises(OutputError, match="out: cannot be written: the pipe is full"):
        convert(Given(IMAGES), tmp_path / "out", "recordio", on_progress=tell)


def test_what_does_not_read_back_equal_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "inferometer.evaluators.conversion.convert.publish", lambda *_: pytest.fail("it was shown")
    )

    def damage(what: str, done: int, total: int) -> None:
        if (what, done) == ("checking", 1):
            path = tmp_path / "out.partial" / "content" / "train.rec"
            content = bytearray(path.read_bytes())
            content[-8] ^= 1
            path.write_bytes(content)

    with pytest.raises(DatasetError, match=r"holds 7 samples with the checksum .* to begin again"):
        convert(Given(IMAGES), tmp_path / "out", "recordio", on_progress=damage)


def test_progress_is_of_writing_and_checking(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    convert(Given(IMAGES), tmp_path / "out", "recordio", on_progress=lambda *what: seen.append(what))

    assert seen == [(what, n, 7) for what in ("writing", "checking") for n in range(1, 8)]


def test_a_check_counts_what_there_is_and_names_what_fails(tmp_path: Path) -> None:
    truncated = EncodedImage(IMAGES[0][0].content[:80])  # type: ignore[union-attr]
    samples = [*IMAGES, ("gone", "class 1"), (truncated, None), (Pixels(np.zeros((3, 3), np.uint8)), "x")]

    found = check_dataset(Given(samples))

    assert (found.samples, found.failed, found.labelled, found.classes) == (10, 2, 9, 4)
    assert found.kinds == {"EncodedImage": 7, "Pixels": 1}
    assert found.failures[0] == "7: gone"
    assert found.failures[1].startswith("8: image of 80 bytes cannot be decoded")


def jpeg(seed: int) -> EncodedImage:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((48, 48)).save(buffer, "JPEG")
    return EncodedImage(buffer.getvalue())


@pytest.mark.parametrize("backend", ["recordio", "caffe_lmdb"])
@pytest.mark.parametrize(("encode", "unprotected"), [(jpeg, 8), (png, 0)], ids=["JPEG", "PNG"])
def test_a_check_sees_flipped_bytes_in_the_data_or_in_the_sum(
    encode: Callable[..., EncodedImage], unprotected: int, backend: str, tmp_path: Path
) -> None:
    samples: list[Labelled] = [(encode(seed=number), str(number)) for number in range(8)]
    done = convert(Given(samples), tmp_path / "out", backend)
    with closing(open_path(tmp_path / "out", "vision")) as dataset:
        whole = check_dataset(dataset)
    assert (whole.failed, whole.unprotected, whole.checksum) == (0, unprotected, done.checksum)

    [path] = [*tmp_path.glob("out/*.rec"), *tmp_path.glob("out/data.mdb")]
    content = bytearray(path.read_bytes())
    for image in (encode(seed=number) for number in range(8)):  # one byte of each, in the compressed data
        content[content.index(image.content) + len(image.content) - 20] ^= 0x55
    path.write_bytes(content)
    with closing(open_path(tmp_path / "out", "vision")) as dataset:
        damaged = check_dataset(dataset)

    assert damaged.checksum != whole.checksum
    assert damaged.unprotected == unprotected - (damaged.failed if unprotected else 0)
    if not unprotected:  # PNG has checksums
        assert (damaged.failed, damaged.checksum) == (8, None)


@pytest.mark.parametrize("cut", [8, 40, 400])
def test_a_check_names_what_is_cut_off(cut: int, tmp_path: Path) -> None:
    convert(Given([(jpeg(number), "0") for number in range(3)]), tmp_path / "out.rec", "recordio")
    path = tmp_path / "out.rec"
    path.write_bytes(path.read_bytes()[:-cut])

    with closing(open_path(path, "vision")) as dataset:
        found = check_dataset(dataset)

    assert (found.samples, found.failed, found.checksum) == (3, 1, None)
    assert "record 2 at byte" in found.failures[0]


def test_a_conversion_says_where_it_went_on(tmp_path: Path) -> None:
    class Killed(BaseException):
        """What ends a process between two samples."""

    def kill(what: str, done: int, total: int) -> None:
        if (what, done) == ("checking", 3):
            raise Killed

    with pytest.raises(Killed):
        convert(Given(IMAGES), tmp_path / "out", "recordio", on_progress=kill)
    source = Given(IMAGES)
    done: Conversion = convert(source, tmp_path / "out", "recordio")

    assert (done.resumed, done.samples, source.reads) == (7, 7, 0)
    assert read(tmp_path / "out") == IMAGES


def test_what_a_process_left_that_was_killed_after_publishing_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Given([(png(), "0")]), tmp_path / "out.npz"
    with monkeypatch.context() as killed:
        killed.setattr("shutil.rmtree", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(source, target, "npz")
    assert target.exists()
    assert (tmp_path / "out.npz.partial").is_dir()

    with pytest.raises(OutputError, match=r"out\.npz: exists"):
        convert(source, target, "npz")

    assert not (tmp_path / "out.npz.partial").exists()
