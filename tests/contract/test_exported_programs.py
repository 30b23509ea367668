"""Exported programs: the answers of PyTorch's own loader, without what in a file could run code."""

from __future__ import annotations

import io
import json
import os
import weakref
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inferometer.agent.artifacts.files import InputSignature
from inferometer.agent.artifacts.torch_archives import TorchFile, torch_file
from inferometer.agent.frameworks.pytorch.predictor import PyTorchPredictor
from inferometer.agent.frameworks.pytorch.programs import build_program, read_program_signature
from inferometer.manifests.errors import ArtifactError
from tests.model_files import TinyNet, save_program

CPU = torch.device("cpu")
PROGRAM = "models/model.json"


class Words(torch.nn.Module):
    """Masks, sizes that are computed, several outputs, shared weights, and operators of several returns."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.memory = torch.nn.LSTM(16, 8, batch_first=True)
        self.out = torch.nn.Linear(16, 50, bias=False)
        self.out.weight = self.table.weight
        self.register_buffer("places", torch.arange(7), persistent=False)

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        batch, length = words.shape
        mask = torch.full((length, length), float("-inf")).triu(1)
        found = self.layer(self.table(words) + self.table(self.places)[None], src_mask=mask)
        ahead, _ = self.memory(found)
        best, where = ahead.max(1)
        first, _rest = torch.topk(best, 3)[0].split([1, 2], 1)
        scores = self.out(found).reshape(batch, -1)
        return {"where": where, "first": first, "scores": scores, "halves": scores.to(torch.float16)}


class Images(torch.nn.Module):
    """Transposed convolution, interpolation to a computed size, and new tensors on the input's device."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.up = torch.nn.ConvTranspose2d(4, 3, 2, 2)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = torch.nn.functional.interpolate(self.norm(self.down(data)), scale_factor=0.5)
        signs = torch.where(self.up(small) > 0, 1.0, -1.0)
        return signs, torch.cat([data.new_ones(data.shape[0], 1), data.mean((2, 3))], 1)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    return save_program(TinyNet(), folder / "net.pt2", torch.zeros(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (TinyNet, torch.rand(2, 3, 8, 8)),
        (Images, torch.rand(2, 3, 8, 8)),
        (Words, torch.randint(0, 50, (2, 7))),
    ],
)
def test_a_program_gives_the_answers_of_its_module(tmp_path, module, example) -> None:
    torch.manual_seed(0)
    original = module().eval()
    path = save_program(original, tmp_path / "net.pt2", example)
    name = {"words": "words"}.get(module.__name__.lower(), "data")
    dtype = str(example.dtype).removeprefix("torch.")
    assert read_program_signature(path).inputs == (InputSignature(name, dtype, (None, *example.shape[1:])),)

    built = build_program(path, CPU)
    batch = torch.cat([example, example, example[:1]])
    with torch.inference_mode():
        answer, expected = built(batch), original(batch)
    expected = tuple(expected.values()) if isinstance(expected, Mapping) else expected
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(answer, expected, strict=True):
        torch.testing.assert_close(got, wanted)
    strides = {tensor.stride() for tensor in built.buffers()}
    assert {weight.stride() for weight in original.parameters()} <= strides


class Living(TorchDispatchMode):
    """The most results of operators that are held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._made: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self._made.add(made)
        self.most = max(self.most, len(self._made))
        return made


def test_a_program_frees_each_value_after_its_last_use(tmp_path) -> None:
    class Chain(torch.nn.Module):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            for _ in range(9):
                data = data.relu()
            return data

    built = build_program(save_program(Chain(), tmp_path / "net.pt2", torch.zeros(2, 3)), CPU)
    with torch.inference_mode(), Living() as living:
        built(torch.zeros(2, 3))
    assert living.most <= 3  # what an operator takes and makes, and what dispatching holds; nine in all


def changed(
    path: Path, target: Path, change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED
) -> Path:
    """A copy of an archive with changed members."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", method) as archive:
        for member in source.infolist():
            content = change(member.filename.partition("/")[2], source.read(member))
            archive.writestr(member.filename, content)
    return target


def in_json(name: str, change: Callable[[Any], object]) -> Callable[[str, bytes], bytes]:
    def changing(member: str, content: bytes) -> bytes:
        if member != name:
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return changing


def node(document: Any, place: int = 0) -> Any:
    return document["graph_module"]["graph"]["nodes"][place]


