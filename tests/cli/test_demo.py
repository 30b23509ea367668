"""``make demo``: its script evaluates in every framework and reports on it, with a shorter time for each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# the latest first; MXNet is there on Python 3.12 and older
_PACKAGES = {"ONNXRuntime": "onnxruntime", "MXNet": "mxnet", "PyTorch": "torch"}
FRAMEWORKS = [name for name, package in _PACKAGES.items() if find_spec(package)]
SCRIPT = Path(__file__).parents[2] / "tools" / "demo.sh"
_AGENT = f"""#!/bin/sh
test "$1" != predict || set -- "$@" --num_file_parts=10
exec {sys.executable} -c 'from inferometer.client.cli.main import main; main()' "$@"
"""


def test_the_demo_evaluates_and_compares_every_framework(tmp_path: Path) -> None:
    (tmp_path / "agent").write_text(_AGENT, encoding="utf-8")
    (tmp_path / "agent").chmod(0o755)

    done = subprocess.run(
        [SCRIPT], env={**os.environ, "BIN": str(tmp_path)}, capture_output=True, text=True, timeout=150
    )

    assert done.returncode == 0, done.stderr
    assert re.findall(r"^top-1 .*of (\d+) inputs", done.stdout, re.MULTILINE) == ["160"] * len(FRAMEWORKS)
    left_out = re.findall(r"^(\w+) is not installed: the demo goes on without it$", done.stdout, re.MULTILINE)
    assert sorted([*FRAMEWORKS, *left_out]) == ["MXNet", "ONNXRuntime", "PyTorch"]
    for report in ("latency", "accuracy"):
        (rows,) = re.findall(
            rf"^\$ agent info evaluation {report} .*\n.*\n((?:.+\n)*)", done.stdout, re.MULTILINE
        )
        assert [row.split()[0] for row in rows.splitlines()] == FRAMEWORKS
    assert done.stdout.count("\n$ agent compare ") == len(FRAMEWORKS) - 1
