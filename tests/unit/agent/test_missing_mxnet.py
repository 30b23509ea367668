"""Where MXNet is not installed, an attempt to import it leaves the process as it was."""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
import os, sys
sys.modules["mxnet"] = None  # as where it is not installed
try:
    import inferometer.agent.frameworks.mxnet.runtime
except ModuleNotFoundError:
    print("sklearn" in sys.modules, "scipy.stats" in sys.modules, os.environ.get("OMP_NUM_THREADS"))
"""


def test_a_missing_mxnet_blocks_no_other_module_and_sets_no_variable() -> None:
    kept = {name: value for name, value in os.environ.items() if "OMP" not in name}

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=kept, capture_output=True, text=True, timeout=120
    )

    assert (done.stdout, done.stderr) == ("False False None\n", "")
