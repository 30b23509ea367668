"""Manifests with unsupported features are refused on opening."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferometer.agent.inference.registry import Registry
from inferometer.agent.inference.requirements import require_supported, unsupported
from inferometer.agent.inference.session import SessionOptions, open_session
from inferometer.manifests.errors import InferometerError
from inferometer.manifests.schema import ModelManifest

Change = Callable[[dict[str, Any]], object]


def model(folder: Path, change: Change = lambda _: None, **files: object) -> ModelManifest:
    """A small model for images of 3 × 8 × 8, as ``change`` makes it, that lies in ``folder``."""
    content: dict[str, Any] = {
        "name": "Old",
        "framework": {"name": "Fake"},
        "inputs": [{"type": "image", "parameters": {"dimensions": [3, 8, 8]}}],
        "output": {"type": "feature", "parameters": {}},
        "model": {"graph_path": "graph", **files},
    }
    change(content)
    found = ModelManifest.model_validate(content)
    found._source = folder / "old.yml"
    return found


def refusal(of: Callable[[], object]) -> str:
    with pytest.raises(InferometerError) as caught:
        of()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def image(**values: object) -> Change:
    return lambda content: content["inputs"][0]["parameters"].update(values)


def output(kind: str, **parameters: object) -> Change:
    return lambda content: content.update(output={"type": kind, "parameters": parameters})


UNSUPPORTED: list[tuple[Change, str]] = [
    (
        output("clasification"),
        "field output.type: found 'clasification', which has no postprocessing here; did you mean "
        '"classification"',
    ),
    (output("speech"), "field output.type: found 'speech', which has no postprocessing here; known: "),
    (output("classification", element_type="int64"), "field output.parameters.element_type: found 'int64'"),
    (lambda c: c.update(inputs=c["inputs"] * 2), "field inputs: found input_layer 'data' 2 times"),
    (image(max_dimension=300, crop_ratio=0.5), "field inputs.0.parameters.crop_ratio: found 0.5"),
    (image(input_layer=1), "field inputs.0.parameters.input_layer: found 1"),
    *(
        (lambda c, hook=f"{when}{what}process": c.update({hook: "import os"}), f"field {when}{what}process: ")
        for when in ("", "before_", "after_")
        for what in ("pre", "post")
    ),
]


@pytest.mark.parametrize(("change", "said"), UNSUPPORTED, ids=[said for _, said in UNSUPPORTED])
def test_what_is_not_supported_is_said_when_the_model_is_opened(
    tmp_path: Path, change: Change, said: str
) -> None:
    old = model(tmp_path, change)  # listing it is no error
    message = refusal(lambda: open_session(old, SessionOptions(), Registry([])))
    assert message.startswith(f"{tmp_path / 'old.yml'}: model Old 1.0 cannot be opened: {said}")


def test_the_first_of_several_is_said_and_the_others_counted(tmp_path: Path) -> None:
    old = model(tmp_path, lambda c: c.update(preprocess="x", postprocess="y"))
    assert "field preprocess: " in refusal(lambda: require_supported(old))
    assert refusal(lambda: require_supported(old)).endswith("(and 1 more)")


def made_for(*architectures: str) -> Change:
    return lambda content: content.update(container={name: {"cpu": "a:b"} for name in architectures})


def test_a_model_for_other_hardware_is_refused_when_it_is_opened_and_the_line_says_what_to_do(
    tmp_path: Path,
) -> None:
    old = model(tmp_path, made_for("ppc64le", "amd64"))
    message = refusal(lambda: open_session(old, SessionOptions(), Registry([]), machine="aarch64"))
    assert message == (
        f"{tmp_path / 'old.yml'}: model Old 1.0 cannot be opened: field container: the model was made "
        "for amd64, ppc64le, but this machine is arm64; to run it here all the same, "
        "add arm64 to container, or leave container out"
    )


@pytest.mark.parametrize(
    ("architectures", "machine"),
    [
        ((), "arm64"),
        (("amd64",), "amd64"),
        (("amd64", "arm64"), "arm64"),
        (("X86_64",), "amd64"),
        (("amd64",), ""),
    ],
)
def test_a_model_for_this_hardware_or_for_any_is_supported(
    tmp_path: Path, architectures: tuple[str, ...], machine: str
) -> None:
    assert unsupported(model(tmp_path, made_for(*architectures)), machine) == []


def test_a_decoder_that_is_not_installed_is_said_when_the_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(sys.modules, "inferometer.agent.preprocessing.opencv_decoder", raising=False)

    def change(content: dict[str, Any]) -> None:
        image(decoder="opencv")(content)
        content["framework"] = {"name": "ONNXRuntime"}

    message = refusal(lambda: open_session(model(tmp_path, change), SessionOptions(), Registry()))
    assert message.endswith("install it with: pip install 'inferometer[opencv]'")


@pytest.mark.parametrize(
    "change", [output("raw", element_type="int64"), image(input_layer=0), lambda _: None]
)
def test_what_is_supported_is_opened(tmp_path: Path, change: Change) -> None:
    old = model(tmp_path, change)
    assert require_supported(old) is old


@pytest.mark.parametrize(
    ("framework", "refused"), [("MXNet", True), ("PyTorch", False), ("ONNXRuntime", False)]
)
def test_an_element_type_that_a_framework_lacks_is_refused(
    tmp_path: Path, framework: str, refused: bool
) -> None:
    tensor = {"type": "tensor", "parameters": {"dimensions": [2], "element_type": "uint16"}}
    found = unsupported(model(tmp_path, lambda c: c.update(framework={"name": framework}, inputs=[tensor])))
    assert [line[:90] for line in found] == [
        "field inputs.parameters.element_type: found 'uint16', which MXNet does not accept; support"
    ] * refused
