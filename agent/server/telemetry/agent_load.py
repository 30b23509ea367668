"""The load of an agent at one moment, for its metrics and its status."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferometer.agent.serving.prediction_watch import Trouble
from inferometer.agent.serving.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """What an agent holds; a model that is loaded twice occurs twice.

    ``sessions`` are those that clients hold open; ``trouble`` is why it is not fit to serve.
    """

    stopping: bool = False
    sessions: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    models: tuple[ServedModel, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether it is fit to serve."""
        return not (self.stopping or self.trouble)