TEXT_ARGUMENT = {"name": "a", "arg": {"as_string": "x"}}
WEIGHTS = "data/weights/model_weights_config.json"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            (
                in_json(PROGRAM, lambda d, target=target: node(d).update(target=target)),
                "accepted: ATen's operators",
            )
            for target in (
                "torch.os.system",
                "torch.load",
                "torch.ops.aten.from_file.default",
                "torch.ops.aten.save.default",
                "torch.ops.aten._print.default",
                "torch.ops.aten._sparse_coo_tensor_unsafe.default",
                "torch.ops.aten.__class__.default",
                "torch.ops.aten.conv2d.__init__",
                "torch.ops.higher_order.cond",
                "torch.ops.load_library.default",
                "_operator.attrgetter",
                "math.__loader__",
                "#extension:thing",
                "os.system",
                7,
            )
        ),
        (
            in_json(PROGRAM, lambda d: node(d)["inputs"].append(node(d)["inputs"][0])),
            "than those of its schema",
        ),
        (
            in_json(PROGRAM, lambda d: node(d)["outputs"].append({"as_none": True})),
            "2 names for the 1 values",
        ),
        (
            in_json(PROGRAM, lambda d: node(d).update(target="_operator.mul", inputs=[TEXT_ARGUMENT] * 2)),
            "takes numbers",
        ),
        (in_json(PROGRAM, lambda d: d.clear()), "is no exported program that can be read: 'graph_module'"),
        (in_json(PROGRAM, lambda d: node(d)["inputs"][0].update(arg={"as_graph": {}})), "kind as_graph"),
        (in_json(PROGRAM, lambda d: node(d)["inputs"][0].update(arg={"as_custom_obj": {}})), "as_custom_obj"),
        (in_json(PROGRAM, lambda d: node(d)["inputs"][1]["arg"]["as_tensor"].update(name="x")), "read: 'x'"),
        (
            in_json(WEIGHTS, lambda d: d["config"]["fc.bias"].update(use_pickle=True)),
            "pickled tensors or objects",
        ),
        (
            in_json(
                WEIGHTS, lambda d: d["config"]["fc.bias"]["tensor_meta"].update(sizes=[{"as_int": 10**9}])
            ),
            "can be read",
        ),
        (
            in_json(WEIGHTS, lambda d: d["config"]["fc.bias"]["tensor_meta"].update(sizes=[{"as_int": -1}])),
            "has no fixed shape",
        ),
        (
            in_json(WEIGHTS, lambda d: d["config"]["fc.bias"].update(path_name="../../x")),
            "has no data/weights/..",
        ),
        (lambda name, content: b"[" * 100_000 if name == PROGRAM else content, "is no exported program"),
        (lambda name, content: b"no json" if name == PROGRAM else content, "is no exported program"),
    ],
)
def test_what_could_run_code_or_is_damaged_is_refused_in_one_line(tmp_path, program, change, said) -> None:
    path = changed(program, tmp_path / "net.pt2", change)
    with pytest.raises(ArtifactError, match=r"net\.pt2: is no exported program") as caught:
        build_program(path, CPU)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def run_program(path: Path) -> None:
    build_program(path, CPU)(torch.zeros(3, 3, 8, 8))


def test_names_of_a_program_are_never_code(tmp_path, program, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    payload = "zz = __import__('pathlib').Path('ran').touch(), yy"

    def rename(document: Any) -> None:
        text = json.dumps(document).replace("data", payload)
        document.clear()
        document.update(json.loads(text))

    module = build_program(changed(program, tmp_path / "renamed.pt2", in_json(PROGRAM, rename)), CPU)
    assert module(torch.zeros(3, 3, 8, 8))[0].shape == (3, 2)
    named = in_json(PROGRAM, lambda d: node(d, -1)["inputs"][-1].update(name=payload))
    with pytest.raises(ArtifactError, match="arguments other than those of its schema"):
        run_program(changed(program, tmp_path / "named.pt2", named))
    assert not (tmp_path / "ran").exists()


def test_nothing_in_a_program_is_inflated_or_unpickled(tmp_path, program) -> None:
    class Exploit:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    bomb = changed(program, tmp_path / "bomb.pt2", lambda _, content: content, zipfile.ZIP_DEFLATED)
    with pytest.raises(ArtifactError, match="is compressed, which PyTorch does not write"):
        build_program(bomb, CPU)
    content = io.BytesIO()
    torch.save(Exploit(), content)
    evil = changed(
        program,
        tmp_path / "evil.pt2",
        lambda name, old: content.getvalue() if name.startswith("data/sample_inputs") else old,
    )
    build_program(evil, CPU)  # the example inputs, which PyTorch's loader unpickles, are not read
    assert not (tmp_path / "ran").exists()


def test_a_program_of_an_older_pytorch_is_to_be_saved_again(tmp_path, program) -> None:
    path = changed(program, tmp_path / "old.pt2", lambda _, content: content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/data/weights/model.pt", b"")
    assert torch_file(path) is TorchFile.OLD_PROGRAM
    with pytest.raises(ArtifactError, match="with pickled weights; save it with a newer PyTorch"):
        PyTorchPredictor.signature_of_file(path)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's own
def test_a_program_that_changes_its_state_is_refused(tmp_path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return data + self.calls

    path = tmp_path / "net.pt2"
    exported = torch.export.export(Counting(), (torch.zeros(2, 3),))
    torch.export.save(exported.run_decompositions(), path)
    with pytest.raises(ArtifactError, match=r"changes its own state \(buffer_mutation\)"):
        build_program(path, CPU)
