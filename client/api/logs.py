"""Formats the warnings of libraries as one line each, and sets log levels from the flags."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any


def quieten_libraries() -> None:
    """Formats library warnings as one line each, and suppresses those that are redundant."""
    warnings.formatwarning = lambda message, *_, **__: _warning_line(message)
    # Pillow's own limit, which is below --max_pixels
    warnings.filterwarnings("ignore", r"Image size .* could be decompression bomb")
    # gRPC would log each failed handshake in addition to the one-line error.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # PyTorch would log that memory allocated before a trace was freed during it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def set_logging(flags: Mapping[str, Any]) -> None:
    """Sets the log level that the global flags select."""
    import logging

    level = logging.DEBUG if flags.get("debug") else logging.INFO if flags.get("verbose") else logging.WARNING
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    # Library loggers are unchanged: Pillow, for example, logs several lines per image within timed regions.
    logging.getLogger("inferometer").setLevel(level)


def _warning_line(message: Warning | str) -> str:
    """Formats a library's warning as one line, without the source line of the library."""
    from inferometer.manifests.errors import one_line, printable

    return f"warning: {printable(one_line(str(message)))}\n"
