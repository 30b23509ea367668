"""The pieces of a request as an iterator, for tests of the engine."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue

from inferometer.agent.generation.engine import Engine, GenerationRequest, Piece


def generated(engine: Engine, request: GenerationRequest) -> Generator[Piece, None, None]:
    """Yields the pieces of a request, or raises its error; closing the iterator cancels it."""
    pieces: SimpleQueue[Piece] = SimpleQueue()
    generation = engine.submit(request, pieces.put)
    try:
        while True:
            piece = pieces.get()
            if piece.error is not None:
                raise piece.error
            yield piece
            if piece.is_last:
                return
    finally:
        generation.cancel()
