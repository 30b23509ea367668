"""What a framework's failure means: no memory for the batch, a device that is lost, or neither."""

from __future__ import annotations

import re

from manifests.errors import DeviceLostError, InferscopeError, OutOfMemoryError, PredictionError

# Frameworks say these in words: their exceptions of one class mean many things.
_OUT_OF_MEMORY = re.compile(
    r"out of memory"  # CUDA, and with it PyTorch and MXNet
    r"|can(?:'|no)t allocate memory"  # PyTorch on the CPU, and the system
    r"|failed to allocate"  # ONNX Runtime's arena; MXNet
    r"|smaller than requested bytes"  # ONNX Runtime's arena, of a GPU's memory
    r"|bad[_ ]alloc"  # C++
    r"|ALLOC_FAILED",  # cuDNN and cuBLAS
    re.IGNORECASE,
)
# The errors after which a process's CUDA context is of no use any more, by name and in words.
_DEVICE_LOST = re.compile(
    r"illegal memory access|illegal instruction|illegal address|misaligned address|invalid program counter"
    r"|hardware stack error|device-side assert|unspecified launch failure|launch timed out"
    r"|uncorrectable ECC|unspecified hardware error|GPU is lost|fallen off the bus|device (?:is )?lost"
    r"|context is destroyed|driver shutting down|device (?:is )?unavailable|mapping of buffer object failed"
    r"|cudaError(?:Illegal\w+|MisalignedAddress|InvalidPc|HardwareStackError|Assert|LaunchFailure|LaunchTimeout"
    r"|ECCUncorrectable|DevicesUnavailable|ContextIsDestroyed|CudartUnloading|NvlinkUncorrectable)",
    re.IGNORECASE,
)


def prediction_failure(message: str, error: BaseException) -> InferscopeError:
    """Returns the error of the program for one that a framework raised in ``predict``.

    Args:
        message: What failed, and why, in one line.
        error: What the framework raised.

    Returns:
        OutOfMemoryError where there was no memory; DeviceLostError where CUDA says that its context is
        broken, so that nothing that this process does on the device will work any more; else PredictionError.
    """
    text = str(error)
    if _DEVICE_LOST.search(text):
        return DeviceLostError(f"{message}; the device is of no use to this process any more: restart it")
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        return OutOfMemoryError(message)
    return PredictionError(message)
