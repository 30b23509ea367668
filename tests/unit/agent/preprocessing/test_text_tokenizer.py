"""Tokens of texts by a vocabulary and by a file of the library tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inferometer.agent.preprocessing.inputs import Text
from inferometer.agent.preprocessing.text_preprocessor import TextTokenizer
from inferometer.manifests.errors import ArtifactError, InputError
from inferometer.manifests.inputs import TextParameters

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "seven", "is", "not", "three", "##s", "cafe", "Seven"]
CLS, SEP, UNKNOWN = 2, 3, 1


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return path


def tokenizer(path: Path, **parameters: Any) -> TextTokenizer:
    return TextTokenizer(TextParameters(tokenizer=path.name, layers={"ids": "input_ids"}, **parameters), path)


def test_a_text_becomes_the_word_pieces_of_bert(vocabulary: Path) -> None:
    [tokens] = tokenizer(vocabulary)(Text("Seven is  not threes, café"))
    assert tokens.ids.tolist() == [CLS, 4, 5, 6, 7, 8, UNKNOWN, 9, SEP]
    assert tokens.types.tolist() == [0] * 9
    text, offsets = tokens.text.text, tokens.text.offsets
    cut = [text[begin:end] if begin >= 0 else None for begin, end in offsets.tolist()]
    assert cut == [None, "Seven", "is", "not", "three", "s", ",", "café", None]


def test_case_and_accents_stay_where_the_manifest_says_so(vocabulary: Path) -> None:
    [tokens] = tokenizer(vocabulary, lower_case=False)(Text("Seven café"))
    assert tokens.ids.tolist() == [CLS, 10, UNKNOWN, SEP]


def test_of_a_pair_the_second_text_has_the_offsets(vocabulary: Path) -> None:
    [tokens] = tokenizer(vocabulary)(Text("is seven", "seven not"))
    assert tokens.ids.tolist() == [CLS, 5, 4, SEP, 4, 6, SEP]
    assert tokens.types.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert tokens.text.text == "seven not"
    assert tokens.text.offsets.tolist() == [[-1, -1]] * 4 + [[0, 5], [6, 9], [-1, -1]]


def test_a_text_that_is_too_long_loses_tokens_or_fails(vocabulary: Path) -> None:
    long, pair = Text("seven is not three"), Text("seven is not three", "is not")
    assert tokenizer(vocabulary, max_length=4)(long)[0].ids.tolist() == [CLS, 4, 5, SEP]
    assert len(tokenizer(vocabulary, max_length=9)(pair)[0].ids) == 9
    second = tokenizer(vocabulary, max_length=8, truncation="only_second")
    assert second(pair)[0].ids.tolist() == [CLS, 4, 5, 6, 7, SEP, 5, SEP]
    assert second(long)[0].ids.tolist() == [CLS, 4, 5, 6, 7, SEP]
    with pytest.raises(InputError, match="the text cannot be tokenized: Truncation error"):
        second(Text("seven " * 9, "is"))
    with pytest.raises(InputError, match="the text has 6 tokens; max_length is 5"):
        tokenizer(vocabulary, max_length=5, truncation="none")(long)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (Text(""), "the text is empty"),
        (Text(" \n\t\u00a0"), "the text is empty"),
        (Text("is", " "), "a text of the pair is empty"),
        (Text("\x00\x01"), "the text has no tokens"),
        (Text("\ud800"), "the text cannot be "),
    ],
)
def test_a_text_without_content_fails(vocabulary: Path, text: Text, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tokenizer(vocabulary)(text)


def json_file(folder: Path, padding: dict[str, Any] | None = None) -> Path:
    """A tokenizer of words, whose file asks for padding and truncation of its own."""
    content = {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": padding,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {"<unk>": 0, "is": 1, "seven": 2, "<pad>": 3},
            "unk_token": "<unk>",
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_file_of_the_library_is_taken_without_its_own_truncation_and_padding(tmp_path: Path) -> None:
    padding = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "is",
    }
    found = tokenizer(json_file(tmp_path, padding))
    assert found(Text("seven is Seven"))[0].ids.tolist() == [2, 1, 0]
    assert found.padding_id == 1
    assert tokenizer(json_file(tmp_path)).padding_id == 3
    assert tokenizer(json_file(tmp_path), padding_id=2).padding_id == 2
    assert "tokenizers" in found.versions


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, vocabulary: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": "1.0"}')
    with pytest.raises(ArtifactError, match=r"broken.json: is not a file of the library tokenizers: "):
        tokenizer(broken)
    broken.write_text("seven\nis\n")
    with pytest.raises(ArtifactError, match=r"vocabulary of word pieces, which has the token \[UNK\]"):
        tokenizer(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="the tokenizer cannot be read"):
        tokenizer(broken)
    with pytest.raises(ArtifactError, match="leave out lower_case"):
        tokenizer(json_file(tmp_path), lower_case=True)
    with pytest.raises(ArtifactError, match="adds 2 tokens to each text, so max_length 2 leaves none"):
        tokenizer(vocabulary, max_length=2)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"layers": {}},
        {"layers": "input_ids"},
        {"layers": {"ids": "a", "mask": "a"}},
        {"layers": {"ids": "a"}, "max_length": 0},
        {"layers": {"ids": "a"}, "element_type": "float32"},
        {"layers": {"ids": "a"}, "truncation": "first"},
        {"layers": {"ids": "a"}, "tokenizer": ""},
        {"layers": {"ids": "a"}, "stride": 4},
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TextParameters.model_validate({"tokenizer": "vocab.txt", **parameters})
