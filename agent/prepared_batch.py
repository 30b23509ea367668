"""A batch that is ready for the model, and what becomes of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.results import BatchResult, InputFailure, Outputs, QueueTimes, Stage, StageTimes


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """The inputs of a batch, without those that have failed, and what it took so far.

    Attributes:
        ids: The inputs, in the order of the tensor's rows.
        read_ns: See ``StageTimes``.
        preprocess_ns: See ``StageTimes``.
        failures: Those that have failed.
    """

    ids: tuple[str, ...]
    read_ns: int
    preprocess_ns: int
    failures: tuple[InputFailure, ...] = ()

    def failed(
        self,
        stage: Stage,
        error: Exception,
        predict_ns: int = 0,
        queue: QueueTimes | None = None,
    ) -> BatchResult:
        """Returns the result where none of its inputs has a prediction."""
        failures = self.failures + tuple(InputFailure(id_, stage, str(error)) for id_ in self.ids)
        return BatchResult((), None, failures, self._times(predict_ns, 0), queue)

    def answered(
        self,
        outputs: Outputs,
        usable: NDArray[np.bool_],
        predict_ns: int,
        postprocess_ns: int,
        queue: QueueTimes | None,
    ) -> BatchResult:
        """Returns the result.

        Args:
            outputs: The predictions of the usable rows.
            usable: bool, inputs; which rows are predictions.
            predict_ns: See ``StageTimes``.
            postprocess_ns: See ``StageTimes``.
            queue: How long the batch waited for others, if it did.
        """
        ids, failures = self.ids, self.failures
        if not usable.all():
            message = "the model's output is not a finite number"
            failures += tuple(
                InputFailure(id_, Stage.POSTPROCESS, message)
                for id_, fine in zip(ids, usable, strict=True)
                if not fine
            )
            ids = tuple(id_ for id_, fine in zip(ids, usable, strict=True) if fine)
        times = self._times(predict_ns, postprocess_ns)
        return BatchResult(ids, outputs if ids else None, failures, times, queue)

    def _times(self, predict_ns: int, postprocess_ns: int) -> StageTimes:
        return StageTimes(self.read_ns, self.preprocess_ns, predict_ns, postprocess_ns)
