"""DigitsCNN: a small convolutional network that reads handwritten digits."""

from __future__ import annotations

import torch
from torch import nn


class DigitsCNN(nn.Module):
    """Two convolutions with pooling and two fully connected layers; 38,282 parameters.

    MXNet's and ONNX Runtime's graphs of DigitsCNN have the same layers, under the same names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the ten digits.

        Args:
            data: Preprocessed grey images, (batch, 1, 16, 16), floating point.

        Returns:
            (batch, 10) of the same dtype.
        """
        data = nn.functional.max_pool2d(torch.relu(self.conv1(data)), 2)
        data = nn.functional.max_pool2d(torch.relu(self.conv2(data)), 2)
        data = torch.relu(self.fc1(data.flatten(1)))
        logits: torch.Tensor = self.fc2(data)
        return logits
