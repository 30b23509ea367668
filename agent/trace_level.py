"""The trace levels: how deep an evaluation looks."""

from __future__ import annotations

from enum import IntEnum

from manifests.errors import ConfigurationError, suggestion


class TraceLevel(IntEnum):
    """What is recorded; each level includes the ones before it."""

    NO_TRACE = 0
    APPLICATION_TRACE = 1
    MODEL_TRACE = 2
    FRAMEWORK_TRACE = 3
    ML_LIBRARY_TRACE = 4
    SYSTEM_LIBRARY_TRACE = 5
    HARDWARE_TRACE = 6
    FULL_TRACE = 7

    @classmethod
    def named(cls, name: str) -> TraceLevel:
        """Returns the level of a name; case does not matter.

        Raises:
            ConfigurationError: There is none.
        """
        try:
            return cls[name.strip().upper()]
        except KeyError:
            raise ConfigurationError(
                f'unknown trace level "{name}"; {suggestion(name, cls.__members__)}'
            ) from None
