"""``agent data``, and ``agent predict dataset`` over what people have on their disks."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from file_server import FileServer
from PIL import Image

from inferometer.evaluators.conversion import published
from inferometer.manifests.files import BUILTIN
from tests.dataset_files import cifar_records, idx, items, write_archive, write_folder, write_idx

DIGITS = BUILTIN / "datasets" / "digits_validation" / "digits_validation.zip"
ALL = ("--num_file_parts=-1", "--publish=false", "--framework_name=ONNXRuntime")
RIGHT = "(447 of 450 inputs)"


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The shipped digits as pixels, with their classes."""
    with zipfile.ZipFile(DIGITS) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in names]
        return np.stack(pixels), np.array([int(name.split("/")[-2]) for name in names], np.uint8)


@pytest.mark.parametrize(
    ("backend", "options"),
    [("recordio", []), ("caffe_lmdb", []), ("caffe_lmdb", ["--raw"]), ("image_folder", []), ("npz", [])],
)
def test_what_is_converted_is_as_accurate_in_every_format(agent, tmp_path, backend, options):
    target = tmp_path / ("digits.npz" if backend == "npz" else "digits")
    converted = agent("data", "convert", str(DIGITS), str(target), f"--to={backend}", *options)
    assert (converted.code, converted.stderr) == (0, "")
    assert converted.figure("source").startswith("zip of 450 samples")
    assert converted.figure("written").endswith(" bytes, 0 left out")
    assert converted.figure("target") == f"{backend} at {target}"

    checked = agent("data", "check", str(target))
    assert (checked.code, checked.stderr) == (0, "")
    assert (checked.figure("format"), checked.figure("samples")) == (backend, "450")
    assert checked.figure("labelled") == "450 of 10 classes"
    assert checked.figure("failed") == "0"
    assert converted.figure("checked") == f"sum {checked.figure('sum')}"
    decoded = "read 450 samples" if options or backend == "npz" else "decoded 450 images"
    no_checksum = "; the format has no checksum: damage that still decodes changes only the sum"
    assert checked.figure("checked") == decoded + (no_checksum if options else ", with their checksums")

    found = agent("predict", "dataset", f"--dataset_path={target}", *ALL)
    assert found.code == 0, found.stderr
    assert found.figure("top-1").endswith(RIGHT)


@pytest.mark.parametrize("named", [False, True])
def test_the_idx_files_of_digits_are_predicted(agent, tmp_path, named):
    path = write_idx(tmp_path, *digits(), part="t10k", zipped=True)

    options = [f"--dataset_path={tmp_path if named else path}", *(["--data_backend=mnist"] if named else [])]
    found = agent("predict", "dataset", *options, *ALL)

    assert found.code == 0, found.stderr
    assert found.figure("top-1").endswith(RIGHT)


def test_records_without_an_index_or_names_are_predicted_by_their_indices(agent, tmp_path):
    agent("data", "convert", str(DIGITS), str(tmp_path / "digits.rec"), "--to=recordio")
    (tmp_path / "digits.idx").unlink()
    (tmp_path / "digits.classes.txt").unlink()

    found = agent("predict", "dataset", f"--dataset_path={tmp_path / 'digits.rec'}", *ALL)

    assert found.figure("top-1").endswith(RIGHT)


def test_a_truncated_file_of_records_has_failed_inputs(agent, tmp_path):
    agent("data", "convert", str(DIGITS), str(tmp_path / "digits.rec"), "--to=recordio")
    path = tmp_path / "digits.rec"
    path.write_bytes(path.read_bytes()[:-100])

    stopped = agent("predict", "dataset", f"--dataset_path={path}", *ALL)
    assert stopped.code == 1
    assert "digits.rec: record 449 at byte " in stopped.stderr

    counted = agent("predict", "dataset", f"--dataset_path={path}", "--fail_on_error=false", *ALL)
    assert counted.code == 1
    assert counted.figure("failures").startswith("1")
    assert counted.figure("top-1").endswith("of 449 inputs)")


