"""The registry: installed and missing frameworks, and those of third parties."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import metadata

import pytest

from inferometer.agent.artifacts.files import Artifacts
from inferometer.agent.hardware.environment import PredictorOptions
from inferometer.agent.inference.registry import BUILTIN, FrameworkEntry, Registry
from inferometer.manifests.errors import FrameworkUnavailableError, UnknownFrameworkError
from inferometer.manifests.schema import ModelManifest

FAKE_PREDICTOR = """
    from inferometer.agent.inference.predictor import Predictor

    class EchoPredictor(Predictor):
        def load(self): ...
        def predict(self, inputs): return {"echo": self.checked_input(inputs)}
        @property
        def threads(self): return None
        def close(self): ...

    class NoPredictor: ...
"""


def entry(predictor: str = "echo_framework:EchoPredictor", *distributions: str) -> FrameworkEntry:
    return FrameworkEntry("Echo", predictor, distributions or ("pytest",), "pip install echo-framework")


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A module outside this program, with a predictor in it."""
    (tmp_path / "echo_framework.py").write_text(textwrap.dedent(FAKE_PREDICTOR))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("echo_framework", None)


@pytest.fixture
def manifest() -> ModelManifest:
    return ModelManifest.model_validate(
        {
            "name": "Echo",
            "framework": {"name": "Echo"},
            "inputs": [{"type": "image", "parameters": {"dimensions": [1, 2, 2], "color_mode": "GRAY"}}],
            "output": {"type": "raw"},
            "model": {"graph_path": "none"},
        }
    )


def test_finds_a_framework_whatever_the_case():
    assert Registry().find(" onnxruntime ").name == "ONNXRuntime"
    assert Registry().find("MXNET").name == "MXNet"


def test_an_unknown_framework_is_told_with_the_nearest():
    with pytest.raises(UnknownFrameworkError, match=r'unknown framework "pytroch"; did you mean "PyTorch"\?'):
        Registry().find("pytroch")


def test_a_framework_that_is_not_installed_is_listed_and_told_with_the_command_that_adds_it():
    registry = Registry((entry("echo_framework:EchoPredictor", "no-such-distribution"),))
    assert registry.versions == {"Echo": None}
    with pytest.raises(FrameworkUnavailableError) as caught:
        registry.find("Echo").load()
    assert str(caught.value) == "framework Echo is not installed; install it with: pip install echo-framework"


@pytest.mark.parametrize("builtin", BUILTIN, ids=lambda builtin: builtin.name)
def test_a_builtin_framework_that_is_not_installed_names_its_extra(builtin, monkeypatch):
    def nothing_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing_installed)
    with pytest.raises(
        FrameworkUnavailableError, match=rf"pip install 'inferometer\[{builtin.name.lower()}\]'"
    ):
        builtin.load()


def test_the_first_installed_distribution_gives_the_version():
    both = entry("echo_framework:EchoPredictor", "no-such-distribution", "pytest", "numpy")
    assert both.installed_version == metadata.version("pytest")


def test_a_framework_of_a_third_party_works_without_a_change_here(echo, manifest):
    import numpy as np

    predictor_type = Registry((*BUILTIN, entry())).find("echo").load()
    with predictor_type(manifest, Artifacts(), PredictorOptions()) as predictor:
        batch = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)
        np.testing.assert_array_equal(predictor.predict({"data": batch})["echo"], batch)


@pytest.mark.parametrize(
    ("predictor", "reason"),
    [
        ("echo_framework:NoPredictor", "echo_framework:NoPredictor is not a Predictor"),
        ("echo_framework:Missing", "Missing"),
        ("no_such_module:EchoPredictor", "no_such_module"),
    ],
)
def test_an_entry_that_leads_nowhere_is_unavailable(echo, predictor, reason):
    with pytest.raises(FrameworkUnavailableError, match=reason) as caught:
        entry(predictor).load()
    assert "\n" not in str(caught.value)


def test_an_installed_framework_that_cannot_be_imported_says_why(echo):
    (echo / "broken_framework.py").write_text("raise ImportError('libgomp.so.1: not\\nfound')")
    with pytest.raises(FrameworkUnavailableError, match=r"Echo .* imported: libgomp\.so\.1: not found"):
        entry("broken_framework:EchoPredictor").load()


def test_of_two_frameworks_with_one_name_the_first_counts():
    first, second = entry(), entry("other:Other")
    assert Registry((first, second)).entries == (first,)


def announce(folder, value: str) -> None:
    info = folder / "echo_framework-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-framework\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[inferometer.frameworks]\necho = {value}\n")


def test_discovers_a_framework_that_an_installed_package_announces(echo):
    with (echo / "echo_framework.py").open("a") as module:
        module.write(
            "\nfrom inferometer.agent.inference.registry import FrameworkEntry\n"
            "ENTRY = FrameworkEntry('Echo', 'echo_framework:EchoPredictor', ('echo-framework',), 'pip')\n"
        )
    announce(echo, "echo_framework:ENTRY")
    registry = Registry.discover()
    assert registry.versions["Echo"] == "1.0"
    assert registry.find("Echo").load().__name__ == "EchoPredictor"
    assert [entry.name for entry in registry.entries][:3] == ["PyTorch", "MXNet", "ONNXRuntime"]


@pytest.mark.parametrize(
    "value", ["echo_framework:NoPredictor", "echo_framework:Missing", "no_such_module:ENTRY"]
)
def test_an_announcement_that_leads_nowhere_is_logged_and_takes_no_other_down(echo, value, caplog):
    announce(echo, value)
    assert [entry.name for entry in Registry.discover().entries] == ["PyTorch", "MXNet", "ONNXRuntime"]
    assert "left out framework entry point echo" in caplog.text


BROKEN = (
    "raise OSError('libcudart.so.12: cannot open shared object file')",
    "raise RuntimeError('built for another NumPy')",
    "def",
)


@pytest.mark.parametrize("text", BROKEN)
def test_a_plug_in_that_cannot_be_imported_takes_no_other_down(tmp_path, monkeypatch, text, caplog):
    (tmp_path / "broken_framework.py").write_text(text)
    announce(tmp_path, "broken_framework:ENTRY")
    monkeypatch.syspath_prepend(tmp_path)
    assert Registry.discover().versions.keys() == {"PyTorch", "MXNet", "ONNXRuntime"}
    assert "left out framework entry point echo" in caplog.text


@pytest.mark.parametrize("text", BROKEN)
def test_a_framework_that_cannot_be_imported_is_unavailable(tmp_path, monkeypatch, text):
    (tmp_path / "broken_framework.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FrameworkUnavailableError, match=r"framework Echo .* cannot be imported: "):
        entry("broken_framework:EchoPredictor").load()


def test_asking_for_the_versions_imports_no_framework():
    program = (
        "import sys; from inferometer.agent.inference.registry import Registry; "
        "assert Registry.discover().versions['PyTorch'];"
        "print(sorted({'torch', 'mxnet', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
