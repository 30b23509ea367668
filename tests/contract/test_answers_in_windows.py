"""Answers over contexts longer than the model: windows, cut and chosen by the rules of BERT."""

from __future__ import annotations

import math
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Input, NamedTensors, Text
from inferometer.agent.server.server import AgentServer, ServerOptions
from inferometer.agent.tasks.predictions import Texts
from inferometer.client.remote.native.agent import open_remote_agent
from inferometer.evaluators.evaluation import SystemUnderTest
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ManifestError
from inferometer.manifests.loader import load_manifest
from inferometer.manifests.schema import ModelManifest
from tests.bert_shaped import INPUTS, VOCABULARY, WORDS, BertShaped, save_onnx

CLS, SEP = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
LONGEST, OVERLAP, ANSWER = 16, 4, 3
PLAIN = [word for word in WORDS if word.isalnum()]


@pytest.fixture(scope="module")
def network() -> BertShaped:
    return BertShaped().eval()


@pytest.fixture(scope="module")
def folder(network: BertShaped, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("windows")
    save_onnx(network, folder / "bert.onnx")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


def write_model(folder: Path, output: dict[str, Any], task: str = "question_answering", **text: Any) -> Path:
    layers = dict(zip(("ids", "mask", "types"), INPUTS, strict=True))
    windows = {"max_length": LONGEST, "truncation": "only_second", "window_overlap": OVERLAP}
    parameters = {"tokenizer": "../vocab.txt", "layers": layers, **windows, **text}
    manifest = {
        "kind": "model",
        "name": "Windows",
        "framework": {"name": "ONNXRuntime"},
        "inputs": [{"type": "text", "parameters": parameters}],
        "output": {
            "type": task,
            "parameters": {"start_layer": 1, "end_layer": 2, "max_answer_length": ANSWER, **output},
        },
        "model": {"graph_path": "../bert.onnx"},
    }
    path = folder / f"{len(list(folder.iterdir()))}" / "model.yml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(manifest))
    return path


def opened(path: Path) -> SystemUnderTest:
    manifest = load_manifest(path)
    assert isinstance(manifest, ModelManifest)
    return open_session(manifest, SessionOptions(threads=1), Registry())


def answer(network: BertShaped, question: list[str], context: list[str]) -> tuple[str, float]:
    """The best span by the published rules, and the least threshold with which it is the answer.

    They come from a run of the network for each window alone.
    """
    room = LONGEST - len(question) - 3
    spans, none, begin = [], math.inf, 0
    while True:
        window = context[begin : begin + room]
        ids = [CLS, *map(VOCABULARY.index, question), SEP, *map(VOCABULARY.index, window), SEP]
        types = [0] * (len(question) + 2) + [1] * (len(window) + 1)
        row = torch.tensor([ids])
        with torch.inference_mode():
            _, start, end, _ = network(row, torch.ones_like(row), torch.tensor([types]))
        none = min(none, float(start[0, 0] + end[0, 0]))
        at = len(question) + 2
        for first in range(len(window)):
            for last in range(first, min(first + ANSWER, len(window))):
                score = float(start[0, at + first] + end[0, at + last])
                spans.append((score, " ".join(window[first : last + 1])))
        if begin + room >= len(context):
            break
        begin += room - OVERLAP
    best, text = max(spans, key=lambda span: span[0])
    return text, none - best


def drawn(count: int) -> list[tuple[list[str], list[str]]]:
    """Questions and contexts, of which some fit one window, exactly or with some to spare."""
    draw = random.Random(3)
    lengths = [1, 9, 10, 11, 15, 16, 17, *(draw.randint(1, 60) for _ in range(count - 7))]
    return [(["who", *draw.choices(PLAIN, k=2)], draw.choices(PLAIN, k=length)) for length in lengths]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[list[str], list[str]]]:
    return drawn(40)


@pytest.fixture(scope="module")
def answers(network: BertShaped, pairs: list[tuple[list[str], list[str]]]) -> dict[str, tuple[str, float]]:
    return {str(n): answer(network, *pair) for n, pair in enumerate(pairs)}


@pytest.mark.parametrize(
    ("padding", "place"), [("longest", "here"), ("max_length", "here"), ("longest", "served")]
)
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_the_answer_is_the_best_span_of_all_windows(
    folder: Path,
    pairs: list[tuple[list[str], list[str]]],
    answers: dict[str, tuple[str, float]],
    padding: str,
    place: str,
    threshold: float | None,
) -> None:
    inputs = [Input(str(n), Text(" ".join(q), " ".join(c))) for n, (q, c) in enumerate(pairs)]
    inputs.insert(3, Input("empty", Text("who", " ")))
    inputs.insert(9, Input("long", Text(" ".join(["who"] * 10), "ada met charles in the")))
    inputs.insert(12, Input("huge", Text("who met ada", "ada " * 6200)))
    path = write_model(folder, {"no_answer_threshold": threshold}, padding=padding)
    with ExitStack() as stack:
        if place == "served":
            server = AgentServer(Catalog([path.parent]), Registry(), ServerOptions(port=0))
            stack.callback(server.stop, 0)
            server.start()
            system: SystemUnderTest = open_remote_agent(server.address, "Windows")
        else:
            system = opened(path)
        stack.enter_context(system)
        results = [system.predict(inputs[at : at + 8]) for at in range(0, len(inputs), 8)]
    failures = {each.input_id: each.message for result in results for each in result.failures}
    assert failures == {
        "empty": "a text of the pair is empty",
        "long": "the first text has 10 tokens, which leaves 3 of max_length 16 for a window of the second; "
        "window_overlap is 4",
        "huge": "the text has 1033 windows; at most 1024 are allowed",
    }
    found = {}
    for result in results:
        assert isinstance(result.outputs, Texts)
        found |= {name: result.outputs.text(place) for place, name in enumerate(result.input_ids)}
    wanted = {
        n: text if threshold is None or least <= threshold else "" for n, (text, least) in answers.items()
    }
    assert found == wanted
    assert ("" in wanted.values()) == (threshold is not None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"truncation": "longest_first"}, "window_overlap requires truncation: only_second"),
        ({"window_overlap": -1}, "greater than or equal to 0"),
        ({"task": "text_classification"}, "window_overlap requires a model for question_answ"),
    ],
)
def test_windows_that_mean_nothing_are_refused(folder: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        load_manifest(write_model(folder, {}, **given))


def test_tensors_have_no_windows(folder: Path) -> None:
    row = np.ones(5, np.int64)
    with opened(write_model(folder, {})) as system:
        result = system.predict([Input("1", NamedTensors(dict.fromkeys(INPUTS, row)))])
    assert [each.message for each in result.failures] == [
        "the model divides texts into windows; give texts, not tensors"
    ]
