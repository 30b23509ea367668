"""What is closed when the ``with`` block that it was opened for ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

from typing_extensions import Self


class Closeable(ABC):
    """Something that holds a resource until ``close``."""

    @abstractmethod
    def close(self) -> None:
        """Frees the resource; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
