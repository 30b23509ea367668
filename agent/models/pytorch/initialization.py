"""Random weights that keep the size of the activations from layer to layer."""

from __future__ import annotations

from torch import nn


def initialize(network: nn.Module) -> None:
    """Draws the weights of convolutions and fully connected layers as He et al. do (arXiv 1502.01852).

    PyTorch's own default shrinks the activations in each layer. In the deep networks they end as denormal
    numbers, which a CPU computes several times more slowly than those of a trained model, and the outputs
    no longer depend on the input. Biases and normalisations keep PyTorch's default.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
