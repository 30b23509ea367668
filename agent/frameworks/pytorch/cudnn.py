"""cuDNN's benchmark mode in PyTorch, which is one setting of the whole process."""

from __future__ import annotations

import threading

import torch

from inferometer.manifests.errors import ConfigurationError


class CudnnBenchmark:
    """The process's ``torch.backends.cudnn.benchmark``, for as long as a predictor wants a value of it.

    Predictors that want the same share it, and the last one puts back what was set before the first.
    Predictors that want none run with what is set at the time. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = False

    def hold(self, *, wanted: bool) -> None:
        """Sets it until ``release``.

        Raises:
            ConfigurationError: Another predictor holds it with the other value.
        """
        with self._lock:
            if self._holders and torch.backends.cudnn.benchmark != wanted:
                raise ConfigurationError(
                    f"cudnn_benchmark: found {str(wanted).lower()}; PyTorch has one setting in a process, "
                    f"and an open model uses {str(not wanted).lower()}: close it, or use another process"
                )
            if not self._holders:
                self._before = torch.backends.cudnn.benchmark
                torch.backends.cudnn.benchmark = wanted
            self._holders += 1

    def release(self) -> None:
        """Ends one ``hold``."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                torch.backends.cudnn.benchmark = self._before


CUDNN_BENCHMARK = CudnnBenchmark()
"""The one of this process, which predictors and trainers hold."""
