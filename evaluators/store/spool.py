"""The spool: evaluations in local files that a database could not take, until they are imported."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from evaluators.evaluation import Evaluation
from evaluators.store.json_text import evaluation_from_json, evaluation_to_json
from manifests.errors import StoreError


def write_spool(evaluation: Evaluation, directory: Path) -> Path:
    """Writes an evaluation, with its predictions, to a file in ``directory`` and returns the file's path.

    The file is there as a whole or not at all, and it is on the disk when this returns. Writing the same
    evaluation again replaces its file.

    Raises:
        StoreError: The directory cannot be made, or the file cannot be written.
    """
    path = directory / f"{quote(evaluation.id, safe='')}.json"
    content = evaluation_to_json(evaluation).encode("utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".", suffix=".part")
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        _sync_directory(directory)
    except OSError as error:
        raise StoreError(
            f"{path}: evaluation {evaluation.id} cannot be written there: {error.strerror or error}; "
            "free space or name another directory"
        ) from error
    return path


def read_spool(path: Path) -> Evaluation:
    """Returns the evaluation that ``write_spool`` wrote to the file ``path``.

    Raises:
        StoreError: The file cannot be read, is cut off, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: is no evaluation: it is not text") from error
    try:
        return evaluation_from_json(text)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def _sync_directory(directory: Path) -> None:
    """Brings the file's name to the disk; without this a power failure may lose it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot, and the file itself is there
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
