"""The tokenizers of language models, and their chat templates.

``ByteTokenizer`` needs no file and no library. A tokenizer file needs the library ``tokenizers``, and a chat
template needs Jinja; both are imported when they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from inferometer.manifests.errors import ArtifactError, FrameworkUnavailableError, InputError, one_line


class Tokenizer(Protocol):
    """Converts texts to tokens and back. Thread-safe."""

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text, with those that begin a text if ``special``; raises InputError."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns a text; special tokens have none, and incomplete characters become U+FFFD."""


BYTES = 256
FIRST_BYTE = 3
"""The token of the byte 0; the tokens before it are padding, the end of a text, and unknown, as in ByT5."""


class ByteTokenizer:
    """A token for each byte of UTF-8, with ByT5's numbers (https://arxiv.org/abs/2105.13626)."""

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text, which has no special ones."""
        try:
            return tuple(byte + FIRST_BYTE for byte in text.encode())
        except UnicodeEncodeError as error:
            raise InputError(f"the text cannot be encoded in UTF-8: {one_line(error)}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns a text; see ``Tokenizer``. Tokens that are no bytes have no text."""
        numbers = (token - FIRST_BYTE for token in tokens)
        return bytes(number for number in numbers if 0 <= number < BYTES).decode(errors="replace")


class FileTokenizer:
    """A ``tokenizer.json`` of the library ``tokenizers``.

    Raises:
        ArtifactError: The file is not a tokenizer.
        FrameworkUnavailableError: The library is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Library
        except ImportError as error:
            raise FrameworkUnavailableError(
                f"{path}: needs the library tokenizers; install it with: pip install 'inferometer[text]'"
            ) from error
        try:
            self._library = Library.from_file(str(path))
        except Exception as error:  # the library raises nothing more specific
            raise ArtifactError(f"{path}: is not a tokenizer: {one_line(error)}") from error

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text; see ``Tokenizer``."""
        try:
            return tuple(self._library.encode(text, add_special_tokens=special).ids)
        except Exception as error:  # the library raises nothing more specific
            raise InputError(f"the text cannot be tokenized: {one_line(error)}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns a text; see ``Tokenizer``."""
        return str(self._library.decode(tokens))


class Detokenizer:
    """Converts the tokens of one text as they come, together with those before, which decide about spaces.

    It withholds what might become a stop string, and ends the text before one.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._decode = tokenizer.decode
        self._stop = stop
        self._context: list[int] = []
        self._new: list[int] = []
        self._withheld = ""

    def push(
        self, tokens: Sequence[int], *, is_last: bool = False, may_stop: bool = True
    ) -> tuple[str, bool]:
        """Returns the text that tokens complete, and whether a stop string in it ended the text."""
        self._new.extend(tokens)
        new = self._decode(self._context + self._new)[len(self._decode(self._context)) :]
        if new.endswith("\N{REPLACEMENT CHARACTER}") and not is_last:
            new = ""
        if new:
            self._context, self._new = self._new, []
        old, text = len(self._withheld), self._withheld + new
        places = [text.find(each, max(old - len(each) + 1, 0)) for each in self._stop]
        if may_stop and any(place >= 0 for place in places):
            return text[: min(place for place in places if place >= 0)], True
        withheld = 0 if is_last else max((_common(text, each) for each in self._stop), default=0)
        text, self._withheld = text[: len(text) - withheld], text[len(text) - withheld :]
        return text, False


def _common(text: str, stop: str) -> int:
    """Returns the length of the longest beginning of ``stop`` with which a text ends."""
    return max(size for size in range(len(stop)) if text.endswith(stop[:size]))


class ChatTemplate:
    """A Jinja template, rendered in Jinja's sandbox; ``tokens`` are its special tokens by name.

    Raises:
        ArtifactError: The template is damaged.
        FrameworkUnavailableError: Jinja is not installed.
    """

    def __init__(self, path: Path, text: str, tokens: Mapping[str, str]) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise FrameworkUnavailableError(
                f"{path}: its chat_template needs Jinja; install it with: pip install 'inferometer[text]'"
            ) from error
        self._errors = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(text, dict(tokens))
        except TemplateError as error:
            raise ArtifactError(f"{path}: its chat_template is not a template: {one_line(error)}") from error

    @classmethod
    def of_folder(cls, folder: Path) -> ChatTemplate | None:
        """Returns the template of a model's folder; None if it has none.

        It is ``chat_template.jinja``, or else in ``tokenizer_config.json``.
        """
        path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            text = file.read_text(encoding="utf-8") if file.is_file() else content.get("chat_template")
            given = {name: content.get(name) or "" for name in ("bos_token", "eos_token")}
            tokens = {
                name: each if isinstance(each, str) else each["content"] for name, each in given.items()
            }
        except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
            raise ArtifactError(f"{path}: cannot be read: {one_line(error)}") from error
        return cls(path, text, tokens) if isinstance(text, str) else None

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the prompt; raises InputError if the template rejects the messages."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True)
        except self._errors as error:
            raise InputError(f"the model's chat template rejects the messages: {one_line(error)}") from error


def _refuse(message: str) -> None:
    raise ValueError(message)
