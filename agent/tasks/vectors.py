"""Tasks with a row of numbers per input: classification, regression, embeddings, raw outputs, answers.

A classification, of images or texts, consists of each input's classes ranked by probability. An answer is the
span of a text that a model identifies by the scores of its first and last tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Tensors
from inferometer.agent.tasks.predictions import (
    Classifications,
    PredictedInputs,
    RawOutputs,
    TaskPostprocessor,
    Texts,
    Values,
    find_layer,
)
from inferometer.manifests.errors import PredictionError
from inferometer.manifests.schema import ModelOutput, Transform


class Classification(TaskPostprocessor):
    """Ranks classes by their scores, or takes the class that a model names. Thread-safe.

    For each input, the ``feature_limit`` best classes are kept; 0 keeps all.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._output = output
        self._limit = feature_limit

    def __call__(
        self, tensors: Tensors, inputs: PredictedInputs
    ) -> tuple[Classifications, NDArray[np.bool_]]:
        """Returns the classes for the inputs whose scores are all finite, and a mask of these inputs.

        Raises:
            PredictionError: The outputs do not match the manifest.
        """
        if self._output.parameters.classes_layer is not None:
            classes = self._classes(tensors, self._output.parameters.classes_layer)
            unknown = np.full(classes.shape, np.nan, np.float32)
            return Classifications(classes, unknown), np.ones(len(classes), np.bool_)
        scores = self._scores(tensors)
        good: NDArray[np.bool_] = np.isfinite(scores).all(axis=1)
        if not good.all():
            scores = scores[good]
        scores = transformed(scores, self._output.parameters.probabilities_transform)
        # stable, so that the first of equal scores wins in every framework
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self._limit or None]
        # the same as np.take_along_axis, without its overhead
        best = scores[np.arange(len(scores))[:, np.newaxis], order]
        return Classifications(order.astype(np.int64, copy=False), best), good

    def _classes(self, tensors: Tensors, layer: int | str) -> NDArray[np.int64]:
        """Returns the class that the model names for each input, as an index: int64, inputs × 1."""
        layer, tensor = find_layer(tensors, layer, exactly=True, kinds="biufOU")
        if tensor.size != len(tensor):
            raise PredictionError(
                f"output {layer} has shape {list(tensor.shape)}; expected one class per input"
            )
        parameters, indices = self._output.parameters, []
        for name in tensor.ravel().tolist():
            if not isinstance(name, str) and name == name // 1:
                name = int(name)  # of bool, or a float as from MXNet's argmax
            index = parameters.class_index(name) if isinstance(name, str | int) else None
            if index is None:
                raise PredictionError(
                    f'output {layer} returns the class "{name}", which is none of the manifest\'s '
                    f"{len(parameters.labels)} labels"
                )
            indices.append(index)
        return np.array(indices, np.int64)[:, np.newaxis]

    def _scores(self, tensors: Tensors) -> NDArray[np.float32]:
        """Returns the scores as float32, inputs × classes."""
        layer = self._output.parameters.probabilities_layer
        layer, tensor = find_layer(tensors, layer, exactly=True)
        if tensor.ndim < 2 or not tensor.shape[1] or any(side != 1 for side in tensor.shape[2:]):
            raise PredictionError(
                f"output {layer} has shape {list(tensor.shape)}; a classification is inputs × classes"
            )
        with np.errstate(over="ignore"):  # a score beyond float32 becomes infinite, which is reported
            scores = tensor.reshape(len(tensor), tensor.shape[1]).astype(np.float32, copy=False)
        labels = self._output.parameters.labels
        if labels and scores.shape[1] != len(labels):
            raise PredictionError(
                f"the model gives {scores.shape[1]} scores, but its manifest has {len(labels)} labels"
            )
        return scores


class MultilabelClassification(Classification):
    """Ranks all classes by their scores, each independent of the others; there is no limit. Thread-safe."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        super().__init__(output, 0)


def transformed(scores: NDArray[np.float32], transform: Transform) -> NDArray[np.float32]:
    """Returns the probabilities, inputs × classes, that a transform makes of scores."""
    if transform is Transform.SOFTMAX:
        return softmax(scores)
    if transform is Transform.SIGMOID:
        with np.errstate(
            over="ignore"
        ):  # the exponential of a very low score is infinite, and rightly gives 0
            return 1 / (1 + np.exp(-scores))
    return scores


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns ``exp(x) / sum(exp(x))`` along each row, shifted by its maximum so that nothing overflows."""
    if not scores.size:
        return scores
    with np.errstate(over="ignore"):  # a difference beyond float32 is -inf, whose exponential is rightly 0
        shifted: NDArray[Any] = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float32] = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


