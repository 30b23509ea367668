"""Question answering: the span of a text that a model points at by the scores of its first and last token."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors, TokenizedText
from inferometer.agent.tasks.predictions import PredictedInputs, TaskPostprocessor, Texts, find_layer
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput


class AnswerSpans(TaskPostprocessor):
    """Cuts the best answer out of each text.

    The answer is the span of tokens with the highest sum of the score of its first token as a start and of
    its last token as an end, among those inside the text, with start ≤ end and at most
    ``max_answer_length`` tokens; of equal ones the first, and of these the shortest. With a
    ``no_answer_threshold`` the answer is empty where the sum of both scores of the first token of the input,
    ``[CLS]``, exceeds that of the span by more than the threshold, as in BERT for SQuAD 2.0 (Devlin et al.,
    arXiv 1810.04805, section 4.3). Thread-safe.
    """

    wants_inputs: ClassVar[bool] = True

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        parameters = output.parameters
        self._start, self._end = parameters.start_layer, parameters.end_layer
        self._longest = parameters.max_answer_length
        self._threshold = parameters.no_answer_threshold

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Texts, NDArray[np.bool_]]:
        """Returns the answers; see ``TaskPostprocessor``."""
        start_name, starts = _scores(tensors, self._start, inputs)
        end_name, ends = _scores(tensors, self._end, inputs)
        if start_name == end_name:
            raise PredictionError(
                f"output {start_name} would be the scores of starts and of ends; give start_layer and "
                "end_layer by number"
            )
        if starts.shape != ends.shape:
            raise PredictionError(
                f"the scores of starts have shape {list(starts.shape)}, those of ends {list(ends.shape)}"
            )
        usable = np.ones(inputs.size, np.bool_)
        answers = []
        for place, text in enumerate(inputs.texts):
            tokens = 0 if text is None else len(text.offsets)
            start, end = starts[place, :tokens], ends[place, :tokens]
            if text is None or len(start) < tokens:
                raise PredictionError(
                    f"the model gives the scores of {starts.shape[1]} tokens, and the text has {tokens}"
                )
            if np.isfinite(start).all() and np.isfinite(end).all():
                answers.append(self._answer(text, start, end))
            else:
                usable[place] = False
        return Texts.of(answers), usable

    def _answer(self, text: TokenizedText, start: NDArray[np.float64], end: NDArray[np.float64]) -> str:
        """Returns the answer of one input from its tokens' scores, float64."""
        inside = np.flatnonzero(text.offsets[:, 0] >= 0)
        if not len(inside):
            return ""
        first, last, score = best_span(start[inside], end[inside], self._longest)
        if self._threshold is not None and start[0] + end[0] - score > self._threshold:
            return ""
        return text.text[text.offsets[inside[first], 0] : text.offsets[inside[last], 1]]


def best_span(start: NDArray[np.float64], end: NDArray[np.float64], longest: int) -> tuple[int, int, float]:
    """Returns the first and the last token of the best span, and the sum of their scores.

    Args:
        start: float64, tokens; at least one.
        end: float64, tokens.
        longest: The most tokens of a span.
    """
    best, lasts = start + end, np.arange(len(start))
    for more in range(1, min(longest, len(start))):
        sums = start[:-more] + end[more:]
        better = sums > best[:-more]
        best[:-more][better] = sums[better]
        lasts[:-more][better] = np.flatnonzero(better) + more
    first = int(best.argmax())
    return first, int(lasts[first]), float(best[first])


def _scores(tensors: Tensors, layer: int | str, inputs: PredictedInputs) -> tuple[str, NDArray[np.float64]]:
    name, tensor = find_layer(tensors, layer)
    if len(inputs.texts) != inputs.size:
        raise PredictionError("answers are cut out of texts, and the inputs are tensors; give texts")
    array: NDArray[Any] = tensor.reshape(tensor.shape[:2]) if tensor.shape[2:] == (1,) else tensor
    if array.ndim != 2 or len(array) != inputs.size:
        raise PredictionError(
            f"output {name} has shape {list(tensor.shape)}; scores of tokens are {inputs.size} inputs × "
            "tokens"
        )
    return name, array.astype(np.float64)
