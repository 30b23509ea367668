"""PyTorch's operators, of which each run waits for a fifth of its own time at the end."""

from __future__ import annotations

import time
from typing import Any

from inferometer.agent.frameworks.pytorch.operators.runner import PyTorchOperators

SLOWER = 0.2


class SlowerOperators(PyTorchOperators):
    """See the module."""

    def prepare(self, *arguments: Any, **given: Any) -> Any:
        """Prepares a call, and makes it slower."""
        call = super().prepare(*arguments, **given)
        forward = call.forward

        def slower() -> None:
            start_ns = time.perf_counter_ns()
            forward()
            end_ns = time.perf_counter_ns()
            until_ns = end_ns + SLOWER * (end_ns - start_ns)
            while time.perf_counter_ns() < until_ns:
                pass

        call.forward = slower  # type: ignore[method-assign]
        return call
