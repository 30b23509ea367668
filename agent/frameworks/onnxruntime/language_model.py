"""The language model for ONNX Runtime: a graph whose cache is an input and an output, as Optimum exports it.

The inputs are ``input_ids`` and ``position_ids`` (which a graph may lack), int64, n × T; ``attention_mask``,
int64, n × (P + T) with P tokens in the cache; and for each layer N ``past_key_values.N.key`` and ``.value``,
n × heads × P × head size. The outputs are ``logits``, n × T × vocabulary, and ``present.N.key`` and
``.value``, which are the cache with the new tokens
(https://huggingface.co/docs/optimum-onnx/onnxruntime/usage_guides/models).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.artifacts.onnx_files import check_external_data
from inferometer.agent.frameworks.onnxruntime.sessions import (
    FAILURES,
    details_of,
    onnxruntime,
    open_graph,
    reason,
)
from inferometer.agent.hardware.environment import FrameworkDetails, Precision, PredictorOptions
from inferometer.manifests.errors import ArtifactError, ConfigurationError, PredictionError

_PAST = "past_key_values."
_GIVEN = {"input_ids", "attention_mask", "position_ids"}
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_CHUNK = 512
"""Prompts are prefilled in pieces of this many tokens, which bounds the memory of attention."""


class ONNXRuntimeLanguageModel:
    """A decoder with its cache; satisfies ``agent.generation.engine.LanguageModel``. Not thread-safe.

    The cache is as long as the longest sequence, and the others are padded at the left. It stays on the
    device, except when a sequence joins or leaves.

    Args:
        graph: The ``.onnx`` file, with ``config.json`` beside it.
        weights: The file beside it that has its weights; None if it has them itself.
        options: The options, such as device and threads; the graph has its own precision.
        rows: The largest number of sequences at a time.

    Raises:
        ArtifactError: A file is not what it should be.
        ConfigurationError: Another precision is asked for.
        DeviceError: The device is missing, or this build of ONNX Runtime cannot use it.
    """

    precision = None

    def __init__(
        self, graph: Path | None, weights: Path | None, options: PredictorOptions, rows: int
    ) -> None:
        if graph is None:
            raise ArtifactError("a language model in ONNX Runtime needs graph_path, its .onnx file")
        self._where, device = str(graph), options.device
        if options.precision is not Precision.FLOAT32:
            raise ConfigurationError(f"{graph}: is a file and has its own precision; leave out dtype")
        check_external_data(graph, weights)
        self._session = open_graph(self._where, graph, device, options.operator_threads)
        self._place = ("cuda", device.index) if device.is_gpu else ("cpu", 0)
        nodes = {node.name: node for node in self._session.get_inputs()}
        outputs = {node.name for node in self._session.get_outputs()}
        past = [name for name in nodes if name.startswith(_PAST)]
        presents = [f"present.{name.removeprefix(_PAST)}" for name in past]
        self._names = dict(zip(past, presents, strict=True))
        self._has_positions = "position_ids" in nodes
        wrong = {*nodes} - {*past, *_GIVEN} or {"logits", *presents} - outputs
        wrong |= {f"{n} is {nodes[n].type} {nodes[n].shape}" for n in past if not _is_cache(nodes[n])}
        if wrong or not past:
            raise ArtifactError(
                f"{graph}: is not a decoder with past_key_values.N.key, in float32 or float16, and "
                f"present.N.key, as Optimum exports it: {min(wrong, default='it has no cache')}"
            )
        self.context_length, self.end_tokens = _limits(graph.parent / "config.json")
        shapes = {name: (1, nodes[name].shape[1], 0, nodes[name].shape[3]) for name in past}
        self._empty = [self._placed(np.zeros(shapes[name], _TYPES[nodes[name].type])) for name in past]
        self._cache, self._lengths = self._empty, list[int]()
        self.vocabulary_size = self.prefill([0]).size
        self.remove(0)
        if rows > 1:
            self._check_padding()

    def _check_padding(self) -> None:
        """Raises ArtifactError if the padding of a sequence changes its logits."""

        def after(*prompts: Sequence[int]) -> NDArray[np.float32]:
            for prompt in prompts:
                self.prefill(prompt)
            found = self.step([0] * len(prompts))
            for _ in prompts:
                self.remove(0)
            return found

        apart = np.concatenate([after([0]), after([0, 1, 2])])
        if not np.allclose(after([0], [0, 1, 2]), apart, rtol=0, atol=0.02 * np.abs(apart).max()):
            raise ArtifactError(
                f"{self._where}: a sequence that is padded at the left, as attention_mask says, has other "
                "logits than without; use max_batch_size 1"
            )

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        cache = self._empty
        for start in range(0, len(tokens), _CHUNK):
            logits, cache = self._run([tokens[start : start + _CHUNK]], [start], cache)
        self._cache = list(map(self._joined, self._cache, cache)) if self._lengths else cache
        self._lengths.append(len(tokens))
        found: NDArray[np.float32] = logits[0, -1].astype(np.float32)
        return found

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits, self._cache = self._run([[token] for token in tokens], self._lengths, self._cache)
        self._lengths = [length + 1 for length in self._lengths]
        found: NDArray[np.float32] = logits[:, -1].astype(np.float32)
        return found

    def log_probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        cache, found = self._empty, []
        for start in range(0, len(tokens), _CHUNK):
            logits, cache = self._run([tokens[start : start + _CHUNK]], [start], cache)
            chosen = np.array(tokens[start + 1 : start + _CHUNK + 1], np.int64)
            of_each = logits[0, : len(chosen)].astype(np.float64)
            of_each -= of_each.max(axis=1, keepdims=True)
            of_each -= np.log(np.exp(of_each).sum(axis=1, keepdims=True))
            found.append(of_each[np.arange(len(chosen)), chosen])
        joined: NDArray[np.float32] = np.concatenate(found).astype(np.float32)
        return joined

    def remove(self, row: int) -> None:
        kept = list(range(len(self._lengths)))
        kept[row] = kept[-1]
        del kept[-1]
        self._lengths = [self._lengths[each] for each in kept]
        longest = max(self._lengths, default=0)
        self._cache = (
            [self._placed(_tail(each.numpy()[kept], longest)) for each in self._cache]
            if kept
            else self._empty
        )

    def details(self) -> FrameworkDetails:
        return details_of(self._session)

    def close(self) -> None:
        """Frees the session with its threads and its memory on the device."""
        del self._session, self._cache, self._empty

    def _run(
        self, tokens: Sequence[Sequence[int]], starts: Sequence[int], cache: Sequence[Any]
    ) -> tuple[NDArray[Any], list[Any]]:
        """Runs new tokens of sequences that had ``starts`` tokens, the last of those in the cache.

        Returns the logits after each token, which are on the host when it returns, and the new cache.
        """
        given, before = np.array(tokens, np.int64), np.array(starts, np.int64)[:, None]
        past = cache[0].shape()[2]
        inputs = {
            "input_ids": given,
            "attention_mask": (np.arange(past + given.shape[1]) >= past - before).astype(np.int64),
        }
        if self._has_positions:
            inputs["position_ids"] = before + np.arange(given.shape[1])
        try:
            binding = self._session.io_binding()
            for name, array in inputs.items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("logits", "cpu")
            for (name, present), value in zip(self._names.items(), cache, strict=True):
                binding.bind_ortvalue_input(name, value)
                binding.bind_output(present, *self._place)
            self._session.run_with_iobinding(binding)
            logits, *presents = binding.get_outputs()
            return logits.numpy(), presents
        except FAILURES as error:
            raise PredictionError(
                f"{self._where}: ONNX Runtime failed on {len(tokens)} sequences: {reason(error)}"
            ) from error

    def _joined(self, cache: Any, row: Any) -> Any:
        longest = max(cache.shape()[2], row.shape()[2])
        return self._placed(np.concatenate([_tail(each.numpy(), longest) for each in (cache, row)]))

    def _placed(self, array: NDArray[Any]) -> Any:
        """Returns an array as a tensor on the device."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *self._place)


def _is_cache(node: Any) -> bool:
    known = [isinstance(size, int) for size in node.shape]
    return node.type in _TYPES and known == [False, True, False, True]


def _tail(cache: NDArray[Any], length: int) -> NDArray[Any]:
    """Returns the last positions of a cache, with zeros before them if it is shorter."""
    missing = max(length - cache.shape[2], 0)
    return np.pad(cache, ((0, 0), (0, 0), (missing, 0), (0, 0)))[:, :, cache.shape[2] + missing - length :]


def _limits(path: Path) -> tuple[int, frozenset[int]]:
    """Returns the length of the context and the tokens that end a text."""
    try:
        content = json.loads(path.read_bytes())
        length = content.get("max_position_embeddings") or content["n_positions"]
        ends = content.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        return int(length), frozenset(map(int, ends))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as the config.json beside a language model's .onnx file: "
            f"{type(error).__name__}: {error}"
        ) from error
