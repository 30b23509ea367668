"""The language model in PyTorch: its cache changes nothing, and damaged files are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inferometer.agent.architectures.pytorch.llama import Llama, LlamaConfig
from inferometer.agent.frameworks.pytorch.language_model import (
    PyTorchLanguageModel,
    load_weights,
    read_config,
    read_tensors,
)
from inferometer.agent.generation.engine import Engine, GenerationParameters, Piece
from inferometer.agent.generation.opening import open_engine
from inferometer.agent.hardware.environment import Device, DeviceKind, Precision, PredictorOptions
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.catalog import Catalog
from inferometer.manifests.errors import ArtifactError, ConfigurationError, DeviceError
from inferometer.manifests.files import BUILTIN
from tools.train_toy_llama import write_tensors

SHIPPED = BUILTIN / "models" / "ToyLlama"
CONTENT: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1300,
    "eos_token_id": [1, 2],
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "grouped queries": {},
    "one head for each query": {"num_key_value_heads": None},
    "a head size of its own": {"head_dim": 16},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "Llama 3.1's positions": {"rope_scaling": LLAMA3},
}


def written(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A folder with a random model in float32."""
    content = {**CONTENT, **changes}
    torch.manual_seed(7)
    module = Llama(LlamaConfig.model_validate(content))
    state = module.state_dict()
    if content.get("tie_word_embeddings"):
        del state["lm_head.weight"]
    (folder / "config.json").write_text(json.dumps(content))
    write_tensors(folder / "model.safetensors", state)
    return folder / "config.json", folder / "model.safetensors"


def module_of(folder: Path) -> Llama:
    module = Llama(read_config(folder / "config.json"))
    load_weights(module, folder / "model.safetensors", torch.float32)
    return module


