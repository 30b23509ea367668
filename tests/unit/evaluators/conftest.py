"""What the tests of measurements in virtual time have in common."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says at once that objects are frozen: all collected tests are, and to count them takes 10 ms a run.

    A run asks, so that it does not unfreeze them; most runs in virtual time take less. A test of what is
    frozen undoes this.
    """
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
