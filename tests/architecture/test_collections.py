"""The pages on the database name every collection that a kind stores."""

from __future__ import annotations

from pathlib import Path

from inferometer.evaluators.kinds.registry import every_kind
from inferometer.evaluators.store import documents

ROOT = Path(__file__).resolve().parents[2]


def test_every_collection_is_in_the_tables() -> None:
    stored = {name for kind in every_kind() for name in kind.collections}
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")

    assert {name for name in stored if f"| ``{name}`` |" not in str(documents.__doc__)} == set()
    assert {name for name in stored if f"`{name}`" not in page} == set()
