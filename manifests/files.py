"""Finds the files of manifests, both the program's and those in the user's directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from inferometer.manifests.errors import ConfigurationError

BUILTIN = Path(__file__).parent / "builtin"
_SUFFIXES = frozenset({".yml", ".yaml"})


def check_directories(directories: Sequence[Path], content: str = "manifest") -> None:
    """Raises ConfigurationError unless each of the user's ``directories`` exists and is a directory."""
    for directory in directories:
        if not directory.is_dir():
            wrong = "is not a directory" if directory.exists() else "does not exist"
            raise ConfigurationError(f"{content} directory {directory} {wrong}")


def manifest_files(directories: Sequence[Path]) -> Iterator[Path]:
    """Yields the files in the user's ``directories``, in order, and finally the program's files.

    Of two files that define the same manifest, the first is used.
    """
    for directory in (*directories, BUILTIN):
        yield from files_in(directory)


def files_in(directory: Path) -> list[Path]:
    """Returns the files in a directory and its subdirectories that have a manifest's suffix, in order."""
    return sorted(path for path in directory.rglob("*") if path.suffix in _SUFFIXES)
