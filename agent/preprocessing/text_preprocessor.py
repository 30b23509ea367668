"""Preprocesses texts, with the ``tokenizers`` library, into rows of tokens as long as each text.

Only this module imports the library, for manifests with text inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.preprocessing.inputs import Payload, Tensors, Text, TokenizedText, padded
from inferometer.agent.preprocessing.preprocessor import Preprocessor
from inferometer.manifests.errors import ArtifactError, FrameworkUnavailableError, InputError, one_line
from inferometer.manifests.inputs import TextParameters, Truncation

try:
    from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
except ImportError as error:
    raise FrameworkUnavailableError(
        f"texts need the library tokenizers, which cannot be imported ({one_line(error)}); install it with: "
        "pip install 'inferometer[text]'"
    ) from error

_UNKNOWN, _FIRST, _SEPARATOR = "[UNK]", "[CLS]", "[SEP]"
_PADDING = ("[PAD]", "<pad>")
_MOST_WINDOWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens of one text, or of one of its windows, without padding.

    Attributes:
        ids: int64, tokens.
        types: int64, tokens; 1 for the tokens of a second text, else 0.
        text: The text in which answers are found.
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64]
    text: TokenizedText


class TextTokenizer:
    """Splits texts into tokens as specified by a manifest and its tokenizer file. Thread-safe.

    Texts are padded with the token ``padding_id``.

    Raises:
        ArtifactError: The file is not a tokenizer, or does not fit the parameters.
    """

    def __init__(self, parameters: TextParameters, path: Path) -> None:
        self._longest, self._overlap = parameters.max_length, parameters.window_overlap
        self._pairs = _opened(parameters, path)
        special = self._pairs.num_special_tokens_to_add(is_pair=False)
        if parameters.max_length <= special:
            raise ArtifactError(
                f"{path}: the tokenizer adds {special} tokens to each text, so max_length "
                f"{parameters.max_length} leaves none for it"
            )
        self.padding_id = _padding_id(self._pairs, parameters)
        self._pairs.no_padding()
        self._pairs.no_truncation()
        self._singles = self._whole = self._pairs
        if parameters.truncation is not Truncation.NONE:
            # with only_second, the library refuses a text alone
            self._singles = Tokenizer.from_str(self._pairs.to_str())
            self._singles.enable_truncation(parameters.max_length, strategy="longest_first")
            if self._overlap is not None:
                self._whole = Tokenizer.from_str(self._pairs.to_str())
            self._pairs.enable_truncation(
                max_length=parameters.max_length,
                stride=self._overlap or 0,
                strategy=parameters.truncation.value,
            )

    @property
    def versions(self) -> Mapping[str, str]:
        """The library and its version, which determines the tokens."""
        return {"tokenizers": metadata.version("tokenizers")}

    def __call__(self, text: Text) -> list[Tokens]:
        """Returns the tokens of each window of a text; one window unless ``window_overlap`` is given.

        Raises:
            InputError: A text is empty or only white space, has no tokens or too many, or is not Unicode
                text; or the first of a pair leaves too few tokens for windows of the second, or there are
                more than 1,024 windows.
        """
        for part in (text.text, text.pair):
            if part is not None and not part.strip():
                raise InputError("the text is empty" if text.pair is None else "a text of the pair is empty")
        tokenizer = self._singles if text.pair is None else self._pairs
        try:
            encodings = (
                [tokenizer.encode(text.text, text.pair)]
                if self._overlap is None or text.pair is None
                else self._divided(text.text, text.pair, self._overlap)
            )
        except UnicodeEncodeError as error:
            raise InputError(f"the text cannot be encoded in UTF-8: {one_line(error)}") from error
        except InputError:
            raise
        except Exception as error:  # the library has no class of its own, nor a common one
            raise InputError(f"the text cannot be tokenized: {one_line(error)}") from error
        return [self._tokens(text, each) for each in encodings]

    def _divided(self, question: str, context: str, overlap: int) -> list[Encoding]:
        """Returns the windows of a context; checks first what the library does not report as an error."""
        whole = self._whole.encode(question, context)
        if len(whole.ids) <= self._longest:
            return [whole]
        second = whole.sequence_ids.count(1)
        room = self._longest - len(whole.ids) + second
        if room <= overlap:
            raise InputError(
                f"the first text has {whole.sequence_ids.count(0)} tokens, which leaves {max(room, 0)} of "
                f"max_length {self._longest} for a window of the second; window_overlap is {overlap}"
            )
        if (windows := -(-(second - overlap) // (room - overlap))) > _MOST_WINDOWS:
            raise InputError(f"the text has {windows} windows; at most {_MOST_WINDOWS} are allowed")
        first = self._pairs.encode(question, context)
        return [first, *first.overflowing]

    def _tokens(self, text: Text, encoding: Encoding) -> Tokens:
        ids = np.asarray(encoding.ids, np.int64)
        if len(ids) > self._longest:
            raise InputError(f"the text has {len(ids)} tokens; max_length is {self._longest}")
        if all(encoding.special_tokens_mask):
            raise InputError("the text has no tokens")
        answered = 0 if text.pair is None else 1
        inside = np.asarray([number == answered for number in encoding.sequence_ids], np.bool_)
        offsets = np.where(inside[:, np.newaxis], np.asarray(encoding.offsets, np.int64).reshape(-1, 2), -1)
        tokenized = TokenizedText(text.text if text.pair is None else text.pair, offsets)
        return Tokens(ids, np.asarray(encoding.type_ids, np.int64), tokenized)


def _opened(parameters: TextParameters, path: Path) -> Tokenizer:
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: the tokenizer cannot be read: {one_line(error)}") from error
    if not content.lstrip().startswith(b"{"):
        return _word_pieces(path, text, lower_case=parameters.lower_case is not False)
    if parameters.lower_case is not None:
        raise ArtifactError(
            f"{path}: defines whether texts become lower case; leave out lower_case, which is for a vocab.txt"
        )
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library has no class of its own
        raise ArtifactError(f"{path}: is not a file of the library tokenizers: {one_line(error)}") from error


def _word_pieces(path: Path, text: str, *, lower_case: bool) -> Tokenizer:
    """Returns BERT's tokenizer for a vocabulary."""
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    vocabulary = {token: number for number, token in enumerate(lines)}
    if missing := [token for token in (_UNKNOWN, _FIRST, _SEPARATOR) if token not in vocabulary]:
        raise ArtifactError(
            f"{path}: is neither a file of the library tokenizers nor a vocabulary of word pieces, which has "
            f"the token {missing[0]} on a line of its own"
        )
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_UNKNOWN))
    tokenizer.add_special_tokens(
        [token for token in (_PADDING[0], _UNKNOWN, _FIRST, _SEPARATOR, "[MASK]") if token in vocabulary]
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        (_SEPARATOR, vocabulary[_SEPARATOR]), (_FIRST, vocabulary[_FIRST])
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _padding_id(tokenizer: Tokenizer, parameters: TextParameters) -> int:
    if parameters.padding_id is not None:
        return parameters.padding_id
    if (padding := tokenizer.padding) is not None:
        return int(padding["pad_id"])
    found = (tokenizer.token_to_id(token) for token in _PADDING)
    return next((number for number in found if number is not None), 0)


class TextPreprocessor(Preprocessor):
    """Turns texts into the numbers of their tokens, with a mask and types if the model takes them.

    A batch is padded to its longest text, or to ``max_length``; the mask and the types of the padding are 0.
    Raises ArtifactError like ``TextTokenizer``.
    """

    def __init__(self, parameters: TextParameters, tokenizer: Path) -> None:
        super().__init__(parameters)
        self._tokenize = TextTokenizer(parameters, tokenizer)
        ids, *others = self.tensors
        self.tensors = (replace(ids, padding=self._tokenize.padding_id), *others)
        self._layers, self.splits = parameters.layers, parameters.window_overlap is not None
        self._latest = threading.local()

    @property
    def libraries(self) -> Mapping[str, str]:
        """The version of the library that determines the tokens."""
        return self._tokenize.versions

    def prepare(self, payload: Payload, batch: Tensors, place: int) -> Tensors | None:
        """Returns a text's rows, or those of its windows.

        Texts of one length that are not divided into windows are written to ``batch`` instead.
        """
        if not isinstance(payload, Text):
            raise InputError(f"the model takes texts; found {type(payload).__name__.lower()} data")
        tokens, *further = self._tokenize(payload)
        text = replace(tokens.text, further=tuple(each.text.offsets for each in further))
        self._latest.text = payload, text
        windows = [self._rows(each) for each in (tokens, *further)]
        if self.splits:
            return {each.name: padded(each, [rows[each.name] for rows in windows]) for each in self.tensors}
        if self.tensors[0].is_dynamic:
            return windows[0]
        for each in self.tensors:
            batch[each.name][place] = windows[0][each.name]
        return None

    def _rows(self, tokens: Tokens) -> Tensors:
        """Returns the tensors' rows, padded if all texts have one length."""
        of_layer = {
            self._layers.ids: tokens.ids,
            self._layers.mask: np.ones_like(tokens.ids),
            self._layers.types: tokens.types,
        }
        rows = {}
        for each in self.tensors:
            length = len(tokens.ids) if each.is_dynamic else each.sized()
            rows[each.name] = np.full(length, each.padding, self.dtype)
            rows[each.name][: len(tokens.ids)] = of_layer[each.name]
        return rows

    def origin(self, payload: Payload) -> TokenizedText | None:
        """Returns the text that this thread has just prepared, with the positions of its tokens."""
        latest, text = getattr(self._latest, "text", (None, None))
        return text if latest is payload else None

    def write(self, payload: Payload, out: NDArray[Any]) -> None:
        """Writes only the padded numbers of the tokens."""
        tokens = self._tokenize(payload) if isinstance(payload, Text) else None
        if tokens is None or len(tokens[0].ids) > len(out):
            raise InputError(f"the model takes texts of at most {len(out)} tokens")
        out[...] = self._tokenize.padding_id
        out[: len(tokens[0].ids)] = tokens[0].ids


def token_counter(path: Path) -> Callable[[str], int]:
    """Returns a function that counts the tokens of a text, without special ones.

    ``path`` is a ``tokenizer.json``, or the folder that has it.

    Raises:
        ArtifactError: The file cannot be read.
    """
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise ArtifactError(f"tokenizer {path}: cannot be read: {one_line(error)}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
