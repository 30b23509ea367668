"""Versions in the Open Inference Protocol, whose clients expect whole numbers."""

from __future__ import annotations

from packaging.utils import canonicalize_version

_MOST_DIGITS = 9
_PARTS, _PART_DIGITS = 3, 3  # the numbers of these have ten digits, and fit into 32 bits


def canonical_version(version: str) -> str:
    """Returns a text that equal versions under PEP 440 have in common; text that is none is its own."""
    try:
        return canonicalize_version(version)
    except ValueError:  # a number too long for int
        return version


def v2_version(version: str) -> str:
    """Returns how the protocol spells the version of a manifest.

    ``N``, ``N.0`` and ``N.0.0`` are N, for N from 1 on with at most nine digits. ``X.Y`` and ``X.Y.Z`` are 1
    followed by three digits for each of X, Y and Z: ``1.5`` is 1001005000. Any other version keeps its text,
    with ``.0`` where that would be a number. The spelling depends on the version alone, so that it stays when
    others are added. Two versions have the same one only where PEP 440 regards them as equal.
    """
    canonical = canonical_version(version)
    parts = canonical.split(".")
    if not all(part.isdecimal() for part in parts):
        return version
    if len(parts) == 1 and canonical != "0" and len(canonical) <= _MOST_DIGITS:
        return canonical
    if len(parts) <= _PARTS and all(len(part) <= _PART_DIGITS for part in parts):
        return "1" + "".join(part.zfill(_PART_DIGITS) for part in (*parts, "0", "0")[:_PARTS])
    return f"{canonical}.0" if len(parts) == 1 else version
