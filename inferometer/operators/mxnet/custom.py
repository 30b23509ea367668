"""The benchmark of a custom operator of MXNet."""

from inferometer.client.api.operators.benchmark import contents

__all__, __getattr__, __dir__ = contents(__name__)
