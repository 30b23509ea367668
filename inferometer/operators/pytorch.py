"""Benchmarks of operators of PyTorch: those of MXNet by their names, with equal inputs."""

from inferometer.client.library.operators.classes import contents

__all__, __getattr__, __dir__ = contents(__name__)
