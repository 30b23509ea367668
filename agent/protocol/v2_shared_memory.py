"""Names of Triton's system shared-memory extension."""

from __future__ import annotations

from pathlib import Path

EXTENSION = "system_shared_memory"
"""The extension, as a server's metadata lists it."""
REGION, BYTE_SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
"""The parameters of a tensor that is in a region."""
SEGMENTS = Path("/dev/shm")  # noqa: S108 - where shm_open has them in Linux
