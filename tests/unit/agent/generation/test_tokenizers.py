"""The tokenizers of language models, and the prompts that chats become."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from inferometer.agent.generation.tokenizers import (
    ByteTokenizer,
    ChatTemplate,
    Detokenizer,
    FileTokenizer,
    Tokenizer,
)
from inferometer.manifests.errors import ArtifactError, InputError

TEXTS = ("plain text", "naïve café – 🙂 done", " leading and  double spaces", "line\nline\ttab", "")


def pieces(tokenizer: Tokenizer, tokens: tuple[int, ...]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push([token])[0] for token in tokens), detokenizer.push([], is_last=True)[0]]


@pytest.fixture(scope="module")
def file_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    """A byte-level BPE that was trained on two sentences, as those of Llama 3 are."""
    library = pytest.importorskip("tokenizers")
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    bpe.train_from_iterator(["plain text and more plain text", "line after line"], trainer)
    bpe.post_processor = library.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.save(str(path))
    return FileTokenizer(path)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_become_the_text_again(text: str) -> None:
    tokens = ByteTokenizer().encode(text)
    assert tokens == tuple(byte + 3 for byte in text.encode())
    assert "".join(pieces(ByteTokenizer(), tokens)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_of_a_file_become_the_text_again(text: str, file_tokenizer: FileTokenizer) -> None:
    tokens = file_tokenizer.encode(text, special=False)
    found = pieces(file_tokenizer, tokens)
    assert "".join(found) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)


def test_special_tokens_begin_a_text_and_have_none(file_tokenizer: FileTokenizer) -> None:
    tokens = file_tokenizer.encode("line")
    assert tokens == (0, *file_tokenizer.encode("line", special=False))
    assert "".join(pieces(file_tokenizer, tokens)) == "line"


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ((0xC3 + 3, 0xA9 + 3), ["", "é", ""]),
        ((0xC3 + 3,), ["", "\N{REPLACEMENT CHARACTER}"]),
        ((0xFF + 3, ord("a") + 3), ["", "\N{REPLACEMENT CHARACTER}a", ""]),
        ((0, 1, 2, 300, ord("a") + 3), ["", "", "", "", "a", ""]),
    ],
)
def test_a_piece_is_whole_characters(tokens: tuple[int, ...], wanted: list[str]) -> None:
    assert pieces(ByteTokenizer(), tokens) == wanted


def test_any_bytes_become_the_text_that_they_are_at_once() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        tokens = tuple(random.choice([68, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82, 0xFF, 300], 40).tolist())
        assert "".join(pieces(ByteTokenizer(), tokens)) == ByteTokenizer().decode(tokens)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be encoded in UTF-8"):
        ByteTokenizer().encode("\ud800")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: is not a tokenizer"):
        FileTokenizer(path)


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "[{{ message.role }}]{{ message.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def template_of(folder: Path, content: object) -> ChatTemplate | None:
    pytest.importorskip("jinja2")
    (folder / "tokenizer_config.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    return ChatTemplate.of_folder(folder)


def test_a_template_makes_the_prompt(tmp_path: Path) -> None:
    content = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    template = template_of(tmp_path, content)
    assert template is not None
    assert template(MESSAGES) == "<s>[system]be brief</s>\n[user]hello</s>\n[assistant]"
    with pytest.raises(InputError, match="chat template rejects the messages: no tools"):
        template([{"role": "tool", "content": ""}])


def test_a_file_of_its_own_precedes_the_template_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[-1].content }}")
    template = template_of(tmp_path, {"chat_template": TEMPLATE, "bos_token": "<s>"})
    assert template is not None
    assert template(MESSAGES) == "<s>hello"
    (tmp_path / "tokenizer_config.json").unlink()
    alone = ChatTemplate.of_folder(tmp_path)
    assert alone is not None
    assert alone(MESSAGES) == "hello"


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    template = template_of(tmp_path, {"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"})
    assert template is not None
    with pytest.raises(InputError, match="rejects the messages"):
        template(MESSAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "cannot be read"), ({"chat_template": "{% if %}"}, "is not a template")],
)
def test_a_damaged_template_is_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        template_of(tmp_path, content)


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.of_folder(tmp_path) is None
    assert template_of(tmp_path, {"tokenizer_class": "ByT5Tokenizer"}) is None
