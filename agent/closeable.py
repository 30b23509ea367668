"""The base class of objects that hold a resource for the duration of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod

from typing_extensions import Self


class Closeable(ABC):
    """An object that holds a resource until ``close`` is called."""

    @abstractmethod
    def close(self) -> None:
        """Releases the resource; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
