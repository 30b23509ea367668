"""The tree of exceptions that every part of the program raises.

InferometerError
├── ManifestError              a manifest file that cannot be read or does not fit the schema
├── NotFoundError              a name, version or id that no catalogue or database contains
│   ├── UnknownModelError
│   ├── UnknownFrameworkError
│   ├── UnknownDatasetError
│   └── UnknownEvaluationError
├── FrameworkUnavailableError  a known framework that is not installed, or of another version
├── ConfigurationError         a configuration file, environment variable or option that is not valid
├── ArtifactError              a graph, weights or label file that is missing, truncated or changed
│   └── ArtifactUnavailableError  one that is missing, or cannot be downloaded
├── DeviceError                a requested device that is not available
│   └── DeviceLostError        a device that has failed
├── DatasetError               a dataset that is missing, empty or does not fit the model
├── InputError                 one input that cannot be read, decoded or preprocessed
│   └── RegionExistsError      a region of shared memory whose name is already taken
├── PredictionError            a framework that failed on a batch, or returned invalid outputs
│   ├── OutOfMemoryError       a framework that ran out of memory for a batch
│   └── InstanceLostError      the process of a model's instance that ended while it predicted a batch
├── TrainingError              a framework that failed in a training step, or a lost connection to a rank
│   └── RankLostError          another rank that cannot be reached any more; that rank knows the cause
├── HungError                  a request for a model whose prediction in progress hangs
├── StoreError                 a database that cannot be reached, or contains data that cannot be read
├── OutputError                a report that cannot be written to the requested path
├── AgentError                 a remote agent that cannot be reached, or broke the protocol
│   └── DeadlineError          an agent that did not answer before the caller's deadline
├── SessionError               a request for a session that is not open
│   └── SessionLimitError      one session, or one stream, too many
├── QueueFullError             a request to a model whose queue is full
├── RateLimitError             a request above its client's rate limit
├── MemoryLimitError           a model, or shared memory, that does not fit into the agent's memory limit
├── RequestCancelledError      a request that its caller cancelled
└── EvaluationFailed           an evaluation that was stopped at an input that failed
    └── EvaluationInterrupted  an evaluation that was stopped by the user before it measured anything

A message is one self-contained line that says what failed, for which input, and what to do or the nearest
valid name. Library exceptions are wrapped once, at the boundary, with ``from``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

IMPORT_FAILURES = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""The exceptions of an import; a module incompatible with the framework may raise the framework's own."""
_SHOWN_NAMES = 12
_MOST, _HALF, _FEW = 0.6, 0.5, 0.4
_MOST_CHARACTERS = 2000
CODE_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The exceptions that frameworks and architectures raise for invalid files and batches."""


class InferometerError(Exception):
    """The base class of the program's errors.

    The message is always one printable line, whatever it quotes: line breaks become spaces, and a long
    message is cut in the middle.
    """

    def __init__(self, message: object = "") -> None:
        text = printable(" ".join(str(message).splitlines()))
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[: _MOST_CHARACTERS * 3 // 4]}…{text[1 - _MOST_CHARACTERS // 4 :]}"
        super().__init__(text)


class ManifestError(InferometerError):
    """A manifest file cannot be read, is not YAML, or does not fit the schema."""


class NotFoundError(InferometerError):
    """A name or a version is not in any catalogue."""

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


class UnknownEvaluationError(NotFoundError):
    """No evaluation, or more than one, has an id that equals or begins with the given one."""

    kind = "evaluation"


class FrameworkUnavailableError(InferometerError):
    """A known framework is not installed, or its version does not meet the manifest's constraint."""


class ConfigurationError(InferometerError):
    """A configuration file, an environment variable or an option is not valid."""


class ArtifactError(InferometerError):
    """A file that a manifest names is missing or changed, or its architecture cannot be built."""


class ArtifactUnavailableError(ArtifactError):
    """A file is missing, and cannot be downloaded."""


class DeviceError(InferometerError):
    """This machine or this build of the framework does not have the requested device."""


