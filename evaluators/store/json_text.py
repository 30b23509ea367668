"""A whole evaluation as JSON text: for transmission, and for the spool of evaluations not yet stored."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from inferometer.agent.files import replacing, sync
from inferometer.evaluators.evaluation import Evaluation
from inferometer.evaluators.store import documents_v1
from inferometer.evaluators.store.documents import Documents, from_documents, to_documents
from inferometer.manifests.errors import StoreError, explained

_FORMAT = "inferometer evaluation"


def evaluation_to_json(evaluation: Evaluation) -> str:
    """Returns the evaluation with its raw times and its predictions as JSON; non-ASCII text is escaped."""
    documents = to_documents(evaluation, evaluation.id)
    created_at = documents.evaluation["created_at"].isoformat(timespec="milliseconds")
    content = {
        "format": _FORMAT,
        "evaluation": documents.evaluation | {"created_at": created_at},
        "parts": {name: list(part) for name, part in documents.parts.items()},
    }
    return json.dumps(content, allow_nan=False)


def evaluation_from_json(text: str) -> Evaluation:
    """Returns the evaluation that ``evaluation_to_json`` of this version or the first version wrote.

    Raises:
        StoreError: The text is truncated, not an evaluation, or from a newer version of the program.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise StoreError(f"is cut off or not JSON: {reason}") from error
    if not isinstance(content, dict) or content.get("format") not in (_FORMAT, documents_v1.FORMAT):
        raise StoreError(f'is not an evaluation: it has no "format": "{_FORMAT}"')
    try:
        if content["format"] == documents_v1.FORMAT:
            content["parts"] = {name: content.get(name, []) for name in documents_v1.COLLECTIONS}
        head = content["evaluation"]
        head["created_at"] = datetime.fromisoformat(head["created_at"])
        documents = Documents(head, dict(content["parts"]))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"is not a whole evaluation: {type(error).__name__}: {error}") from error
    return from_documents(documents)


def write_spool(evaluation: Evaluation, directory: Path) -> Path:
    """Writes an evaluation, with its predictions, to a file in ``directory`` and returns the file's path.

    The file is written atomically and synced to the disk. Writing an evaluation again replaces its file.

    Raises:
        StoreError: The directory cannot be created, or the file cannot be written.
    """
    path = directory / f"{quote(evaluation.id, safe='')}.json"
    content = evaluation_to_json(evaluation).encode("utf-8")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            _write(path, content)
        except FileNotFoundError:  # another process has removed the folder, which was empty
            directory.mkdir(parents=True, exist_ok=True)
            _write(path, content)
        with suppress(OSError):  # some file systems do not support this
            sync(directory)  # without this, a power failure may lose the name of a new file
    except OSError as error:
        raise StoreError(
            f"{path}: evaluation {evaluation.id} cannot be written there: {error.strerror or error}; "
            "free space or name another directory"
        ) from error
    return path


def read_spool(path: Path) -> Evaluation:
    """Returns the evaluation that ``write_spool`` wrote to the file ``path``.

    Raises:
        StoreError: The file cannot be read, is truncated, or holds something else.
    """
    try:
        with explained(StoreError, f"{path}: cannot be read"):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: is not an evaluation: it is not text") from error
    try:
        return evaluation_from_json(text)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def _write(path: Path, content: bytes) -> None:
    with replacing(path, synced=True, mode=0o600) as file:
        file.write(content)
