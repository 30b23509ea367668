"""MXNet for tests; where it is not installed, whatever uses it is skipped.

It is imported through the module that prepares NumPy for it. Python 3.13 and later have no MXNet.
"""

from __future__ import annotations

from typing import NoReturn

import pytest


class _Missing:
    """Skips the test, or the module, that uses an attribute of MXNet."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip("MXNet is not installed", allow_module_level=True)


try:
    from inferometer.agent.frameworks.mxnet.runtime import mxnet
except ModuleNotFoundError:
    mxnet = _Missing()
