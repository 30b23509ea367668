"""The preprocessor of texts: rows of tokens, as long as each text."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Payload, Tensors, Text
from inferometer.agent.preprocessing.origins import TokenizedText
from inferometer.agent.preprocessing.preprocessor import Preprocessor
from inferometer.agent.preprocessing.text_tokenizer import TextTokenizer
from inferometer.manifests.errors import InputError
from inferometer.manifests.text_inputs import TextParameters


class TextPreprocessor(Preprocessor):
    """Turns texts into the numbers of their tokens, with a mask and types where the model takes them.

    A batch is padded to its longest text, or to ``max_length``; the mask and the types of what is padded
    are 0. Raises ArtifactError as ``TextTokenizer`` does.
    """

    def __init__(self, parameters: TextParameters, tokenizer: Path) -> None:
        super().__init__(parameters)
        self._tokenize = TextTokenizer(parameters, tokenizer)
        ids, *others = self.tensors
        self.tensors = (replace(ids, padding=self._tokenize.padding_id), *others)
        self._layers = parameters.layers
        self._latest = threading.local()

    @property
    def libraries(self) -> Mapping[str, str]:
        """The version of the library that determines the tokens."""
        return self._tokenize.versions

    def prepare(self, payload: Payload, batch: Tensors, place: int) -> Tensors | None:
        """Returns the rows of a text; writes them, and returns None, where all texts have one length."""
        if not isinstance(payload, Text):
            raise InputError(f"the model takes texts; found {type(payload).__name__.lower()} data")
        tokens = self._tokenize(payload)
        self._latest.text = payload, tokens.text
        of_layer = {
            self._layers.ids: tokens.ids,
            self._layers.mask: np.ones_like(tokens.ids),
            self._layers.types: tokens.types,
        }
        rows = {each.name: of_layer[each.name].astype(self.dtype) for each in self.tensors}
        if self.tensors[0].is_dynamic:
            return rows
        for each in self.tensors:
            row = batch[each.name][place]
            row[...] = each.padding
            row[: len(tokens.ids)] = rows[each.name]
        return None

    def origin(self, payload: Payload) -> TokenizedText | None:
        """Returns the text that this thread has just prepared, with the places of its tokens."""
        latest, text = getattr(self._latest, "text", (None, None))
        return text if latest is payload else None

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes the numbers of the tokens alone, padded."""
        tokens = self._tokenize(payload) if isinstance(payload, Text) else None
        if tokens is None or len(tokens.ids) > len(out):
            raise InputError(f"the model takes texts of at most {len(out)} tokens")
        out[...] = self._tokenize.padding_id
        out[: len(tokens.ids)] = tokens.ids
