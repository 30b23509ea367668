"""Networks of convolutions over the tokens of a text."""

from __future__ import annotations

import torch
from torch import nn


class StatementsCNN(nn.Module):
    """An embedding, two convolutions over time, the maximum over time, and two fully connected layers.

    It has 7,442 parameters. Padding is set to zero before each convolution and before the maximum, so a
    text's logits do not depend on its padded length. MXNet's and ONNX Runtime's graphs have the same layers,
    under the same names.
    """

    def __init__(self, *, tokens: int = 33, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.conv1 = nn.Conv1d(16, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(32, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns logits (batch, classes) for token ids and their mask, both int64 (batch, tokens)."""
        mask = attention_mask.unsqueeze(1).to(self.fc1.weight.dtype)
        data = self.embedding(input_ids).transpose(1, 2) * mask
        data = torch.relu(self.conv1(data)) * mask
        data = torch.relu(self.conv2(data)) * mask
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(data.amax(2))))
        return logits
