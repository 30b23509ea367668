"""Models with several inputs of dynamic length, and with several outputs, in every framework."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from inferometer.agent.inference.given_models import model_of_file, model_of_object
from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.session import Session, SessionOptions, open_session
from inferometer.agent.preprocessing.inputs import Input, NamedTensors, Tensor
from inferometer.agent.tasks.predictions import RawOutputs
from inferometer.agent.tracing.recorder import SpanRecorder, TraceContext, TraceLevel, TraceScope
from inferometer.manifests.errors import ArtifactError, InputError, PredictionError
from inferometer.manifests.loader import parse_manifest
from inferometer.manifests.schema import ModelManifest
from tests.token_models import NAMES, SAVERS, TokenNet, batch, expected

FORMS = tuple(SAVERS)


def manifest(path: Path, form: str, names: tuple[str | int, ...] = NAMES, **more: object) -> ModelManifest:
    inputs = [
        {"type": "tensor", "parameters": {"dimensions": [-1], "element_type": "int64", "input_layer": name}}
        for name in names
    ]
    files = {"graph_path": path.name}
    if form == "MXNet":
        files["weights_path"] = "net-0000.params"
    content = {
        "name": "Tokens",
        "framework": {"name": "PyTorch" if form == "TorchScript" else form},
        "inputs": inputs,
        "output": {"type": "raw"},
        "model": files,
        **more,
    }
    found = parse_manifest(content, path.parent / "tokens.yml")
    assert isinstance(found, ModelManifest)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {form: save(tmp_path_factory.mktemp(form)) for form, save in SAVERS.items()}


@pytest.fixture(scope="module", params=FORMS)
def session(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[Session]:
    form = request.param
    with open_session(manifest(files[form], form), SessionOptions(), Registry()) as opened:
        yield opened


def outputs_of(result: object) -> dict[str, np.ndarray]:
    assert isinstance(result, RawOutputs)
    return {name.removesuffix("_output"): array for name, array in result.tensors.items()}


def check(found: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> None:
    wanted = expected(given)
    names = list(wanted) if "scores" in found else ["output0", "output1"]
    assert list(found) == names
    for array, right in zip(found.values(), wanted.values(), strict=True):
        np.testing.assert_allclose(array, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "length"), [(1, 7), (3, 5), (2, 33)])
def test_batches_of_any_size_and_length_are_predicted(session: Session, rows: int, length: int) -> None:
    given = batch(rows, length)
    result = session.predict_tensor({name: given[name] for name in reversed(NAMES)})
    assert result.input_ids == tuple(map(str, range(rows)))
    check(outputs_of(result.outputs), given)


def test_more_lengths_than_are_remembered_are_predicted(session: Session) -> None:
    for length in (*range(2, 24), 2):
        given = batch(1, length, seed=length)
        check(outputs_of(session.predict_tensor(given).outputs), given)


def test_rows_of_different_lengths_are_padded_with_zeros(session: Session) -> None:
    lengths = (3, 6, 2)
    rows = [{n: a[0] for n, a in batch(1, length, seed=length).items()} for length in lengths]
    inputs = [Input(str(n), NamedTensors(row)) for n, row in enumerate(rows)]
    inputs.insert(1, Input("one", Tensor(rows[0]["input_ids"])))
    inputs.insert(2, Input("few", NamedTensors({"input_ids": rows[0]["input_ids"]})))
    inputs.insert(3, Input("flat", NamedTensors(rows[0] | {"attention_mask": np.ones((2, 2), np.int64)})))
    [result] = session.predict_batches([inputs])
    assert result.input_ids == ("0", "1", "2")
    assert {failure.input_id: failure.message for failure in result.failures} == {
        "one": 'the model takes the tensors "input_ids", "attention_mask", "token_type_ids"; give all of '
        "them by name",
        "few": 'found "input_ids"; the model takes the tensors "input_ids", "attention_mask", '
        '"token_type_ids"',
        "flat": 'input "attention_mask": tensor has shape [2, 2]; the model takes [-1]',
    }
    whole = {name: np.zeros((3, 6), np.int64) for name in NAMES}
    for place, row in enumerate(rows):
        for name, array in row.items():
            whole[name][place, : len(array)] = array
    check(outputs_of(result.outputs), whole)


def test_wrong_batches_give_one_line(session: Session) -> None:
    right = batch(2, 4)
    wrong = {
        "batch": (right | {"attention_mask": right["attention_mask"][:1]}, r'input "attention_mask": tensor'),
        "name": ({"ids": right["input_ids"]}, r'found "ids"; the model takes the tensors "input_ids"'),
        "type": (right | {"input_ids": np.ones((2, 4))}, "tensor has element type float64"),
        "empty": (right | {"input_ids": np.ones((2, 0), np.int64)}, r"shape \[2, 0\]; the model takes"),
        "none": ({name: array[:0] for name, array in right.items()}, "the batch is empty"),
    }
    for given, message in wrong.values():
        with pytest.raises(InputError, match=message):
            session.predict_tensor(given)
    with pytest.raises(InputError, match="found one tensor; the model takes 3"):
        session.predict_tensor(right["input_ids"])
    with pytest.raises(PredictionError, match="the batch differs in size: 1 of input_ids, 2 of attention"):
        session.infer(right | {"input_ids": right["input_ids"][:1]})
    with pytest.raises(PredictionError, match=r'"attention_mask".*found int32; allowed: int64'):
        session.infer(right | {"attention_mask": right["attention_mask"].astype(np.int32)})


def test_layers_are_traced(session: Session) -> None:
    recorder = SpanRecorder(TraceContext.new(), TraceLevel.FRAMEWORK_TRACE)
    given = batch(2, 4)
    check(outputs_of(session.predict_tensor(given, TraceScope.top(recorder)).outputs), given)
    kinds = {kind for chunk in recorder.chunks() for kind in chunk.kinds}
    layers = {str(kind).casefold() for kind in kinds if kind.level is TraceLevel.FRAMEWORK_TRACE}
    assert any("embedding" in layer or "gather" in layer for layer in layers), layers


@pytest.mark.parametrize("form", FORMS)
def test_the_signature_has_all_inputs_with_their_dynamic_axes(files: dict[str, Path], form: str) -> None:
    if form == "TorchScript":  # a script says neither shapes nor types
        return
    tensors = model_of_file(files[form], Registry()).manifest.tensors
    assert {each.name for each in tensors} == set(NAMES)
    assert {(each.element_type.value, each.dimensions) for each in tensors} == {("int64", (None,))}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_may_be_numbered(files: dict[str, Path], form: str) -> None:
    own = {"MXNet": ("input_ids", "token_type_ids", "attention_mask"), "ONNXRuntime": NAMES}
    order = own.get(form, ("input_ids", "token_type_ids", "attention_mask"))
    model = manifest(files[form], form, (0, 2, 1))
    given = batch(2, 4)
    with open_session(model, SessionOptions(), Registry()) as opened:
        by_number = dict(zip(("data", "#1", "#2"), (given[name] for name in order), strict=True))
        check(outputs_of(opened.predict_tensor(by_number).outputs), given)


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_name_is_told_when_the_model_is_opened(files: dict[str, Path], form: str) -> None:
    model = manifest(files[form], form, ("input_ids", "attention_masks", "token_type_ids"))
    with pytest.raises(ArtifactError, match=r'input "attention_masks"; did you mean "attention_mask"'):
        open_session(model, SessionOptions(), Registry())


def test_a_module_in_memory_takes_examples_by_name_or_in_order() -> None:
    from inferometer.agent.artifacts.files import InputSignature
    from inferometer.agent.inference.given_models import Wanted

    given = batch(2, 4)
    by_name = [InputSignature(name, "int64", (None, 4)) for name in NAMES]
    order = ("input_ids", "token_type_ids", "attention_mask")
    in_order = [InputSignature("", "int64", (None, 4)) for _ in order]
    for examples, names in ((by_name, NAMES), (in_order, order)):
        chosen = model_of_object(TokenNet(), Registry(), Wanted(examples=tuple(examples)))
        assert tuple(each.name for each in chosen.manifest.tensors) == names
        with open_session(chosen.manifest, SessionOptions(), Registry(), given=chosen) as opened:
            check(outputs_of(opened.predict_tensor(given).outputs), given)


def test_outputs_may_be_missing_and_of_any_rank() -> None:
    class Optional(torch.nn.Module):
        def forward(self, data: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            return data.sum(1), None, other.unsqueeze(1)

    from inferometer.agent.artifacts.files import InputSignature
    from inferometer.agent.inference.given_models import Wanted

    examples = (InputSignature("", "bool", (None, 3)), InputSignature("", "float64", (None, 2, 2)))
    chosen = model_of_object(Optional(), Registry(), Wanted(examples=examples))
    data, other = np.array([[True, False, True]]), np.ones((1, 2, 2), np.float32)
    with open_session(chosen.manifest, SessionOptions(), Registry(), given=chosen) as opened:
        found = outputs_of(opened.predict_tensor({"data": data, "other": other}).outputs)
    assert {name: array.shape for name, array in found.items()} == {"output0": (1,), "output2": (1, 1, 2, 2)}
    assert found["output0"].tolist() == [2]
