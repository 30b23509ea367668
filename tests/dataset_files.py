"""Small datasets in every format that people have on their disks."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inferometer.evaluators.conversion import lmdb_environment
from inferometer.evaluators.datasets.recordio import IMAGE_HEADER, framed

CIFAR_RECORD_BYTES = 3073


@dataclass(frozen=True)
class Item:
    """An image file, its pixels and its class."""

    content: bytes
    pixels: NDArray[np.uint8]
    label: int


def items(count: int, *, side: int = 12, kind: str = "PNG", seed: int = 0) -> list[Item]:
    """Random images of ten classes; of JPEG, the pixels are those that it decodes to."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        pixels = random.integers(0, 256, (side, side, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        decoded = np.asarray(Image.open(io.BytesIO(buffer.getvalue())))
        made.append(Item(buffer.getvalue(), decoded, index % 10))
    return made


def record(item: Item, number: int = 0) -> bytes:
    """A record with an image and its class."""
    return framed(IMAGE_HEADER.pack(0, float(item.label), number, 0) + item.content)


def write_records(path: Path, made: Sequence[Item], *, index: bool = True) -> Path:
    """A ``.rec``, with an ``.idx`` beside it."""
    lines, offset = [], 0
    with path.open("wb") as file:
        for number, item in enumerate(made):
            lines.append(f"{number}\t{offset}\n")
            offset += file.write(record(item, number))
    if index:
        path.with_suffix(".idx").write_text("".join(lines))
    return path


def write_lmdb(folder: Path, datums: Sequence[bytes]) -> Path:
    """An LMDB with keys as Caffe writes them."""
    with (
        lmdb.open(str(folder), map_size=1 << 28) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, content in enumerate(datums):
            transaction.put(f"{number:08d}_image".encode(), content)
    return folder


def encoded(made: Sequence[Item]) -> list[bytes]:
    """The images as encoded Datums."""
    return [lmdb_environment.encoded_datum(item.content, item.label) for item in made]


def raw(made: Sequence[Item]) -> list[bytes]:
    """The pixels as raw Datums."""
    return [lmdb_environment.raw_datum(item.pixels, item.label) for item in made]


def write_folder(root: Path, made: Sequence[Item], suffix: str = ".png") -> Path:
    """Class folders with images that are numbered across the classes."""
    for number, item in enumerate(made):
        (root / str(item.label)).mkdir(parents=True, exist_ok=True)
        (root / str(item.label) / f"{number:06d}{suffix}").write_bytes(item.content)
    return root


def write_npz(path: Path, made: Sequence[Item]) -> Path:
    """The pixels and the classes as arrays."""
    np.savez(path, images=np.stack([i.pixels for i in made]), labels=np.array([i.label for i in made]))
    return path


def cifar_records(made: Sequence[Item]) -> bytes:
    """The content of a binary file of CIFAR-10; the images have 32 × 32 pixels."""
    return b"".join(bytes((item.label,)) + item.pixels.transpose(2, 0, 1).tobytes() for item in made)


def cifar_pickle(made: Sequence[Item], protocol: int = 2) -> bytes:
    """The content of a Python file of CIFAR-10."""
    images = np.stack([item.pixels.transpose(2, 0, 1).reshape(-1) for item in made])
    content = {b"data": images, b"labels": [i.label for i in made], b"batch_label": b"batch 1 of 5"}
    return pickle.dumps(content, protocol)


def write_archive(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    """A tar, compressed or not."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def idx(array: NDArray[np.uint8]) -> bytes:
    """The content of an idx file."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(
    folder: Path,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    *,
    part: str = "train",
    zipped: bool = False,
) -> Path:
    """The two files of MNIST; returns that of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    ending = ".gz" if zipped else ""
    paths = [folder / f"{part}-{name}-ubyte{ending}" for name in ("images-idx3", "labels-idx1")]
    for path, array in zip(paths, (images, labels), strict=True):
        path.write_bytes(gzip.compress(idx(array), mtime=0) if zipped else idx(array))
    return paths[0]


def write_coco(folder: Path, made: Sequence[Item]) -> Path:
    """Images in ``images``, each with an object, described in COCO's JSON."""
    (folder / "images").mkdir(parents=True)
    content: dict[str, list[object]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 1, "name": "cat"}],
    }
    for number, item in enumerate(made, start=1):
        (folder / "images" / f"{number}.png").write_bytes(item.content)
        height, width = item.pixels.shape[:2]
        image = {"id": number, "file_name": f"{number}.png", "height": height, "width": width}
        content["images"].append(image)
        content["annotations"].append(
            {"id": number, "image_id": number, "category_id": 1, "bbox": [1, 2, 3, 4]}
        )
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder


def write_voc(folder: Path, made: Sequence[Item]) -> Path:
    """The folders of PASCAL VOC, each image with an object, and a list of all images."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for number, item in enumerate(made):
        (folder / "JPEGImages" / f"{number}.png").write_bytes(item.content)
        height, width = item.pixels.shape[:2]
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"
        (folder / "Annotations" / f"{number}.xml").write_text(
            f"<annotation><size><width>{width}</width><height>{height}</height></size>"
            f"<object><name>cat</name><bndbox>{box}</bndbox></object></annotation>"
        )
    (folder / "ImageSets" / "Main" / "val.txt").write_text("".join(f"{n}\n" for n in range(len(made))))
    return folder
