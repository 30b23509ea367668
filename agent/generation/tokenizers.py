"""The tokenizers of language models, and the prompt that a chat becomes.

``ByteTokenizer`` needs no file and no library. A tokenizer file needs the library ``tokenizers``, and a chat
template needs Jinja; both are imported when they are needed.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from inferometer.manifests.errors import ArtifactError, FrameworkUnavailableError, InputError, one_line


class Detokenizer(Protocol):
    """Converts the tokens of one text, one by one."""

    def push(self, token: int) -> str:
        """Returns the text that the token completes; empty if it ends within a character."""

    def end(self) -> str:
        """Returns the text of tokens that no further token completes."""


class Tokenizer(Protocol):
    """Converts texts to tokens and back. Thread-safe."""

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text, with those that begin a text if ``special``; raises InputError."""

    def detokenizer(self) -> Detokenizer:
        """Returns a detokenizer for a new text."""


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

    def detokenizer(self) -> Detokenizer:
        """Returns a detokenizer; invalid UTF-8 becomes U+FFFD, and tokens that are no bytes have no text."""
        return _Bytes()


class _Bytes:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        byte = token - FIRST_BYTE
        return self._decoder.decode(bytes([byte])) if 0 <= byte < BYTES else ""

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)


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

    def detokenizer(self) -> Detokenizer:
        """Returns a detokenizer, which leaves special tokens out."""
        return _Decoded(self._library)


_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class _Decoded:
    """Decodes new tokens together with those before them, which decide about spaces."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._context: list[int] = []
        self._new: list[int] = []

    def push(self, token: int) -> str:
        self._new.append(token)
        text = self._text()
        return "" if text.endswith(_INCOMPLETE) else self._keep(text)

    def end(self) -> str:
        return self._keep(self._text())

    def _text(self) -> str:
        before = self._library.decode(self._context)
        return str(self._library.decode(self._context + self._new)[len(before) :])

    def _keep(self, text: str) -> str:
        if text:
            self._context, self._new = self._new, []
        return text


def chat_prompt(messages: Sequence[Mapping[str, str]], template: ChatTemplate | None) -> str:
    """Returns the prompt for the next message of the assistant.

    Without a template, each message is a line with its role, a colon and its content.

    Raises:
        InputError: The template rejects the messages.
    """
    if template is not None:
        return template(messages)
    lines = [f"{message['role']}: {message['content']}\n" for message in messages]
    return "".join([*lines, "assistant:"])


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
        self._tokens = tokens
        try:
            self._template = environment.from_string(text)
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
            tokens = {name: _token_text(content.get(name)) for name in ("bos_token", "eos_token")}
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{path}: cannot be read: {one_line(error)}") from error
        return cls(path, text, tokens) if isinstance(text, str) else None

    def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the prompt; raises InputError if the template rejects the messages."""
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except self._errors as error:
            raise InputError(f"the model's chat template rejects the messages: {one_line(error)}") from error


def _token_text(token: object) -> str:
    """Returns the text of a special token, which is a string or an object with its content."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _refuse(message: str) -> None:
    raise ValueError(message)
