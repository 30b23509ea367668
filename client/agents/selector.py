"""The selector: what ``--agent any`` and ``--agent gpu=H100,framework=PyTorch`` ask of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.facts import AgentFacts
from manifests.errors import ConfigurationError, suggestion

ANY = "any"
_VALUES: Mapping[str, Callable[[AgentFacts], tuple[str, ...]]] = {
    "gpu": lambda facts: facts.gpus,
    "cpu": lambda facts: (facts.cpu_model,),
    "arch": lambda facts: (facts.architecture,),
    "host": lambda facts: (facts.hostname,),
    "framework": lambda facts: tuple(f"{name} {version}" for name, version in facts.frameworks.items()),
    "model": lambda facts: tuple(model.name for model in facts.models),
}


@dataclass(frozen=True, slots=True)
class AgentSelector:
    """Conditions that an agent has to meet, each a key and a part of what the agent says there, without case.

    Attributes:
        conditions: The keys and the parts; none for any agent.
    """

    conditions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AgentSelector:
        """Reads ``any``, or ``key=part`` with commas between.

        Raises:
            ConfigurationError: A key is not known, or has nothing after it.
        """
        if text.strip().casefold() == ANY:
            return cls()
        conditions: list[tuple[str, str]] = []
        for condition in text.split(","):
            key, separator, part = (piece.strip() for piece in condition.partition("="))
            if not (key and separator and part):
                raise ConfigurationError(
                    f'--agent "{text}": "{condition.strip()}" is no condition; '
                    "write key=part with commas between, such as gpu=H100,framework=PyTorch"
                )
            if key.casefold() not in _VALUES:
                raise ConfigurationError(f'--agent: unknown key "{key}"; {suggestion(key, _VALUES)}')
            conditions.append((key.casefold(), part))
        return cls(tuple(conditions))

    def unmet(self, facts: AgentFacts) -> str:
        """Returns the first condition that an agent does not meet; empty where it meets all."""
        for key, part in self.conditions:
            if not any(part.casefold() in value.casefold() for value in _VALUES[key](facts)):
                return f"{key}={part}"
        return ""

    def __str__(self) -> str:
        return ",".join(f"{key}={part}" for key, part in self.conditions) or ANY
