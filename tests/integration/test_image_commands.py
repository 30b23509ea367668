"""The commands of the smallest image, run in a fresh environment of this machine.

The only test that needs a package index, as the build of an image does; where pip reaches none it is skipped.
`make images-check` does the same for the other images.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALLEST = "onnxruntime-cpu"


@pytest.mark.timeout(600)
def test_the_smallest_image_can_be_made_and_run(tmp_path: Path) -> None:
    reach = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path)]
    if subprocess.run([*reach, "hatchling"], capture_output=True, timeout=120).returncode:
        pytest.skip("pip reaches no package index")

    done = subprocess.run(
        [sys.executable, "-m", "tools.check_images", SMALLEST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == f"{SMALLEST}: works on this machine"
