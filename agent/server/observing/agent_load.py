"""What an agent holds and has to do at one moment: for its metrics and its status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.server.models.served_models import ServedModels
from agent.server.observing.prediction_watch import Trouble


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """A loaded model.

    Attributes:
        name: Its name.
        version: Its version.
        framework: Its framework's name.
        device: Where it runs.
        waiting: Requests that wait for their batch to begin.
        busy_ns: For how long the prediction under way has run; 0 while there is none.
        predicted_inputs: Inputs that it has predicted in the queue since it was loaded.
    """

    name: str
    version: str
    framework: str
    device: str
    waiting: int
    busy_ns: int
    predicted_inputs: int


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """What an agent holds.

    Attributes:
        stopping: Whether it accepts nothing more.
        sessions: Sessions that clients hold open.
        trouble: Why it is not fit to serve.
        models: The loaded models; one that is loaded twice is there twice.
    """

    stopping: bool = False
    sessions: int = 0
    trouble: Trouble = field(default_factory=Trouble)
    models: tuple[ModelLoad, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether it is fit to serve."""
        return not (self.stopping or self.trouble)


def read_load(
    models: ServedModels, sessions: Callable[[], int], trouble: Trouble, *, stopping: bool
) -> AgentLoad:
    """Reads what an agent holds now."""
    return AgentLoad(
        stopping,
        sessions(),
        trouble,
        tuple(
            ModelLoad(
                model.manifest.name,
                model.manifest.version,
                model.manifest.framework.name,
                str(model.description.device),
                model.waiting,
                model.busy_ns,
                model.statistics.totals.inputs,
            )
            for model in models.loaded
        ),
    )