def test_a_check_reports_what_is_damaged_and_exits_with_4(agent, tmp_path):
    root = write_folder(tmp_path / "images", items(30))
    (root / "1" / "text.jpg").write_text("no image")
    (root / "readme.txt").write_text("ignored")

    found = agent("data", "check", str(root))

    assert found.code == 4
    assert (found.figure("samples"), found.figure("failed")) == ("31", "1")
    assert found.figure("readable") == "30 EncodedImage"
    assert found.error.startswith("failed   1/text.jpg: image of 8 bytes cannot be decoded")


def test_a_check_of_many_damaged_samples_is_bounded(agent, tmp_path):
    root = tmp_path / "images"
    (root / "a").mkdir(parents=True)
    for number in range(30):
        (root / "a" / f"{number:02d}.png").write_text("no image")

    found = agent("data", "check", str(root))

    assert found.code == 4
    lines = found.stderr.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "failed   10 more"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "nowhere"], 4, "dataset nowhere does not exist"),
        (["check", ".", "--data_backend=tfrecord"], 2, 'unknown data_backend "tfrecord"'),
        (["convert", "nowhere", "out", "--to=npz"], 4, "dataset nowhere does not exist"),
        (["convert", str(DIGITS), "out", "--to=npz"], 2, "out: an .npz must have that suffix"),
        (["convert", str(DIGITS), "out", "--to=tfrecord"], 2, "'tfrecord' is not one of"),
        (["convert", str(DIGITS), "out"], 2, "Missing option '--to'"),
        (["convert", str(DIGITS), "out", "--to=npz", "--quality=101"], 2, "101 is not in the range"),
        (["download", "minst"], 2, 'unknown dataset "minst"; did you mean "mnist"'),
    ],
)
def test_mistakes_are_one_line(agent, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)

    found = agent("data", *arguments)

    assert found.code == code
    assert message in found.error


def test_a_sample_that_fails_ends_a_conversion_or_is_left_out(agent, tmp_path):
    root = write_folder(tmp_path / "images", items(5))
    (root / "1" / "text.jpg").write_text("no image")
    command = ("data", "convert", str(root), str(tmp_path / "out"), "--to=recordio")

    stopped = agent(*command)
    assert stopped.code == 4
    assert "1/text.jpg: image of 8 bytes cannot be decoded" in stopped.stderr
    assert not (tmp_path / "out").exists()

    counted = agent(*command, "--fail_on_error=false")
    assert counted.code == 4
    assert counted.figure("written").startswith("5 samples, ")
    assert counted.stderr.startswith("left out 1/text.jpg: ")


def test_a_target_is_not_overwritten(agent, tmp_path):
    (tmp_path / "out").mkdir()

    found = agent("data", "convert", str(DIGITS), str(tmp_path / "out"), "--to=recordio")

    assert found.code == 7
    assert found.error.endswith("out: exists; remove it, or name another target")


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def publisher(file_server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FileServer:
    """A server with small files in place of the published ones, whose checksums are expected."""
    pixels, labels = digits()
    content = {
        f"{part}-{name}-ubyte.gz": gzip.compress(idx(array[:count]), mtime=0)
        for part, count in (("train", 40), ("t10k", 10))
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels))
    }
    large = items(12, side=32)
    batches = {"data_batch_1.bin": cifar_records(large[:8]), "test_batch.bin": cifar_records(large[8:])}
    folder = {f"cifar-10-batches-bin/{name}": each for name, each in batches.items()}
    content["cifar-10-binary.tar.gz"] = write_archive(tmp_path / "x.tar.gz", folder).read_bytes()
    changed = []
    for dataset in published.PUBLISHED:
        for name in dataset.files:
            file_server.serve(f"/{dataset.name}/{name}", content[name])
        files = {name: md5(content[name]) for name in dataset.files}
        changed.append(replace(dataset, base_url=f"{file_server.url}/{dataset.name}", files=files))
    monkeypatch.setattr(published, "PUBLISHED", tuple(changed))
    return file_server


