"""The tree of exceptions that every part of the program raises.

InferscopeError
├── ManifestError              a manifest file that cannot be read or does not fit the schema
├── NotFoundError              a name or version that no catalogue holds
│   ├── UnknownModelError
│   ├── UnknownFrameworkError
│   └── UnknownDatasetError
├── FrameworkUnavailableError  a known framework that is not installed, or of another version
├── ConfigurationError         a configuration file, environment variable or option that makes no sense
├── ArtifactError              a graph, weights or label file that is missing, truncated or changed
│   └── ArtifactUnavailableError  one that is missing, or cannot be downloaded
├── DeviceError                a device that was asked for and is not there
│   └── DeviceLostError        one that was there, and has failed
├── DatasetError               a dataset that is missing, empty or does not fit the model
├── InputError                 one input that cannot be read, decoded or preprocessed
├── PredictionError            a framework that failed on a batch, or returned what is no prediction
│   └── OutOfMemoryError       one that had no memory left for the batch
├── HungError                  a request for a model whose prediction under way does not end
├── StoreError                 a database that cannot be reached, or holds what cannot be read
├── OutputError                a report that cannot be written where it was asked for
├── AgentError                 a remote agent that cannot be reached, or broke the protocol
│   └── DeadlineError          one that did not answer in the time that the caller gave it
├── SessionError               a request for a session that is not open
│   └── SessionLimitError      one session, or one stream, too many
├── QueueFullError             a request that came while as many waited for their model as may
├── RateLimitError             a request that came sooner than its client may send another one
├── MemoryLimitError           a model for which the agent's limit of memory leaves no room
├── RequestCancelledError      a request whose caller went away before it was predicted
└── EvaluationFailed           an evaluation that was stopped at an input that failed
    └── EvaluationInterrupted  an evaluation that was stopped by the user before it measured anything

A message says what failed, on which input, and what to do or the nearest valid name: one line that stands
alone. Foreign exceptions are wrapped once, at the boundary, with ``from``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN_NAMES = 12


class InferscopeError(Exception):
    """Anything that the program refuses or fails at, said in one line."""


class ManifestError(InferscopeError):
    """A manifest file cannot be read, is not YAML, or does not fit the schema."""


class NotFoundError(InferscopeError):
    """A name or a version is in no catalogue."""

    kind = "name"

    @classmethod
    def of(cls, name: str, known: Iterable[str]) -> NotFoundError:
        """Builds the error for an unknown ``name``, with the nearest of the ``known`` names."""
        known = sorted(set(known), key=str.casefold)
        return cls(f'unknown {cls.kind} "{name}"; {suggestion(name, known)}')


class UnknownModelError(NotFoundError):
    """No manifest describes a model of this name or version."""

    kind = "model"


class UnknownFrameworkError(NotFoundError):
    """No registered framework has this name."""

    kind = "framework"


class UnknownDatasetError(NotFoundError):
    """No manifest describes a dataset of this name or version."""

    kind = "dataset"


class FrameworkUnavailableError(InferscopeError):
    """A known framework is not installed, or its version does not meet the manifest's constraint."""


class ConfigurationError(InferscopeError):
    """A configuration file, an environment variable or an option makes no sense."""


class ArtifactError(InferscopeError):
    """A file that a manifest names is missing or changed, or its architecture cannot be built."""


class ArtifactUnavailableError(ArtifactError):
    """A file is not there, and cannot be downloaded."""


class DeviceError(InferscopeError):
    """A device was asked for that this machine or this build of the framework does not have."""


class DeviceLostError(DeviceError):
    """A device has failed while a model ran on it; it is of no use to this process any more."""


class DatasetError(InferscopeError):
    """A dataset is missing, empty, damaged or does not fit the model."""


class InputError(InferscopeError):
    """One input cannot be read, decoded or preprocessed; the others are not affected."""


class PredictionError(InferscopeError):
    """The framework failed on a batch, or what it returned is no prediction."""


class OutOfMemoryError(PredictionError):
    """The framework had no memory left for a batch; a smaller one may do."""


class HungError(InferscopeError):
    """The prediction under way takes longer than an agent lets one take, and others wait for it."""


class StoreError(InferscopeError):
    """The database cannot be reached, or holds something that cannot be read."""


class OutputError(InferscopeError):
    """Output cannot be written where it was asked for."""


class AgentError(InferscopeError):
    """A remote agent cannot be reached, or answered outside the protocol."""


class DeadlineError(AgentError):
    """An agent did not answer in the time that the caller gave it."""


class SessionError(InferscopeError):
    """A session is not open, or not any more."""


class SessionLimitError(SessionError):
    """An agent has as many sessions or streams open as it allows."""


class QueueFullError(InferscopeError):
    """As many requests wait for a model as an agent lets wait."""


class RateLimitError(InferscopeError):
    """A client has sent as many requests as it may for now."""


class MemoryLimitError(InferscopeError):
    """A model does not fit beside those that are in use, or not at all."""


class RequestCancelledError(InferscopeError):
    """The caller of a request has gone away; nobody hears of it."""


class EvaluationFailed(InferscopeError):  # noqa: N818 - a finding about a run, not a fault of the program
    """An evaluation was stopped at an input that failed."""


class EvaluationInterrupted(EvaluationFailed):
    """An evaluation was stopped by the user before it measured anything."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean …?" with the nearest of ``known``, or the list of all when none is near."""
    known = list(known)
    if not known:
        return "none is known"
    folded = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(f'"{folded[key]}"' for key in near) + "?"
    shown = ", ".join(known[:_SHOWN_NAMES])
    return f"known: {shown}" + (f", … ({len(known)} in all)" if len(known) > _SHOWN_NAMES else "")
