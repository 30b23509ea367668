"""Text classification: ranked classes of texts, as of any other input."""

from __future__ import annotations

from inferometer.agent.tasks.classification import Classification


class TextClassification(Classification):
    """Ranks classes by their scores; see ``Classification``. Thread-safe."""
