"""What becomes of requests that wait too long or are too many, as Triton's ``ModelQueuePolicy`` has it.

The names and their meaning are those of Triton's model configuration:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from inferometer.manifests.errors import ConfigurationError, one_line, suggestion

MAX_LEVELS = 1000
_NS_PER_US = 1000
_MAX_US = 10 * 365 * 24 * 3600 * 1_000_000
_MAX_SIZE = 2**32 - 1
_TRUTHS = {"true": True, "false": False}


class TimeoutAction(str, Enum):
    """What is done with a request that has waited for its timeout."""

    REJECT = "REJECT"
    DELAY = "DELAY"
    """It waits until no other of its priority, or of a higher one, waits that is within its own timeout."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The policy of the requests of one priority.

    Attributes:
        timeout_action: What is done with a request that has waited for its timeout.
        default_timeout_microseconds: How long a request waits for its batch to begin; 0 sets no timeout.
        allow_timeout_override: Whether a request can set a shorter timeout. Triton's own default is false.
        max_queue_size: The most requests that wait; 0 takes ``BatchingOptions.max_queue``.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = True
    max_queue_size: int = 0

    @classmethod
    def parse(cls, text: str, option: str) -> QueuePolicy:
        """Reads ``name=value`` with commas between; raises ConfigurationError, which names the option."""
        names = [field.name for field in fields(cls)]
        found: dict[str, Any] = {}
        for part in text.split(","):
            name, mark, value = (each.strip() for each in part.partition("="))
            if not mark or name not in names:
                raise ConfigurationError(
                    f'{option}: found "{one_line(part, 60)}"; give NAME=VALUE with commas between; '
                    f"{suggestion(name, names)}"
                )
            if name in found:
                raise ConfigurationError(f"{option}: has {name} twice")
            found[name] = _value(name, value, option)
        return cls(**found)

    def timeout_ns(self, asked_ns: int | None) -> int | None:
        """Returns how long a request may wait in the queue that asks for a timeout itself; None for ever."""
        default_ns = self.default_timeout_microseconds * _NS_PER_US or None
        if asked_ns is None or not self.allow_timeout_override:
            return default_ns
        return asked_ns if default_ns is None else min(asked_ns, default_ns)


DEFAULT_POLICY = QueuePolicy()


def parse_priority_policy(text: str) -> tuple[int, QueuePolicy]:
    """Reads the policy of one priority, ``LEVEL:NAME=VALUE,…``; raises ConfigurationError if it is none."""
    level, mark, policy = text.partition(":")
    if not mark or not re.fullmatch(r"[0-9]{1,9}", level.strip()):
        raise ConfigurationError(
            f'priority_queue_policy: found "{one_line(text, 60)}"; give LEVEL:NAME=VALUE, such as '
            "1:max_queue_size=100"
        )
    return int(level), QueuePolicy.parse(policy, "priority_queue_policy")


def _value(name: str, text: str, option: str) -> object:
    match name:
        case "timeout_action":
            if text.upper() in TimeoutAction.__members__:
                return TimeoutAction[text.upper()]
            allowed = " or ".join(TimeoutAction.__members__)
        case "allow_timeout_override":
            if text.lower() in _TRUTHS:
                return _TRUTHS[text.lower()]
            allowed = " or ".join(_TRUTHS)
        case _:
            most = _MAX_SIZE if name == "max_queue_size" else _MAX_US
            if re.fullmatch(r"[0-9]{1,18}", text) and int(text) <= most:
                return int(text)
            allowed = f"a whole number from 0 to {most}"
    raise ConfigurationError(f'{option}: {name} is "{one_line(text, 40)}"; allowed: {allowed}')
