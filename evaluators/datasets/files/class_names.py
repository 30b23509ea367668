"""The names of classes in a text file, one a line, in the order of their indices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from inferometer.manifests.errors import DatasetError

MAX_NAMES_BYTES = 64 * 1024 * 1024


def read_class_names(path: Path) -> tuple[str, ...] | None:
    """Returns the names; None without the file.

    Raises:
        DatasetError: It cannot be read, is not UTF-8, or has no name, an empty or a repeated one.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_NAMES_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_NAMES_BYTES:
        raise DatasetError(f"{path}: is larger than {MAX_NAMES_BYTES} bytes")
    try:
        names = tuple(line.strip() for line in content.decode("utf-8").rstrip().split("\n"))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: is not UTF-8 at byte {error.start}") from error
    for row, name in enumerate(names):
        if not name:
            raise DatasetError(f"{path}: line {row + 1} is empty; accepted: the name of a class in each line")
    if len(set(names)) < len(names):
        repeated = next(name for name, times in Counter(names).items() if times > 1)
        raise DatasetError(f"{path}: has the class {repeated} twice")
    return names


def write_class_names(path: Path, names: tuple[str, ...]) -> None:
    """Writes the names; raises OSError if they cannot be written."""
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
