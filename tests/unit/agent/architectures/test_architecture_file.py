"""A user's file with an architecture: which class is built, and how failures are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from inferometer.agent.architectures.sources import ArchitectureFile
from inferometer.manifests.errors import ArtifactError


def built(folder: Path, text: str | bytes, name: str = "mine") -> object:
    path = folder / "mine.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return ArchitectureFile.read(path).build(name)


@pytest.mark.parametrize("names", ['"mine"', '("other", "mine")', '["Mine"]'])
def test_the_class_that_implements_the_name_is_built(tmp_path: Path, names: str) -> None:
    text = f"class Part:\n    pass\n\nclass Whole:\n    implements = {names}\n    part = Part()\n"
    assert type(built(tmp_path, text)).__name__ == "Whole"


def test_a_class_that_is_imported_or_inherits_the_name_is_not_meant(tmp_path: Path) -> None:
    text = (
        "from inferometer.agent.architectures.pytorch.resnet import ResNet\n"
        "class Base:\n    implements = 'mine'\n"
        "class Derived(Base):\n    pass\n"
    )
    assert type(built(tmp_path, text)).__name__ == "Base"
    with pytest.raises(ArtifactError, match='holds no class with implements = "resnet50"'):
        built(tmp_path, text, "resnet50")


def test_dataclasses_with_annotations_as_text_work(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import KW_ONLY, dataclass\n"
        "@dataclass\nclass Size:\n    _: KW_ONLY\n    width: int = 3\n"
        "class Net:\n    implements = 'mine'\n    size = Size(width=4)\n"
    )
    assert "width=4" in repr(built(tmp_path, text).size)


def test_a_file_is_built_again_as_it_is_now(tmp_path: Path) -> None:
    text = "class Net:\n    implements = 'mine'\n    width = {}\n"
    assert [built(tmp_path, text.format(width)).width for width in (3, 4)] == [3, 4]


def test_what_is_run_is_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("class Net:\n    implements = 'mine'\n    width = 3\n")
    file = ArchitectureFile.read(path)
    path.write_text("raise RuntimeError('changed since the checksum was taken')\n")
    assert file.build("mine").width == 3


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ['holds no class with implements = "mine"']),
        ("class A:\n    implements = 'ours'\n", ['A implements "ours"']),
        ("class A:\n    implements = 3\n", ['A implements "3"']),
        ("a = 1\ndef b(:\n    pass\n", ["line 2: SyntaxError: "]),
        (b'a = 1\nb = "\xff"\n', ["SyntaxError: ", "utf-8"]),
        (b"a = 1\0\n", ["null byte"]),
        ("import os\n\nimport nowhere_to_be_found\n", ["line 3: ModuleNotFoundError: No module named"]),
        ("import other\n", ["line 1: ModuleNotFoundError: No module named 'other'"]),
        ("\n1 / 0\n", ["line 2: ZeroDivisionError: division by zero"]),
        ("class Odd(Exception):\n    pass\nraise Odd('two\\nlines')\n", ["line 3: Odd: two lines"]),
        ("import sys\nsys.exit(0)\n", ["line 2: SystemExit: 0"]),
        ("import json\njson.loads('{')\n", ["line 2: JSONDecodeError"]),
        ("class A:\n    implements = 'mine'\n    def __init__(self, depth): pass\n", ["TypeError", "depth"]),
        (
            "class A:\n    implements = 'mine'\n    def __init__(self):\n        self.width = self.height\n",
            ["line 4: AttributeError", "height"],
        ),
        (
            "class A:\n    implements = 'mine'\nclass B:\n    implements = 'mine'\n",
            ['the classes A and B all implement "mine"; keep one'],
        ),
        (f"raise ValueError('x' * {10**5})\n", ["line 1: ValueError: xxx"]),
    ],
)
def test_a_file_that_fails_is_one_line_with_the_file_and_the_line(
    tmp_path: Path, text: str | bytes, parts: list[str]
) -> None:
    (tmp_path / "other.py").write_text("")
    with pytest.raises(ArtifactError) as caught:
        built(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "mine.py"))
    assert "\n" not in message
    assert len(message) < 500 + len(str(tmp_path))
    for part in parts:
        assert part in message


def test_a_file_that_fails_leaves_no_module(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        built(tmp_path, "half = 1\nraise RuntimeError\n")
    # their own dictionaries: some modules import others when they are asked for a name
    assert not [module for module in sys.modules.values() if getattr(module, "__dict__", {}).get("half") == 1]


def test_ctrl_c_while_a_file_is_run_is_not_taken_for_its_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(tmp_path, "raise KeyboardInterrupt\n")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"absent\.py: cannot be read: No such file"):
        ArchitectureFile.read(tmp_path / "absent.py")
