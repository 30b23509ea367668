"""Versions in the Open Inference Protocol, whose clients expect whole numbers."""

from __future__ import annotations

from packaging.utils import canonicalize_version

_MOST_DIGITS = 18  # clients read a version into 64 bits


def canonical_version(version: str) -> str:
    """Returns a text that equal versions under PEP 440 have in common; text that is none is its own."""
    try:
        return canonicalize_version(version)
    except ValueError:  # a number too long for int
        return version


def v2_version(version: str) -> str:
    """Returns how the protocol spells the version of a manifest.

    ``N``, ``N.0`` and ``N.0.0`` are N, for N from 1 on; any other version keeps its text. The spelling
    depends on the version alone, so that it stays when others are added. Two versions have the same one only
    where PEP 440 regards them as equal.
    """
    number = canonical_version(version)
    whole = number.isdecimal() and number != "0" and len(number) <= _MOST_DIGITS
    return number if whole else version