class Regression(TaskPostprocessor):
    """Takes an output of N or N × k numbers; further axes of length 1 are allowed. Thread-safe."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._layer = output.parameters.values_layer
        self._labels = len(output.parameters.labels)

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        """Returns the numbers for the inputs whose numbers are all finite, and a mask of these inputs.

        Raises:
            PredictionError: The output is not N × k, or k is not the number of labels.
        """
        name, tensor = find_layer(tensors, self._layer)
        if not tensor.size or any(side != 1 for side in tensor.shape[2:]):
            raise PredictionError(
                f"output {name} has shape {list(tensor.shape)}; a regression has N, or N × k numbers"
            )
        rows = tensor.reshape(len(tensor), -1)
        if self._labels and rows.shape[1] != self._labels:
            raise PredictionError(
                f"output {name} has {rows.shape[1]} numbers for each input; its manifest has "
                f"{self._labels} labels"
            )
        return _finite_rows(rows)


class EmbeddingVectors(TaskPostprocessor):
    """Takes an output, inputs × k, as the embeddings; any further axes of length 1 are dropped.

    A vector with a number that is not finite is not a prediction. Thread-safe.
    """

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        self._layer = output.parameters.embedding_layer

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[Values, NDArray[np.bool_]]:
        """Returns the embeddings; see ``TaskPostprocessor``."""
        name, tensor = find_layer(tensors, self._layer)
        shape = tensor.shape
        if len(shape) < 2 or not shape[1] or any(side != 1 for side in shape[2:]) or shape[0] != inputs.size:
            raise PredictionError(
                f"output {name} has shape {list(shape)}; embeddings are {inputs.size} inputs × values"
            )
        return _finite_rows(tensor.reshape(shape[:2]))


def _finite_rows(rows: NDArray[Any]) -> tuple[Values, NDArray[np.bool_]]:
    """Returns the rows whose numbers are all finite, and a mask of these rows."""
    # float64 where float32 does not hold all numbers of their type
    values = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    good: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
    return Values(values[good]), good


class Raw(TaskPostprocessor):
    """Returns the tensors unchanged. Thread-safe."""

    def __init__(self, output: ModelOutput, feature_limit: int) -> None:
        pass

    def __call__(self, tensors: Tensors, inputs: PredictedInputs) -> tuple[RawOutputs, NDArray[np.bool_]]:
        """Returns the tensors, and a mask that includes every input."""
        return RawOutputs(tensors), np.ones(inputs.size, np.bool_)


class AnswerSpans(TaskPostprocessor):
    """Extracts the best answer from each text.

    The answer is the span of tokens with the highest sum of its first token's score as a start and its last
    token's score as an end, among the spans inside the text with start ≤ end and at most
    ``max_answer_length`` tokens; of equal spans the first, and of these the shortest. With a
    ``no_answer_threshold``, the answer is empty if the sum of both scores of the input's first token,
    ``[CLS]``, exceeds the span's sum by more than the threshold, as in BERT for SQuAD 2.0 (Devlin et al.,
    arXiv 1810.04805, section 4.3). Of a text in several windows, the best span of all windows counts, and
    the lowest sum of ``[CLS]``, as in BERT's ``run_squad.py``. Thread-safe.
    """

    wants_inputs = True

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
        rows = iter(zip(starts, ends, strict=True))
        for place, text in enumerate(inputs.texts):
            windows = () if text is None else (text.offsets, *text.further)
            tokens = max(map(len, windows), default=0)
            if text is None or starts.shape[1] < tokens:
                raise PredictionError(
                    f"the model gives scores for {starts.shape[1]} tokens, but the text has {tokens}"
                )
            scored = [(offsets, *(row[: len(offsets)] for row in next(rows))) for offsets in windows]
            if all(np.isfinite(each).all() for _, *both in scored for each in both):
                answers.append(self._answer(text.text, scored))
            else:
                usable[place] = False
        return Texts.of(answers), usable

    def _answer(self, text: str, windows: Sequence[tuple[NDArray[Any], ...]]) -> str:
        """Returns the answer of one input.

        Args:
            text: The text in which answers are found.
            windows: For each window, its tokens' offsets, and their scores as starts and as ends, float64.
        """
        best, none, answer = -np.inf, np.inf, ""
        for offsets, start, end in windows:
            none = min(none, start[0] + end[0])
            inside = np.flatnonzero(offsets[:, 0] >= 0)
            if not len(inside):
                continue
            first, last, score = best_span(start[inside], end[inside], self._longest)
            if score > best:
                best, answer = score, text[offsets[inside[first], 0] : offsets[inside[last], 1]]
        return "" if self._threshold is not None and none - best > self._threshold else answer


def best_span(start: NDArray[np.float64], end: NDArray[np.float64], longest: int) -> tuple[int, int, float]:
    """Returns the indices of the first and last tokens of the best span, and the sum of their scores.

    There is at least one token; a span has at most ``longest``.
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
        raise PredictionError("answers are cut out of texts, but the inputs are tensors; give texts")
    array: NDArray[Any] = tensor.reshape(tensor.shape[:2]) if tensor.shape[2:] == (1,) else tensor
    if array.ndim != 2 or len(array) != inputs.rows:
        raise PredictionError(
            f"output {name} has shape {list(tensor.shape)}; scores of tokens are {inputs.rows} inputs × "
            "tokens"
        )
    return name, array.astype(np.float64)
