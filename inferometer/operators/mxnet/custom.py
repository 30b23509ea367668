"""The benchmark of a custom operator of MXNet."""

from inferometer.client.library.operators.classes import contents

__all__, __getattr__, __dir__ = contents(__name__)
