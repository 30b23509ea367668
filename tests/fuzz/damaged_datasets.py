"""A process that damages a dataset of one format again and again, and opens it.

python damaged_datasets.py FORMAT EXAMPLES FOLDER
"""

from __future__ import annotations

import random
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import scipy.io

from inferometer.evaluators.datasets.opening import open_path
from inferometer.manifests.errors import DatasetError, InputError
from tests import dataset_files as files

_MOST_BYTES = 3 << 30
_SMALL = np.zeros((5, 8, 8), np.uint8)
_LABELS = np.zeros(5, np.uint8)


def made(name: str, folder: Path, number: random.Random) -> tuple[Path, Path]:
    """A dataset, and that of its files which is damaged."""
    images, large = files.items(8), files.items(6, side=32)
    if name.startswith("recordio"):
        path = files.write_records(folder / "train.rec", images, index=name != "recordio")
        return path, path.with_suffix(".idx") if name == "recordio_index" else path
    if name.startswith("lmdb"):
        many = files.raw(files.items(2000 if name == "lmdb_large" else 20, side=4))
        path = files.write_lmdb(folder / "lmdb", files.encoded(files.items(3, side=60)) + many)
        return path, path / "data.mdb"
    if name.startswith("cifar"):
        pickled = files.cifar_pickle(large, number.choice([1, 2, 3, 4]))
        path = folder / {"cifar_binary": "data_batch_1.bin", "cifar_python": "data_batch_1"}.get(
            name, "cifar-10-python.tar.gz"
        )
        if name == "cifar_archive":
            files.write_archive(path, {"cifar-10-batches-py/data_batch_1": pickled})
        else:
            path.write_bytes(pickled if name == "cifar_python" else files.cifar_records(large))
        return path, path
    if name.startswith("mnist"):
        path = files.write_idx(folder, _SMALL, _LABELS, zipped=name == "mnist_gzip")
        return path, path
    if name == "coco":
        path = files.write_coco(folder / "coco", images)
        return path, path / "annotations.json"
    if name == "voc":
        path = files.write_voc(folder / "voc", images[:2])
        return path, path / "Annotations" / "0.xml"
    names = [f"ILSVRC2012_val_{each:08d}.JPEG" for each in range(1, 9)]
    members = {each: item.content for each, item in zip(names, images, strict=True)}
    tar = files.write_archive(folder / "ILSVRC2012_img_val.tar", members, "w")
    if name == "ilsvrc_tar":
        (folder / "val.txt").write_text("".join(f"{each} 1\n" for each in names))
        return tar, tar
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n" * 8)
    rows = [(float(each), f"n{each:08d}", "a") for each in range(1, 1001)]
    fields = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    scipy.io.savemat(folder / "meta.mat", {"synsets": np.array(rows, dtype=fields)}, do_compression=True)
    return tar, folder / "meta.mat"


def damaged(content: bytes, number: random.Random) -> bytes:
    """The content with bytes changed, mostly near its beginning, where the structure is, or cut off."""
    if number.random() < 0.4:
        return content[: number.randrange(len(content))]
    changed = bytearray(content)
    if content[:1] == b"{" and number.random() < 0.5:  # JSON, of which most other changes are refused at once
        digits = [place for place, byte in enumerate(content) if byte in b"0123456789"]
        for place in number.choices(digits, k=number.choice([1, 1, 3])):
            changed[place] = number.choice(b"0123456789")
        return bytes(changed)
    most = len(content) if number.random() < 0.5 else min(len(content), 1 << 16)
    for _ in range(number.choice([1, 1, 1, 3, 10])):
        place = number.randrange(most)
        changed[place] = number.choice([changed[place] ^ 1 << number.randrange(8), 0, 127, 128, 255])
    return bytes(changed)


def main(name: str, examples: int, folder: Path) -> None:
    """Damages and opens; prints how often it opened, was refused, and had failed inputs."""
    warnings.simplefilter("error")
    number = random.Random(name)
    path, target = made(name, folder, number)
    content = target.read_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    counts: Counter[str] = Counter({"opened": 0, "refused": 0, "with_failures": 0})
    for _ in range(examples):
        target.write_bytes(damaged(content, number))
        messages = []
        try:
            dataset = open_path(path, "vision")
        except DatasetError as error:
            counts["refused"] += 1
            messages.append(str(error))
        else:
            counts["opened"] += 1
            for sample in dataset:
                try:
                    sample.read()
                    sample.read_truth()
                except (InputError, DatasetError) as error:
                    messages.append(str(error))
            counts["with_failures"] += bool(messages)
            dataset.close()
        for message in messages:
            if not message.isprintable() or len(message) > 2000:
                raise SystemExit(f"no clean line: {message!r}")
    sys.stdout.write(" ".join(f"{key}={value}" for key, value in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
