"""Models and inputs as they are in a program: files, modules, blocks, sessions and arrays in the library."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import inferometer as im
from inferometer.agent.inference.registry import Registry
from inferometer.client.api.invocation import Invocation
from inferometer.client.api.requests import SystemArguments, dataset_choice
from inferometer.evaluators.datasets.arrays import SyntheticDataset
from inferometer.evaluators.kinds.batches.request import EvaluationRequest
from tests.cli.conftest import Agent
from tests.model_files import TinyNet, make_block, save_onnx, save_program, save_script, save_symbol
from tests.optional_mxnet import mxnet

FRAMEWORKS = ("PyTorch", "MXNet", "ONNXRuntime")
SAMPLES = np.random.default_rng(0).random((20, 3, 8, 8))


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_onnx(tmp_path_factory.mktemp("onnx") / "net.onnx")


def make(framework: str, onnx_file: Path) -> object:
    if framework == "PyTorch":
        return TinyNet()
    return make_block() if framework == "MXNet" else onnxruntime.InferenceSession(str(onnx_file))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_object_is_evaluated_over_an_array(agent: Agent, onnx_file: Path, framework: str) -> None:
    model = make(framework, onnx_file)

    run = im.evaluate(model, inputs=SAMPLES, batch_size=8, min_batches=4)

    assert (run.complete, run.evaluation.measurement.failures) == (True, ())
    assert run.latency.batches >= 4
    system, dataset = run.evaluation.system, run.evaluation.dataset
    assert (system.manifest.framework.name, system.manifest.name) == (framework, type(model).__name__)
    assert system.manifest.inputs[0].parameters.element_type.value == "float32"
    assert system.manifest.attributes["class"].endswith(type(model).__name__)
    assert (dataset.name, dataset.size) == ("inputs in memory", 20)
    assert dataset.checksum == f"sha256:{hashlib.sha256(SAMPLES.tobytes()).hexdigest()}"
    if framework != "ONNXRuntime":
        assert system.manifest.attributes["parameters"] == 3 * 4 * 9 + 4 + 4 * 2 + 2
        assert system.checksums["parameters"].startswith("sha256:")
    text = agent("info", "evaluation", "show", run.id).stdout
    assert "manifest inferred from an object in memory, which cannot be built again from this record" in text


def test_a_module_is_used_as_it_is_and_set_back(agent: Agent) -> None:
    class Seen(TinyNet):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            seen.append((self.training, self.dropout.training, len(data), data.dtype))
            return super().forward(data)

    seen: list[tuple[bool, bool, int, torch.dtype]] = []
    module = Seen()
    module.conv.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}

    run = im.evaluate(module, inputs=SAMPLES, batch_size=8, min_batches=4, publish=False)

    assert set(seen) == {(False, False, 8, torch.float32), (False, False, 4, torch.float32)}
    assert (module.training, module.conv.training, module.dropout.training) == (True, False, True)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    first = run.evaluation.system.checksums["parameters"]
    with torch.no_grad():
        module.fc.bias[0] += 1
    again = im.evaluate(module, inputs=SAMPLES, batch_size=8, min_batches=1, publish=False)
    assert again.evaluation.system.checksums["parameters"] != first


def test_a_block_is_used_as_it_is(agent: Agent) -> None:
    block = make_block()
    before = {name: value.data().asnumpy() for name, value in block.collect_params().items()}
    batch = mxnet.nd.from_numpy(SAMPLES[:2].astype(np.float32), zero_copy=False)
    expected = block(batch).asnumpy()

    im.evaluate(block, inputs=SAMPLES, batch_size=8, min_batches=1, publish=False)

    after = {name: value.data().asnumpy() for name, value in block.collect_params().items()}
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert {value.grad_req for value in block.collect_params().values()} == {"write"}
    np.testing.assert_array_equal(block(batch).asnumpy(), expected)


def test_an_exported_module_runs_in_the_only_mode_it_has(agent: Agent) -> None:
    module = torch.export.export(TinyNet().eval(), (torch.zeros(4, 3, 8, 8),)).module()
    run = im.evaluate(module, inputs=SAMPLES, batch_size=4, min_batches=1, publish=False)
    assert run.latency.batches == 5


def test_whole_numbers_stay_whole(agent: Agent) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Flatten())
    run = im.evaluate(module, inputs=np.arange(30).reshape(6, 5), min_batches=1, publish=False)
    assert run.evaluation.system.manifest.inputs[0].parameters.element_type.value == "int64"
    assert run.evaluation.measurement.batch_size == 6


def test_files_are_evaluated_from_the_library(agent: Agent, onnx_file: Path, tmp_path: Path) -> None:
    save_program(TinyNet(), tmp_path / "net.pt2", torch.zeros(2, 3, 8, 8))
    save_script(TinyNet(), tmp_path / "net.pt")
    save_symbol(tmp_path)
    assert im.evaluate(str(onnx_file), min_batches=1).evaluation.dataset.category == "synthetic"
    for path in (tmp_path / "net.pt2", tmp_path / "net.pt", tmp_path / "net-symbol.json"):
        run = im.evaluate(path, inputs=SAMPLES, min_batches=1)
        assert run.evaluation.dataset.size == 20
        manifest, graph = run.evaluation.system.manifest, run.evaluation.system.checksums["graph"]
        assert graph == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        assert (manifest.model.graph_path, manifest.inputs[0].parameters.dimensions) == (path.name, (3, 8, 8))
    assert len(im.evaluations()) == 4


def test_files_and_objects_are_put_under_load_and_swept(agent: Agent, onnx_file: Path) -> None:
    run = im.workload(onnx_file, duration_s=0.2, initial_qps=50, publish=False)
    assert run.evaluation.dataset.category == "synthetic"
    runs = im.sweep([onnx_file, TinyNet()], inputs=SAMPLES, batch_size=[2, 4], min_batches=1, publish=False)
    found = [(run.evaluation.system.manifest.name, run.evaluation.measurement.batch_size) for run in runs]
    assert found == [("net", 2), ("net", 4), ("TinyNet", 2), ("TinyNet", 4)]


def test_models_with_a_manifest_take_arrays_and_random_tensors(agent: Agent) -> None:
    digits = np.zeros((9, 1, 16, 16), np.float32)
    run = im.evaluate(inputs=digits, min_batches=1, publish=False)
    assert (run.evaluation.dataset.size, run.evaluation.measurement.batch_size) == (9, 9)
    synthetic = im.evaluate(synthetic=True, batch_size=40, min_batches=1, publish=False)
    assert (synthetic.evaluation.dataset.size, synthetic.latency.batches) == (80, 2)


def test_the_same_seed_draws_the_same_tensors(onnx_file: Path) -> None:
    def drawn(seed: int) -> list[np.ndarray]:
        choice = SystemArguments(_PLAIN).request(Invocation({}), onnx_file)
        assert choice.given is not None
        parameters = choice.given.manifest.inputs[0].parameters
        return [each.read().array for each in SyntheticDataset(parameters.tensors, 70, seed)]  # type: ignore[union-attr]

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert len(first) == 70
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])


_PLAIN = {
    "version": None,
    "framework": None,
    "weights": "pretrained",
    "seed": 0,
    "gpu": False,
    "threads": None,
    "agent": None,
}


def on_meta() -> TinyNet:
    return TinyNet().to("meta")


def without_values() -> object:
    block = mxnet.gluon.nn.Dense(2)
    block.initialize()
    return block


@pytest.mark.parametrize(
    ("make_model", "given", "said"),
    [
        (TinyNet, {}, "TinyNet does not describe its input; give inputs"),
        (without_values, {"inputs": SAMPLES}, "Dense: has parameters without values; call initialize"),
        (on_meta, {"inputs": SAMPLES}, "has parameters on the device meta, without values"),
        (TinyNet, {"inputs": SAMPLES[:, :2]}, "PyTorch failed on a batch of 20: Given groups=1"),
        (TinyNet, {"inputs": SAMPLES > 0}, r"PyTorch failed on a batch of 20: Input type \(bool\)"),
        (TinyNet, {"inputs": SAMPLES.astype(complex)}, "input data is complex128; accepted: float32"),
        (TinyNet, {"inputs": [1.0, 2.0]}, "inputs are list; accepted: a NumPy array of samples"),
        (TinyNet, {"inputs": torch.zeros(2, 3)}, "inputs are Tensor; accepted: a NumPy array of samples"),
        (TinyNet, {"inputs": np.zeros(5)}, r"inputs have the shape \(5,\); accepted: \(samples, …\)"),
        (TinyNet, {"inputs": SAMPLES[:0]}, r"inputs have the shape \(0, 3, 8, 8\)"),
        (TinyNet, {"inputs": SAMPLES, "dataset": "digits_validation"}, "inputs and dataset both name inputs"),
        (TinyNet, {"inputs": SAMPLES, "synthetic": True}, "synthetic needs no dataset"),
        (TinyNet, {"inputs": SAMPLES, "agent": "localhost:1"}, "runs only in this process; an agent runs"),
        (TinyNet, {"inputs": SAMPLES, "weights": "random"}, "is in memory with its weights"),
        (TinyNet, {"inputs": SAMPLES, "framework": "MXNet"}, "this model needs none"),
        (TinyNet, {"inputs": SAMPLES, "gpu": True}, "cannot use gpu:0"),
        (object, {"inputs": SAMPLES}, "model is builtins.object; accepted: a name, a file, or"),
        (lambda: "DigitsCNN", {"inputs": SAMPLES}, r"inputs of float32 \(samples, 1, 16, 16\)"),
        (lambda: "nett.onnx", {}, "nett.onnx: does not exist"),
        (lambda: Path("there"), {}, "there: does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_one_clear_line(agent: Agent, make_model, given, said) -> None:
    model = make_model()
    with pytest.raises(im.InferometerError, match=said) as caught:
        im.evaluate(model, publish=False, **given)
    assert "\n" not in str(caught.value)


def test_inputs_that_a_file_does_not_take_are_one_clear_line(agent: Agent, onnx_file: Path) -> None:
    with pytest.raises(im.InferometerError, match=r"\(batch, 3, 8, 8\); found inputs of \(batch, 8, 8, 3\)"):
        im.evaluate(onnx_file, inputs=SAMPLES.transpose(0, 2, 3, 1))
    session = onnxruntime.InferenceSession(str(onnx_file))
    with pytest.raises(im.InferometerError, match=r"found inputs of \(batch, 3, 8, 7\)"):
        im.evaluate(session, inputs=SAMPLES[..., :7])


def test_a_model_in_memory_is_not_repeated_in_fresh_processes() -> None:
    choice = dataset_choice(None, SAMPLES)
    system = SystemArguments(_PLAIN).request(Invocation({}), TinyNet(), choice)
    with pytest.raises(im.ConfigurationError, match="repeat starts fresh processes, but a model in memory"):
        EvaluationRequest(system=system, dataset=choice, repeat=2)


def test_the_suffixes_and_classes_of_the_registry_are_there() -> None:
    """The names of classes are texts, since the registry imports no framework."""
    bases = {torch.nn.Module, mxnet.gluon.HybridBlock, onnxruntime.InferenceSession}
    named = {name for entry in Registry().entries for name in entry.classes}
    assert named == {f"{each.__module__}.{each.__qualname__}" for each in bases}
