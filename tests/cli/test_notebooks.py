"""The library in a kernel of Jupyter: the tutorial from top to bottom, and a cell that is interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
MOST_S = 150
BRIEFLY = "from inferometer.evaluators.kinds.batches import measurement; measurement.TIME_BUDGET_S = 0.2"


@pytest.fixture(autouse=True)
def _kernel_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that writes into a folder of its own, and leaves processors to the other tests."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _data(cell: Any) -> dict[str, str]:
    """What the last line of a cell shows, by its kind."""
    [shown] = [output.data for output in cell.outputs if output.output_type == "execute_result"]
    return dict(shown)


def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTORIAL_FRAMEWORK", "ONNXRuntime")
    notebook = nbformat.read(TUTORIAL, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = f"{BRIEFLY}\n{first.source}"

    NotebookClient(notebook, timeout=MOST_S, resources={"metadata": {"path": str(tmp_path)}}).execute()

    cells = {cell.source.splitlines()[-1]: cell for cell in notebook.cells if cell.cell_type == "code"}
    for last in (
        "run",
        "sizes",
        "load",
        "remote",
        "mine",
        "im.compare(run, again)",
        "im.evaluations(limit=10)",
    ):
        shown = _data(cells[last])
        assert "<table>" in shown["text/html"], last
        assert "<svg" in shown["text/html"], last
        assert "\x1b" not in shown["text/plain"], last
    assert "DigitsCNN 1.0 on ONNXRuntime" in _data(cells["run"])["text/plain"]
    assert len(_data(cells["sizes"])["text/html"].split("<tr>")) == 5
    assert "127.0.0.1:" in _data(cells["remote"])["text/plain"]


@pytest.mark.parametrize("framework", ["PyTorch", "MXNet"])
def test_the_tutorial_has_a_model_of_each_framework(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell in which the frameworks differ, below the one that chooses."""
    monkeypatch.setenv("TUTORIAL_FRAMEWORK", framework)
    names: dict[str, Any] = {}
    for cell in nbformat.read(TUTORIAL, as_version=4).cells:
        if cell.cell_type == "code" and re.search(r"^(FRAMEWORK =|def my_model)", cell.source, re.MULTILINE):
            exec(cell.source, names)

    assert f" on {framework} " in repr(names["mine"])
    assert "<table>" in names["mine"]._repr_html_()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel without a notebook."""
    manager, client = start_new_kernel(cwd=str(tmp_path), startup_timeout=MOST_S)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_the_stop_button_keeps_what_was_measured(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    client.execute(
        "import inferometer as im\n"
        "run = im.evaluate(framework='ONNXRuntime', batch_size=16, min_batches=10**7, time_budget_s=120)"
    )
    shown = ""
    while "<progress" not in shown:  # the bar, by which a person sees that it measures
        content = client.get_iopub_msg(timeout=MOST_S)["content"]
        assert "traceback" not in content, content
        shown = content.get("data", {}).get("text/html", "")
    assert "DigitsCNN: " in shown

    manager.interrupt_kernel()
    client.execute("print(run.complete, run.latency.batches > 0, len(im.evaluations()))")

    text = ""
    while not text.endswith("\n"):
        content = client.get_iopub_msg(timeout=MOST_S)["content"]
        assert "traceback" not in content, content
        text += content["text"] if content.get("name") == "stdout" else ""
    assert text.split() == ["False", "True", "0"]
