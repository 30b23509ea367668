"""A whole evaluation as JSON text, for a file or the wire: the documents of the store in one object."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime

from evaluators.evaluation import Evaluation
from evaluators.store.documents import Documents, from_documents, to_documents
from manifests.errors import StoreError

_FORMAT = "inferscope evaluation"


_LATER = ("span", "load_query")
"""Parts that files of earlier versions do not have."""


def evaluation_to_json(evaluation: Evaluation) -> str:
    """Returns the evaluation with its raw times and its predictions as JSON; non-ASCII text is escaped."""
    documents = to_documents(evaluation, evaluation.id)
    content = {"format": _FORMAT} | {part.name: getattr(documents, part.name) for part in fields(documents)}
    content["input_prediction"] = list(documents.input_prediction)
    content |= {name: list(getattr(documents, name)) for name in _LATER}
    content["evaluation"] = documents.evaluation | {
        "created_at": documents.evaluation["created_at"].isoformat(timespec="milliseconds")
    }
    return json.dumps(content, allow_nan=False)


def evaluation_from_json(text: str) -> Evaluation:
    """Returns the evaluation that ``evaluation_to_json`` wrote.

    Raises:
        StoreError: The text is cut off, is no evaluation's, or was written by a newer version of the program.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deep"
        raise StoreError(f"is cut off or no JSON: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise StoreError(f'is no evaluation: it has no "format": "{_FORMAT}"')
    try:
        parts = {part.name: content[part.name] for part in fields(Documents) if part.name not in _LATER}
        parts |= {name: content.get(name, []) for name in _LATER}
        parts["evaluation"]["created_at"] = datetime.fromisoformat(parts["evaluation"]["created_at"])
        documents = Documents(**parts)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"is no whole evaluation: {type(error).__name__}: {error}") from error
    evaluation = from_documents(documents)
    if len(evaluation.predictions) != documents.evaluation["input_prediction_count"]:
        raise StoreError(f"evaluation {evaluation.id} is damaged: predictions are missing")
    if len(evaluation.spans) != documents.evaluation.get("span_document_count", 0):
        raise StoreError(f"evaluation {evaluation.id} is damaged: spans of its trace are missing")
    return evaluation
