"""What watches the predictions of a model, wherever they come from."""

from __future__ import annotations

from typing import Protocol

from agent.predictor import Predictor


class PredictorWatch(Protocol):
    """Watches predictors."""

    @property
    def patience_s(self) -> float | None:
        """For how long, in seconds, a prediction is waited for; None for any time."""
        ...

    def watched(self, predictor: Predictor) -> Predictor:
        """Returns a predictor that does what the given one does, and is used in its place."""
        ...


class Unwatched:
    """Watches nothing."""

    patience_s: float | None = None

    def watched(self, predictor: Predictor) -> Predictor:
        """Returns the predictor itself."""
        return predictor
