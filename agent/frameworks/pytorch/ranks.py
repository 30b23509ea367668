"""Processes that train one PyTorch module: they connect, start alike, and add up their gradients."""

from __future__ import annotations

import atexit
import gc
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from inferometer.agent.frameworks.pytorch.modules import reason_of
from inferometer.agent.training.trainer import Rank
from inferometer.manifests.errors import ConfigurationError, RankLostError, TrainingError

COMMUNICATIONS = ("gloo", "nccl")
"""The libraries that add up gradients."""
_BUCKET_BYTES = 25 * 2**20
"""The number of bytes added up at once when the parts of a step are timed, as in DistributedDataParallel."""
_LOST = re.compile(
    r"gloo|NCCL|TCPStore|connection (?:was )?(?:closed|reset|refused)|broken pipe|timed out|timeout",
    re.IGNORECASE,
)
_AROUND = re.compile(r"^\[\S+:\d+\] | This is typically caused by .*")
"""Matches the place in Gloo's source where an error is raised, and the advice after the message."""


def communication_of(name: str, device: torch.device) -> str:
    """Returns the library with the given name; an empty name means NCCL for GPUs and Gloo for CPUs.

    Raises:
        ConfigurationError: The name is unknown, or the library does not fit the device or the build.
    """
    name = name or ("nccl" if device.type == "cuda" else "gloo")
    if name not in COMMUNICATIONS:
        raise ConfigurationError(f"communication is {name}; allowed in PyTorch: {', '.join(COMMUNICATIONS)}")
    if name == "nccl" and device.type != "cuda":
        raise ConfigurationError("communication is nccl, which is for GPUs; on a CPU use gloo")
    if name == "nccl" and not dist.is_nccl_available():
        raise ConfigurationError(f"communication is nccl, which PyTorch {torch.__version__} lacks; use gloo")
    return name


class Ranks:
    """The processes that train one module, including this one.

    A step adds up the gradients with DistributedDataParallel, whose communication overlaps with the backward
    pass. In the first step and in every step whose parts are timed, ``add_up`` does so after the backward
    pass, without overlap. Each rank computes the batch normalization statistics of its own samples. Gloo
    notices a disconnected rank immediately; with NCCL, PyTorch ends the process after ``Rank.timeout_s``.

    Raises:
        ConfigurationError: This process is already in a process group.
        TrainingError: The other ranks cannot be reached.
    """

    def __init__(self, model: str, rank: Rank, communication: str, device: torch.device) -> None:
        self._where = f"{model}: rank {rank.number} of {rank.count}"
        self._rank = rank
        self._device = device
        self._parallel: DistributedDataParallel | None = None
        if dist.is_initialized():
            raise ConfigurationError(
                f"{self._where}: this process is already in a PyTorch process group; train in another process"
            )
        try:
            dist.init_process_group(
                communication,
                init_method=f"tcp://{rank.address}",
                timeout=timedelta(seconds=rank.timeout_s),
                world_size=rank.count,
                rank=rank.number,
            )
        except (RuntimeError, ValueError, OSError) as error:
            self.leave()
            raise TrainingError(
                f"{self._where}: cannot reach the other ranks at {rank.address} within {rank.timeout_s:g} s: "
                f"{reason_of(error)}"
            ) from error

    def begin_alike(self, module: torch.nn.Module) -> None:
        """Copies the parameters and the buffers of rank 0 to all ranks."""
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)

    @property
    def parallel(self) -> torch.nn.Module | None:
        """The module whose backward pass adds up the gradients; None before ``overlap``."""
        return self._parallel

    def overlap(self, module: torch.nn.Module) -> None:
        """Makes the backward pass add up the gradients from now on, after a step that used ``add_up``.

        That step shows whether the loss depends on all parameters, which is expensive to check in each step.
        """
        if self._parallel is None:
            unused = any(p.requires_grad and p.grad is None for p in module.parameters())
            with warnings.catch_warnings():
                # newer versions deprecate broadcast_buffers, and older ones have nothing else
                warnings.simplefilter("ignore")
                self._parallel = DistributedDataParallel(
                    module, broadcast_buffers=False, find_unused_parameters=unused
                )

    def apart(self) -> AbstractContextManager[None]:
        """Returns a context in which the forward and backward passes do not communicate."""
        return nullcontext() if self._parallel is None else self._parallel.no_sync()

    def weigh(self, samples: int) -> Weight:
        """Starts counting the samples of all ranks; see ``Weight``."""
        return Weight(samples, self._rank.count, self._device)

    def add_up(self, parameters: Sequence[torch.nn.Parameter], samples: int) -> None:
        """Replaces the gradients with those of the mean loss over the samples of all ranks."""
        found = [samples, *(parameter.grad is not None for parameter in parameters)]
        # float32 counts exactly up to 16,777,216
        counts = torch.tensor(found, dtype=torch.float32, device=self._device)
        dist.all_reduce(counts)
        total, *users = counts.tolist()
        used = [parameter for parameter, ranks in zip(parameters, users, strict=True) if ranks]
        for gradients in _buckets(used):
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients]) * (samples / total)
            dist.all_reduce(flat)
            parts = flat.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def gather(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the values of every rank, of shape (ranks, *shape)."""
        own = torch.tensor(values, device=self._device)
        found = [torch.empty_like(own) for _ in range(self._rank.count)]
        dist.all_gather(found, own)
        return torch.stack(found).cpu().numpy()

    def failure(self, error: BaseException) -> TrainingError | None:
        """Returns the error for a disconnected rank, with its number if known; None for other errors."""
        reason = reason_of(error)
        if not isinstance(error, RuntimeError) or not _LOST.search(reason):
            return None
        other = f"rank {1 - self._rank.number}" if self._rank.count == 2 else "another rank"
        return RankLostError(f"{self._where}: lost contact with {other}: {_AROUND.sub('', reason)}")

    def leave(self) -> None:
        """Leaves the other ranks; calling it again does nothing."""
        self._parallel = None
        if dist.is_initialized():
            with suppress(RuntimeError):  # of a group that has lost a rank
                dist.destroy_process_group()
            # A thread of Gloo that drops its last tensor while the interpreter ends aborts the process
            # (pytorch/pytorch#179291). The group's destructor waits for them, but a reference cycle keeps it.
            atexit.register(gc.collect)


class Weight:
    """The weight of a rank's loss that makes the mean of the ranks' gradients the mean over all samples.

    The samples are counted during the forward pass; with equal batches, the weight is 1.
    """

    def __init__(self, samples: int, ranks: int, device: torch.device) -> None:
        self._own = samples * ranks
        self._total = torch.tensor(float(samples), device=device)
        self._counting = dist.all_reduce(self._total, async_op=True)

    def of(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the weighted loss."""
        if self._counting is not None:
            self._counting.wait()
        return loss * (self._own / self._total)


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.Tensor]]:
    """Yields the gradients of parameters, some at a time; a missing gradient is set to zero."""
    bucket: list[torch.Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        bucket.append(parameter.grad)
        size += parameter.grad.numel() * parameter.grad.element_size()
        if size >= _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