@pytest.mark.parametrize(
    ("name", "counts"), [("mnist", (40, 10)), ("cifar10", (8, 4)), ("fashion_mnist", (40, 10))]
)
def test_a_download_is_checked_and_says_where_it_lies(agent, publisher, name, counts):
    found = agent("data", "download", name)

    assert (found.code, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    for line, part, count in zip(lines[-2:], ("training", "validation"), counts, strict=True):
        assert line.split()[:3] == [part, str(count), "samples"]
        assert agent("data", "check", line.split()[-1]).figure("samples") == str(count)
    again = agent("data", "download", name)
    assert again.code == 0
    assert again.stdout.count("already there") == len(lines) - 2
    rows = {row["name"]: row for row in agent("data", "list", "-f", "csv").rows}
    assert [name for name, row in rows.items() if row["is_downloaded"] == "true"] == [name]


def test_a_download_goes_into_a_folder_and_from_a_mirror(agent, publisher, file_server, tmp_path):
    found = agent(
        "data", "download", "mnist", f"--to={tmp_path / 'here'}", f"--mirror={file_server.url}/mnist/"
    )

    assert found.code == 0, found.stderr
    assert len(list((tmp_path / "here").iterdir())) == 4


def test_other_content_than_published_is_refused(agent, publisher, file_server):
    file_server.serve("/mnist/t10k-labels-idx1-ubyte.gz", b"other")

    found = agent("data", "download", "mnist")

    assert found.code == 4
    assert "is not the file that is meant: its md5 is" in found.error


def test_a_changed_file_is_found_before_it_is_used(agent, publisher, tmp_path):
    agent("data", "download", "mnist", f"--to={tmp_path}")
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"changed")

    found = agent("data", "download", "mnist", f"--to={tmp_path}")

    assert found.code == 4
    assert "is changed or truncated" in found.error


def test_what_can_be_downloaded_is_listed_with_its_publishers_addresses(agent):
    rows = agent("data", "list", "-f", "csv").rows

    assert {row["name"]: row["is_downloaded"] for row in rows} == {
        "cifar10": "false",
        "fashion_mnist": "false",
        "mnist": "false",
    }
    assert all(int(row["size_bytes"]) > 10_000_000 for row in rows)


def test_ilsvrc_is_named_with_its_path_or_says_how_to_get_it(agent, tmp_path):
    missing = agent("predict", "dataset", "--dataset_name=ilsvrc2012_validation", *ALL)
    assert missing.code == 4
    assert "get ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from" in missing.error

    for number, item in enumerate(items(2, kind="JPEG"), start=1):
        (tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(item.content)
    (tmp_path / "val.txt").write_text("ILSVRC2012_val_00000001.JPEG 0\nILSVRC2012_val_00000002.JPEG 1\n")
    named = ("--dataset_name=ilsvrc2012_validation", f"--dataset_path={tmp_path}")
    other = agent("predict", "dataset", *named, *ALL)
    assert 'class "n01440764" is none of the 10 classes of the model' in other.error

    found = agent(
        "predict", "dataset", *named, "--model_name=ResNet18", "--weights=random", "--framework_name=PyTorch",
        "--publish=false", "--batch_size=2", "--num_file_parts=1", "--warmup_num_file_parts=0",
    )  # fmt: skip
    assert found.code == 0, found.stderr
    assert "over ilsvrc2012_validation, 2 inputs" in found.stdout

    downloaded = agent("download", "dataset", "--dataset_name=ilsvrc2012_validation")
    assert downloaded.code == 4
    assert "cannot be downloaded: get ILSVRC2012_img_val.tar" in downloaded.error


def test_the_configuration_says_where_ilsvrc_lies(agent, tmp_path):
    configuration = tmp_path / "config.yaml"
    configuration.write_text("datasets:\n  ilsvrc2012_validation: imagenet\n")

    found = agent(
        f"--config={configuration}", "predict", "dataset", "--dataset_name=ilsvrc2012_validation", *ALL
    )

    assert found.code == 4
    assert f"{tmp_path / 'imagenet'}: cannot be read" in found.error
