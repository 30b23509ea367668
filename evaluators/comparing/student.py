"""The tail of Student's t distribution, for tests at any level."""

from __future__ import annotations

import math

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)  # type: ignore[no-untyped-call,unused-ignore]


def student_tail(t: float, degrees: float) -> float:
    """Returns how probable it is that Student's t exceeds a value.

    With t = √degrees · tan θ, the density is proportional to cos(θ)^(degrees - 1), which is integrated by
    Gauss and Legendre with 64 nodes.

    Args:
        t: The value.
        degrees: The degrees of freedom, at least 1; not only whole numbers.
    """
    theta = math.atan(t / math.sqrt(degrees))
    half = (math.pi / 2 - theta) / 2
    integral = half * float(_WEIGHTS @ np.cos(theta + half * (_NODES + 1)) ** (degrees - 1))
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    return min(1.0, integral * math.exp(scale))
