"""Benchmarks of operators of PyTorch: those of MXNet by their names, with equal inputs."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
