"""The times that hold where no others are given, apart from gRPC, which help does without."""

from __future__ import annotations

OPEN_TIMEOUT_S = 300.0
"""How long an agent may take to open a model, which it may first have to download."""
ANSWER_TIMEOUT_S = 300.0
"""How long an agent may take for the answer to one batch."""
