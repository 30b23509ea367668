"""DeepSpeech2 (arXiv 1512.02595), which maps a spectrogram to character scores over time."""

from __future__ import annotations

import torch
from torch import nn

from inferometer.agent.architectures.pytorch.feed_forward import initialize

_FREQUENCIES = 161
_HIDDEN = 2048


class DeepSpeech2(nn.Module):
    """Two convolutions over time and frequency, and 3 bidirectional recurrent layers; 67,819,562 parameters.

    The recurrent layers have 2048 ReLU units in each direction, whose outputs are joined. The 842 classes are
    the pairs of 29 characters, 29 × 29, and the CTC blank, class 0.
    """

    def __init__(self, *, classes: int = 842) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=(11, 41), stride=(3, 2), padding=(5, 20), bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, kernel_size=(11, 21), stride=(1, 2), padding=(5, 10), bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
        )
        # each convolution halves the frequencies, rounding up
        frequencies = -(-_FREQUENCIES // 4)
        self.rnn = nn.RNN(
            32 * frequencies, _HIDDEN, num_layers=3, nonlinearity="relu", batch_first=True, bidirectional=True
        )
        self.fc = nn.Linear(2 * _HIDDEN, classes)
        initialize(self)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Returns each time step's logits for a CTC decoder, of shape (batch, ceil(time / 3), classes).

        ``data`` holds spectrograms of shape (batch, 1, time, 161) and any floating-point dtype; 200 time
        steps give 67.
        """
        maps = self.convolutions(data)
        # (batch, channels, time, frequencies) to (batch, time, channels × frequencies)
        states, _ = self.rnn(maps.transpose(1, 2).flatten(2))
        logits: torch.Tensor = self.fc(states)
        return logits
