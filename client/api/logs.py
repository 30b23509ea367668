"""What libraries print while a command runs: warnings in one line, and logs as the flags ask."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any


def quieten_libraries() -> None:
    """Makes warnings of libraries one line each, and leaves out those that say nothing new."""
    warnings.formatwarning = lambda message, *_, **__: _warning_line(message)
    # Pillow's own limit, which is below --max_pixels
    warnings.filterwarnings("ignore", r"Image size .* could be decompression bomb")
    # gRPC would log each failed handshake beside the one line of the error.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # PyTorch would log that memory of before a trace was freed in it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def set_logging(flags: Mapping[str, Any]) -> None:
    """Logs as much as the global flags ask."""
    import logging

    level = logging.DEBUG if flags.get("debug") else logging.INFO if flags.get("verbose") else logging.WARNING
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    # Not the libraries': Pillow, for one, logs several lines for each image, while it is being timed.
    logging.getLogger("inferometer").setLevel(level)


def _warning_line(message: Warning | str) -> str:
    """Formats a library's warning as one line, without the line of the library's source."""
    from inferometer.manifests.errors import one_line, printable

    return f"warning: {printable(one_line(str(message)))}\n"
