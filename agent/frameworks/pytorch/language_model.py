"""The language model for PyTorch: a folder of Hugging Face's format, run with a key-value cache.

Weights are read from ``model.safetensors`` without a library: the format is a length, a JSON header with the
name, dtype, shape and place of each tensor, and the tensors
(https://github.com/huggingface/safetensors#format). Nothing in the file can run code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

from inferometer.agent.architectures.pytorch.llama import Llama, LlamaConfig
from inferometer.agent.frameworks.pytorch.modules import (
    FAILURES,
    find_device,
    framework_details,
    reason_of,
    use_threads,
)
from inferometer.agent.hardware.environment import FrameworkDetails, PredictorOptions
from inferometer.manifests.errors import ArtifactError, DeviceError, PredictionError

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_TIED = "lm_head.weight"
_CHUNK = 512
"""Prompts are prefilled in pieces of this many tokens, which bounds the memory of attention."""
_FIRST_LENGTH = 256


class PyTorchLanguageModel:
    """A Llama with its cache; satisfies ``agent.generation.engine.LanguageModel``. Not thread-safe.

    The cache grows with the longest sequence, by doubling.

    Args:
        graph: The file ``config.json``.
        weights: The file ``model.safetensors``.
        options: The options, such as device, threads and precision.
        rows: The largest number of sequences at a time.

    Raises:
        ArtifactError: A file is not what it should be, or the two do not belong together.
        DeviceError: The device is missing, or this build of PyTorch cannot use it.
    """

    def __init__(
        self, graph: Path | None, weights: Path | None, options: PredictorOptions, rows: int
    ) -> None:
        if graph is None or weights is None:
            raise ArtifactError(
                "a language model needs graph_path, its config.json, and weights_path, its model.safetensors"
            )
        self._where, self.precision = str(graph), options.precision
        self._threads = options.operator_threads
        self._device = find_device(self._where, options.device)
        config = read_config(graph)
        self.context_length = config.max_position_embeddings
        self.vocabulary_size = config.vocab_size
        self.end_tokens = config.end_tokens
        self._lengths: list[int] = []
        use_threads(self._threads)
        dtype = getattr(torch, options.precision.value)
        with torch.device("meta"):
            module = Llama(config)
        load_weights(module, weights, dtype)
        self._rows = rows
        try:
            self._module = module.to(self._device).eval()
            self._cache = module.new_cache(rows, min(_FIRST_LENGTH, config.max_position_embeddings))
        except RuntimeError as error:
            raise DeviceError(
                f"{self._where}: cannot be moved to {options.device}: {reason_of(error)}"
            ) from error

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        row = len(self._lengths)
        for start in range(0, len(tokens), _CHUNK):
            logits = self._run([tokens[start : start + _CHUNK]], [start], slice(row, row + 1))
        self._lengths.append(len(tokens))
        found: NDArray[np.float32] = logits[0]
        return found

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = self._run([[token] for token in tokens], self._lengths, slice(len(tokens)))
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def log_probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        row = slice(len(self._lengths), len(self._lengths) + 1)
        parts = [(start, tokens[start : start + _CHUNK + 1]) for start in range(0, len(tokens), _CHUNK)]
        return np.concatenate([self._run([part[:_CHUNK]], [start], row, part[1:]) for start, part in parts])

    def remove(self, row: int) -> None:
        last, length = len(self._lengths) - 1, self._lengths.pop()
        if row != last:
            self._lengths[row] = length
            self._cache[:, :, row, :length] = self._cache[:, :, last, :length]

    def details(self) -> FrameworkDetails:
        return framework_details()

    def close(self) -> None:
        """Frees the model; on a GPU, returns its memory to the driver."""
        del self._module, self._cache
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _run(
        self,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        rows: slice,
        told: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Runs new tokens of sequences that had ``starts`` tokens; returns the logits after the last one.

        With the next tokens of a single sequence, ``told``, it returns their log-probabilities instead.
        """
        use_threads(self._threads)
        try:
            self._make_room(max(starts) + len(tokens[0]))
            with torch.inference_mode():
                given = torch.tensor(tokens, device=self._device)
                offsets = torch.arange(given.shape[1], device=self._device)
                positions = torch.tensor(starts, device=self._device)[:, None] + offsets
                logits = self._module(given, positions, self._cache, rows, last=told is None)
                if told is None:
                    values = logits[:, -1].float()
                else:
                    told_tokens = torch.tensor(told, dtype=torch.int64, device=self._device)
                    values = -cross_entropy(logits[0, : len(told)].float(), told_tokens, reduction="none")
                found: NDArray[np.float32] = values.cpu().numpy()
                return found
        except FAILURES as error:
            raise PredictionError(
                f"{self._where}: PyTorch failed on {len(tokens)} sequences: {reason_of(error)}"
            ) from error

    def _make_room(self, length: int) -> None:
        """Lengthens the cache so that a sequence of this length fits."""
        present = self._cache.shape[3]
        if length > present:
            longer = self._module.new_cache(self._rows, min(max(length, 2 * present), self.context_length))
            longer[:, :, :, :present] = self._cache
            self._cache = longer


def read_config(path: Path) -> LlamaConfig:
    """Reads ``config.json``; raises ArtifactError if it is damaged, or its model is not supported."""
    what = f"{path}: cannot be used as the config.json of a model"
    try:
        return LlamaConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ArtifactError(f"{what}: {': '.join([*map(str, first['loc']), first['msg']])}") from error
    except OSError as error:
        raise ArtifactError(f"{what}: {error}") from error


def load_weights(module: Llama, path: Path, dtype: torch.dtype) -> None:
    """Loads the weights into a module on the device ``meta``, as tensors of ``dtype``.

    Raises:
        ArtifactError: The file is not in the format, or holds the weights of another model.
    """
    try:
        state = {name: tensor.to(dtype) for name, tensor in read_tensors(path)}
        if module.config.tie_word_embeddings:
            state[_TIED] = state["model.embed_tokens.weight"]
        module.load_state_dict(state, assign=True)
    except (*FAILURES, OSError, LookupError) as error:
        raise ArtifactError(f"{path}: does not hold the weights of this model: {reason_of(error)}") from error


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a safetensors file with their names.

    Raises:
        ArtifactError: The file is not in the format, or has a dtype other than F64, F32, F16 and BF16.
    """
    name = "the header"
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = json.loads(file.read(min(header_bytes, _MOST_HEADER_BYTES)))
        content = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (_LENGTH_BYTES + header_bytes + offset for offset in entry["data_offsets"])
            yield name, content[begin:end].clone().view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (*FAILURES, RecursionError) as error:
        raise ArtifactError(
            f"{path}: is not a safetensors file of {', '.join(_DTYPES)}: {name} cannot be read: "
            f"{type(error).__name__}: {reason_of(error)}"
        ) from error
