"""The interface that every kind of measurement satisfies."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Measurement(Protocol):
    """What an evaluation measured, with the options that shaped it and the raw values.

    A kind is one module of this package, one of the store's documents (``store.measurement_documents``), and
    the reports on it.
    """

    kind: ClassVar[str]
    """The kind's name in stored documents and filters; never renamed."""

    @property
    def batch_size(self) -> int:
        """The maximum number of inputs that were predicted together."""
        ...

    @property
    def elapsed_ns(self) -> int:
        """How long the measured part took, in nanoseconds."""
        ...


class TimedMeasurement(Measurement, Protocol):
    """A measurement of batches or steps, one after the other."""

    @property
    def full_ns(self) -> NDArray[np.int64]:
        """int64; the times of the full batches or steps in nanoseconds, in order."""
        ...
