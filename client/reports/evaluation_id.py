"""The id of an evaluation, or of a group of them, as a person types it: whole, or its beginning."""

from __future__ import annotations

from evaluators.store.base import EvaluationStore
from manifests.errors import StoreError

_NAMED = 5


def whole_id(store: EvaluationStore, given: str) -> str:
    """Returns the only id that begins with what was given; that itself where it is an id, or begins none.

    Raises:
        StoreError: Several ids begin with it, or the database cannot be reached.
    """
    found = store.ids(given) if given else ()
    if given in found or not found:
        return given
    if len(found) > 1:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise StoreError(
            f"{len(found)} ids begin with {given}: {', '.join(found[:_NAMED])}{more}; give more of the one"
        )
    return found[0]
