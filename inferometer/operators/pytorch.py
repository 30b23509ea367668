"""Benchmarks of PyTorch operators under the names of their MXNet counterparts, with equal inputs."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
