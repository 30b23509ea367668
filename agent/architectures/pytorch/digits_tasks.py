"""Small networks for tasks beyond classification, on grey canvases of 64 × 64 pixels with handwritten digits.

``tools/train_digits_tasks.py`` trains them. MXNet's and ONNX Runtime's graphs have the same layers.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inferometer.agent.architectures.pytorch.feed_forward import DigitsCNN

_STRIDE = 4
_CELLS = 16
"""The number of cells along one side of the detector's grid: 64 pixels, ``_STRIDE`` per cell."""


class DigitsDetector(nn.Module):
    """A detector without anchors, like FCOS (arXiv 1904.01355) with a single level; 66,302 parameters.

    Each of the 16 × 16 cells proposes one box for all classes.
    """

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.classes = classes
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 48, 3, padding=1)
        self.conv4 = nn.Conv2d(48, 48, 3, padding=1)
        self.conv5 = nn.Conv2d(48, 48, 3, padding=1)
        self.scores = nn.Conv2d(48, classes, 3, padding=1)
        self.sides = nn.Conv2d(48, 4, 3, padding=1)
        nn.init.constant_(self.sides.bias, 2.0)  # type: ignore[arg-type]  # boxes of 15 pixels
        # of each cell, the centre from which the distances to the sides count, with the signs of the sides
        centre = (torch.arange(_CELLS) + 0.5) * _STRIDE
        x, y = centre.expand(_CELLS, _CELLS), centre[:, None].expand(_CELLS, _CELLS)
        self.register_buffer("centres", torch.stack([x, y, x, y])[None])
        signs = torch.tensor([-1.0, -1.0, 1.0, 1.0])[None, :, None, None]
        self.register_buffer("signs", signs)

    def grid(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each cell's boxes, of shape (batch, 4, 16, 16), and logits, (batch, classes, 16, 16)."""
        data = functional.max_pool2d(torch.relu(self.conv1(data)), 2)
        data = functional.max_pool2d(torch.relu(self.conv2(data)), 2)
        data = torch.relu(self.conv5(torch.relu(self.conv4(torch.relu(self.conv3(data))))))
        boxes = self.centres + self.signs * torch.exp(self.sides(data))  # type: ignore[operator]
        return boxes, self.scores(data)

    def forward(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns boxes (left, top, right and bottom in pixels), and scores from 0 to 1.

        Boxes are (batch, 256, 4), scores (batch, 256, classes), inputs (batch, 1, 64, 64) from 0 to 1.
        """
        boxes, logits = self.grid(data)
        cells = _CELLS * _CELLS
        scores = torch.sigmoid(logits).reshape(-1, self.classes, cells)
        return boxes.reshape(-1, 4, cells).transpose(1, 2), scores.transpose(1, 2)


class DigitsSegmenter(nn.Module):
    """A U-Net (arXiv 1505.04597) with two levels; 94,439 parameters."""

    def __init__(self, *, classes: int = 11) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.conv3 = nn.Conv2d(24, 48, 3, padding=1)
        self.conv4 = nn.Conv2d(48, 48, 3, padding=1)
        self.conv5 = nn.Conv2d(48, 48, 3, padding=1)
        self.conv6 = nn.Conv2d(48, 48, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(48, 24, 2, stride=2)
        self.conv7 = nn.Conv2d(48, 24, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.conv8 = nn.Conv2d(24, 12, 3, padding=1)
        self.scores = nn.Conv2d(12, classes, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the logits (batch, classes, 64, 64) for images of shape (batch, 1, 64, 64), 0…1."""
        full = torch.relu(self.conv1(data))
        half = torch.relu(self.conv2(functional.max_pool2d(full, 2)))
        quarter = torch.relu(self.conv4(torch.relu(self.conv3(functional.max_pool2d(half, 2)))))
        quarter = torch.relu(self.conv6(torch.relu(self.conv5(quarter))))
        half = torch.relu(self.conv7(torch.cat([self.up1(quarter), half], 1)))
        full = torch.relu(self.conv8(torch.cat([self.up2(half), full], 1)))
        scores: torch.Tensor = self.scores(full)
        return scores


class DigitsDenoiser(nn.Module):
    """Predicts the noise in an image and subtracts it; 16,081 parameters.

    It is like DnCNN (arXiv 1608.03981) without the normalizations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 24, 3, padding=1)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1)
        self.conv4 = nn.Conv2d(24, 24, 3, padding=1)
        self.noise = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the denoised images for noisy ones of the same shape, (batch, 1, 64, 64), 0…1."""
        hidden = torch.relu(self.conv2(torch.relu(self.conv1(data))))
        hidden = torch.relu(self.conv4(torch.relu(self.conv3(hidden))))
        image: torch.Tensor = data - self.noise(hidden)
        return image


class DigitsEmbedder(DigitsCNN):
    """DigitsCNN's layers with embeddings instead of logits as their output; 38,672 parameters.

    Outputs are (batch, length), and their norms vary. The embeddings of images of the same digit point in
    similar directions.
    """

    def __init__(self, *, length: int = 16) -> None:
        super().__init__(classes=length)
