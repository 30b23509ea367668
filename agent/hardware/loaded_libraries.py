"""The shared libraries that this process has loaded, and the versions that CUDA's libraries tell."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_MAPS = Path("/proc/self/maps")


def loaded_library(prefix: str, folder: Path | None = None, maps: Path = _MAPS) -> Path | None:
    """Returns the first loaded library whose file name begins with ``prefix``, in ``folder`` if given.

    None if there is none, or the system does not tell.
    """
    with suppress(OSError):
        for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(maxsplit=5)
            path = Path(fields[5]) if len(fields) == 6 else Path()
            if path.name.startswith(prefix) and folder in {None, path.parent}:
                return path
    return None


def cuda_library_versions() -> Mapping[str, str]:
    """Returns the versions of the CUDA runtime and of cuDNN in this process; without those not loaded."""
    found = {}
    for name, prefix, version_of in (
        ("CUDA runtime", "libcudart", cuda_runtime_version),
        ("cuDNN", "libcudnn.", cudnn_version),
    ):
        path = loaded_library(prefix)
        with suppress(OSError, AttributeError):  # the file is gone, or is another library
            if path is not None:
                found[name] = version_of(ctypes.CDLL(str(path)))
    return found


def cuda_runtime_version(library: Any) -> str:
    """Asks ``libcudart`` for its version, such as 12.4."""
    version = ctypes.c_int()
    library.cudaRuntimeGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def cudnn_version(library: Any) -> str:
    """Asks ``libcudnn`` for its version, such as 9.1.0."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return readable_cudnn_version(int(library.cudnnGetVersion()))


def readable_cudnn_version(number: int) -> str:
    """Returns cuDNN's version number as text: 8902 is 8.9.2, and from cuDNN 9 on 90100 is 9.1.0."""
    major = 10_000 if number >= 90_000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"
