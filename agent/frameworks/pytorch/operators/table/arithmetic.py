"""Element-wise arithmetic in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inferometer.agent.frameworks.pytorch.operators.functions import Form

FUNCTIONS: Mapping[str, Form] = {
    "add": Form("torch.add", lambda _: torch.add),
}
MISSING: Mapping[str, str] = {}