def without_cache(module: Llama, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after the last of the tokens, computed from the whole sequence."""
    with torch.inference_mode():
        logits: NDArray[np.float32] = module(
            torch.tensor([list(tokens)]), torch.arange(len(tokens))[None]
        ).numpy()
    return logits[0, -1]


def assert_close(found: NDArray[np.float32], wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_cache_changes_nothing(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    artifacts = written(tmp_path, **changes)
    module = module_of(tmp_path)
    random = np.random.default_rng(5)
    rows = [
        random.integers(90, size=size).tolist() for size in (3, 520, 250)
    ]  # beyond a chunk, and the first cache
    model = PyTorchLanguageModel(*artifacts, PredictorOptions(), 3)
    assert (model.context_length, model.end_tokens) == (1300, {1, 2})
    for row in rows:
        assert_close(model.prefill(row), without_cache(module, row))
    for _ in range(9):
        tokens = random.integers(90, size=len(rows)).tolist()
        rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
        wanted = [without_cache(module, row) for row in rows]
        assert_close(model.step(tokens), wanted)
    model.remove(0)
    rows = [rows[2], rows[1]]
    rows = [[*row, 4] for row in rows]
    wanted = [without_cache(module, row) for row in rows]
    assert_close(model.step([4, 4]), wanted)
    model.close()


@pytest.mark.parametrize(("precision", "bits"), [(Precision.BFLOAT16, 8), (Precision.FLOAT16, 11)])
def test_weights_and_cache_have_the_type_that_is_asked_for(
    tmp_path: Path, precision: Precision, bits: int
) -> None:
    artifacts = written(tmp_path)
    with closing(PyTorchLanguageModel(*artifacts, PredictorOptions(precision=precision), 2)) as model:
        assert {each.dtype for each in (*model._module.parameters(), model._cache)} == {
            getattr(torch, precision.value)
        }
        tokens = list(range(3, 60))
        model.prefill([5, 6])
        found = [model.prefill(tokens), model.step([4, 4])[1]]
    module = module_of(tmp_path)
    for logits, row in zip(found, (tokens, [*tokens, 4]), strict=True):
        wanted = without_cache(module, row)
        assert logits.dtype == np.float32
        assert 0 < np.abs(logits - wanted).max() < 8 * 2.0**-bits * np.abs(wanted).max()


def test_a_gpu_that_is_not_there_is_refused_before_the_weights_are_read(tmp_path: Path) -> None:
    artifacts = written(tmp_path)
    artifacts[1].write_bytes(b"")
    with pytest.raises(DeviceError, match=r"cannot use gpu:99: .*run on the CPU"):
        PyTorchLanguageModel(*artifacts, PredictorOptions(Device(DeviceKind.GPU, 99)), 1)


@pytest.mark.parametrize("length", [1, 2, 512, 513, 1300])
def test_log_probabilities_are_those_of_the_whole_sequence_and_keep_no_row(
    tmp_path: Path, length: int
) -> None:
    artifacts = written(tmp_path)
    module = module_of(tmp_path)
    tokens = np.random.default_rng(3).integers(90, size=length).tolist()
    model = PyTorchLanguageModel(*artifacts, PredictorOptions(), 2)
    model.prefill([5, 6, 7])
    with torch.inference_mode():
        of_all = module(torch.tensor([tokens]), torch.arange(length)[None])[0].double().log_softmax(-1)
    wanted = [float(of_all[place, token]) for place, token in enumerate(tokens[1:])]
    found = model.log_probabilities(tokens)
    assert found.tolist() == pytest.approx(wanted, abs=1e-4)
    assert_close(model.step([8]), [without_cache(module, [5, 6, 7, 8])])
    model.close()


def test_likelihoods_of_the_shipped_model_are_those_of_transformers() -> None:
    manifest = Catalog().find_model("ToyLlama", None, Registry().versions)
    with closing(open_engine(manifest, Registry())[0]) as engine:
        found = {text: sum(engine.log_probabilities(engine.encode(text))) for text in LIKELIHOODS}
    assert found == pytest.approx(LIKELIHOODS, abs=1e-4)


def test_hugging_faces_files_are_read_in_both_notations_of_positions() -> None:
    older = LlamaConfig.model_validate({**CONTENT, "rope_theta": 500.0})
    assert older == LlamaConfig.model_validate({**CONTENT, "rope_parameters": {"rope_theta": 500.0}})
    assert older.rope_theta == 500
    given = older.frequencies(torch.device("cpu"))
    assert given.tolist() == pytest.approx([500.0 ** (-place / 4) for place in range(4)])
    scaled = LlamaConfig.model_validate({**CONTENT, "rope_scaling": LLAMA3})
    found = scaled.frequencies(torch.device("cpu"))
    assert found[0] == 1
    assert float(found[-1]) == pytest.approx(float(given[-1]) / 8)


def greedy(count: int) -> GenerationParameters:
    return GenerationParameters(temperature=0, max_tokens=count, ignore_eos=True)


def generated(model: Engine, prompt: str, count: int) -> str:
    pieces, ended = list[Piece](), Event()

    def deliver(piece: Piece) -> None:
        pieces.append(piece)
        if piece.is_last:
            ended.set()

    model.submit(model.encode(prompt), greedy(count), deliver)
    assert ended.wait(30)
    return "".join(piece.text for piece in pieces)


RECITED = " add Your own attribution notices within Derivative Works th"
"""What transformers 5.24 generates greedily from the shipped folder after ``You may``, 60 tokens."""
LIKELIHOODS = {
    "You may reproduce and distribute copies of the Work": -6.92731867,
    "Subject to the terms and conditions of this License": -8.88761572,
}
"""The log-likelihoods of texts, without their first byte, by transformers 5.24 from the shipped folder."""
PROMPTS = ("You may ", "Licensor shall", "the Work", "notwithstanding", "Z")


def test_the_shipped_model_generates_as_a_plain_loop_does_however_requests_are_batched() -> None:
    module = module_of(SHIPPED)
    manifest = Catalog().find_model("ToyLlama", None, Registry().versions)
    ended = Semaphore(0)

    def deliver(piece: Piece) -> None:
        if piece.is_last:
            ended.release()

    for size in (1, 3, 8):
        with closing(open_engine(manifest, Registry(), max_batch_size=size)[0]) as found:
            begun = [
                found.submit(found.encode(prompt), greedy(20 + number), deliver)
                for number, prompt in enumerate(PROMPTS)
            ]
            assert all(ended.acquire(timeout=30) for _ in PROMPTS)
        for generation in begun:
            tokens = list(generation.prompt)
            for token in generation.tokens:
                assert token == int(without_cache(module, tokens).argmax())
                tokens.append(token)


def test_the_shipped_model_recites_what_transformers_has_it_recite() -> None:
    manifest = Catalog().find_model("ToyLlama", None, Registry().versions)
    engine, description = open_engine(manifest, Registry())
    assert description.checksums.keys() == {"graph", "weights"}
    with closing(engine) as found:
        assert generated(found, "You may", 60) == RECITED


MANIFEST = """
kind: model
name: Mine
framework: {name: FRAMEWORK}
inputs: [{type: text, parameters: {tokenizer: tokenizer.json, layers: {ids: input_ids}}}]
output: {type: generation}
model: {graph_path: config.json, weights_path: model.safetensors}
"""


def test_a_folder_of_hugging_faces_format_needs_only_a_manifest(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    written(tmp_path)
    words = {word: number for number, word in enumerate(("unknown", "one", "two", "three"))}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token="unknown"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.yml").write_text(MANIFEST.replace("FRAMEWORK", "PyTorch"))
    [manifest] = Catalog([tmp_path]).find_models("Mine")
    engine, description = open_engine(manifest, Registry())
    assert description.checksums.keys() == {"graph", "weights", "tokenizer"}
    with closing(engine) as found:
        assert found.encode("three one") == (3, 1)
        assert found.encode([{"role": "one", "content": "two"}]) == (1, 0, 2, 0, 0)
        assert all(word in ("", "one", "two", "three") for word in generated(found, "one", 3).split(" "))


def test_a_framework_without_language_models_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.yml").write_text(MANIFEST.replace("FRAMEWORK", "MXNet"))
    [manifest] = Catalog([tmp_path]).find_models("Mine")
    with pytest.raises(ConfigurationError, match="framework MXNet runs no language models here"):
        open_engine(manifest, Registry())


def test_a_language_model_makes_no_predictions() -> None:
    manifest = Catalog().find_model("ToyLlama", None, Registry().versions)
    with pytest.raises(ConfigurationError, match="generates text and makes no predictions; measure it"):
        open_session(manifest, SessionOptions(), Registry())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: Input should be 'llama' or 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act: Input should be 'silu'"),
        ({"sliding_window": 4096}, "sliding_window: Input should be 0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type: Input should be 'default' or 'llama3'"),
        ({"hidden_size": None}, "hidden_size: Field required"),
        ({"hidden_size": "many"}, "hidden_size: Input should be a valid integer"),
        ({"num_attention_heads": 0}, "num_attention_heads: Input should be greater than 0"),
        ({"head_dim": 7}, "head_dim: Input should be a multiple of 2"),
        ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
    ],
)
def test_a_config_of_another_model_is_refused(
    tmp_path: Path, changes: Mapping[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONTENT, **changes}))
    with pytest.raises(ArtifactError, match=rf"config\.json: cannot be used.*{message}"):
        read_config(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}'])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="cannot be used"):
        read_config(path)


def header(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a safetensors file"),
        (b"\xff" * 40, "is not a safetensors file"),
        (header("[]"), "is not a safetensors file"),
        (header("{"), "is not a safetensors file"),
        (header('{"a": 1}'), "a cannot be read: TypeError"),
        (
            header('{"a": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}') + b"0",
            "of F64, F32, F16, BF16: a cannot be read: KeyError",
        ),
        (header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'), "a cannot be read"),
        (header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}') + b"0000", "a cannot"),
    ],
)
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"model\.safetensors: .*{message}"):
        list(read_tensors(path))


@pytest.mark.parametrize("changes", [{"hidden_size": 64}, {"num_hidden_layers": 3}, {"attention_bias": True}])
def test_the_weights_of_another_model_are_refused(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    artifacts = written(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONTENT, **changes}))
    with pytest.raises(ArtifactError, match=r"model\.safetensors: does not hold the weights of this model"):
        PyTorchLanguageModel(*artifacts, PredictorOptions(), 1)
    with pytest.raises(ArtifactError, match=r"needs graph_path, its config\.json, and weights_path"):
        PyTorchLanguageModel(artifacts[0], None, PredictorOptions(), 1)