class DeviceLostError(DeviceError):
    """A device failed while running a model, and this process can no longer use it."""


class DatasetError(InferometerError):
    """A dataset is missing, empty, damaged or does not fit the model."""


class InputError(InferometerError):
    """A single input cannot be read, decoded or preprocessed; other inputs are not affected."""


class RegionExistsError(InputError):
    """A region of shared memory is to be registered under a name that is already taken."""


class PredictionError(InferometerError):
    """The framework failed on a batch, or returned invalid outputs."""


class OutOfMemoryError(PredictionError):
    """The framework ran out of memory for a batch; a smaller one may succeed."""


class InstanceLostError(PredictionError):
    """The process of a model's instance ended before it had predicted a batch; it is started again."""


class TrainingError(InferometerError):
    """The framework failed in a training step, or the connection to another rank was lost."""


class RankLostError(TrainingError):
    """Another rank cannot be reached; the cause is on that rank, whose own error says more than this one."""


class HungError(InferometerError):
    """The prediction in progress exceeds the agent's time limit, and blocks other requests."""


class StoreError(InferometerError):
    """The database cannot be reached, or contains data that cannot be read."""


class OutputError(InferometerError):
    """Output cannot be written to the requested path."""


class AgentError(InferometerError):
    """A remote agent cannot be reached, or its response does not follow the protocol."""


class DeadlineError(AgentError):
    """An agent did not answer before the caller's deadline."""


class SessionError(InferometerError):
    """A session is not open."""


class SessionLimitError(SessionError):
    """The limit of an agent's open sessions or streams is reached."""


class QueueFullError(InferometerError):
    """The queue of a model is full."""


class RateLimitError(InferometerError):
    """A client has exceeded its rate limit."""


class MemoryLimitError(InferometerError):
    """A model, or a region of shared memory, does not fit into the agent's memory limit."""


class RequestCancelledError(InferometerError):
    """The caller has cancelled the request."""


class EvaluationFailed(InferometerError):  # noqa: N818 - a finding about a run, not a fault of the program
    """An evaluation was stopped at an input that failed."""


class EvaluationInterrupted(EvaluationFailed):
    """An evaluation was stopped by the user before it measured anything."""


@contextmanager
def explained(kind: type[InferometerError], what: str) -> Iterator[None]:
    """Raises an error of a kind, ``WHAT: REASON``, in place of an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


def printable(text: str) -> str:
    """Returns a text on one line, with unprintable characters such as line breaks and escapes spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_name(name: str) -> str:
    """Returns a file's name so that it can be stored, and printed on one line."""
    return printable(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def one_line(text: object, most: int = 300) -> str:
    """Returns a text, or the message of an exception, as one line of at most ``most`` characters.

    For an exception without a message, the name of its class is used.
    """
    line = " ".join(str(text).split())
    if isinstance(text, BaseException):
        line = line or type(text).__name__
    return line if len(line) <= most else line[: most - 1] + "…"


def shown_value(value: object, most: int = 60) -> str:
    """Returns the representation of a value, cut to at most ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean …?" with the nearest ``known`` name, or a list of all if none is near.

    Names are near if they share most letters in order. If none do, names that contain a whole word of
    ``name`` precede names that share only half.
    """
    known = list(known)
    if not known:
        return "none is known"
    import difflib

    folded = {candidate.casefold(): candidate for candidate in known}
    wanted = name.casefold()
    near = difflib.get_close_matches(wanted, folded, n=3, cutoff=_HALF)
    if not difflib.get_close_matches(wanted, near, n=1, cutoff=_MOST):
        words = set(wanted.split("_"))
        alike = [each for each in folded if not words.isdisjoint(each.split("_"))]
        near = difflib.get_close_matches(wanted, alike, n=3, cutoff=_FEW) or near
    if near:
        return "did you mean " + " or ".join(f'"{folded[key]}"' for key in near) + "?"
    shown = ", ".join(known[:_SHOWN_NAMES])
    return f"known: {shown}" + (f", … ({len(known)} in all)" if len(known) > _SHOWN_NAMES else "")
