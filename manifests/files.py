"""The files that manifests are in: those of the program, and those in the user's directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from manifests.errors import ConfigurationError

BUILTIN = Path(__file__).parent / "builtin"
_SUFFIXES = frozenset({".yml", ".yaml"})


def check_directories(directories: Sequence[Path]) -> None:
    """Makes sure that the user's ``directories`` are there.

    Raises:
        ConfigurationError: A directory does not exist, or is none.
    """
    for directory in directories:
        if not directory.is_dir():
            wrong = "is no directory" if directory.exists() else "does not exist"
            raise ConfigurationError(f"manifest directory {directory} {wrong}")


def manifest_files(directories: Sequence[Path]) -> Iterator[Path]:
    """Yields the files of the user's ``directories``, in their order, and last those of the program.

    Of two with the same manifest the one that comes first counts.
    """
    for directory in (*directories, BUILTIN):
        yield from files_in(directory)


def files_in(directory: Path) -> list[Path]:
    """Returns the files of a directory and its subdirectories that are named as manifests are, in order."""
    return sorted(path for path in directory.rglob("*") if path.suffix in _SUFFIXES)
