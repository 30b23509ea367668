"""Deep Speech 2."""

from __future__ import annotations

import math
from typing import Any

from mxnet import gluon, init
from mxnet.gluon import nn, rnn

# Of one recurrent layer in one direction
_HIDDEN_UNITS = 2048


class DeepSpeech2(gluon.HybridBlock):
    """Two convolutions and three bidirectional recurrent layers (arXiv 1512.02595); 67,819,562 parameters.

    The convolutions shorten time to a third and the spectrum to a quarter; each output step is one input of
    the recurrent layers, whose two directions are joined. Inputs are spectrograms, (batch, 1, time steps,
    161); the classes are the letter pairs and the blank.
    """

    def __init__(self, *, classes: int = 842) -> None:
        super().__init__()
        # larger weights grow without bound over the time steps, because ReLU does not limit the state
        weights = init.Uniform(1 / math.sqrt(_HIDDEN_UNITS))
        with self.name_scope():
            self.convolutions = nn.HybridSequential(prefix="")
            self.convolutions.add(
                nn.Conv2D(32, (11, 41), strides=(3, 2), padding=(5, 20), use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                nn.Conv2D(32, (11, 21), strides=(1, 2), padding=(5, 10), use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
            )
            self.recurrent = rnn.RNN(
                _HIDDEN_UNITS,
                num_layers=3,
                activation="relu",
                bidirectional=True,
                i2h_weight_initializer=weights,
                h2h_weight_initializer=weights,
            )
            self.output = nn.Dense(classes, flatten=False)

    def hybrid_forward(self, F: Any, data: Any) -> Any:  # noqa: N803  # gluon passes it by this name
        """Returns the logits of each time step, of shape (batch, ⌈time steps / 3⌉, classes)."""
        features = F.transpose(self.convolutions(data), axes=(2, 0, 1, 3))
        # 0 keeps an axis: (time, batch, channels × frequencies)
        states = self.recurrent(F.reshape(features, shape=(0, 0, -1)))
        return F.swapaxes(self.output(states), dim1=0, dim2=1)
